"""A pipe in the place of a file that a person names: an answer at once, and no wait for who never writes."""

import os
from pathlib import Path

import pytest

from everstep.cli.main import main
from everstep.cli.see.trace import written_to
from everstep.errors import ConfigError
from everstep.journal.beside.secrets import secret_values
from everstep.notices.settings import load_receivers

COMMANDS = [
    ("fabric", "check", "@pipe.yaml"),
    ("fabric", "show", "@pipe.toml"),
    ("fabric", "traffic", "@pipe.yaml", "--counters", "@pipe"),
    ("fabric", "storms", "@pipe"),
    ("plan", "standby", "--nodes", "10", "--history", "@pipe"),
    ("simulate", "--gpus", "16", "--days", "1", "--faults", "trace", "--trace", "@pipe"),
    ("check", "--compare", "@pipe"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(words[:2]))
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    for name in ("pipe", "pipe.yaml", "pipe.toml"):
        os.mkfifo(tmp_path / name)
    argv = [str(tmp_path / word[1:]) if word.startswith("@") else word for word in words]
    try:
        assert main(argv) != 0
    except SystemExit as end:
        pytest.fail(f"not the arguments of this verb: {end}")


@pytest.mark.timeout(60)
def test_nor_in_the_place_of_settings(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError):
        load_receivers(tmp_path / "pipe")


def test_tokens_of_hosts_are_known_secrets(tmp_path: Path) -> None:
    for name in ("join-token", "pilot-token"):
        (tmp_path / name).write_text(f"the-{name}\n")
    assert {"the-join-token", "the-pilot-token"} <= secret_values(tmp_path, {})


def test_a_trace_is_written_to_a_new_file_only(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    (tmp_path / "link").symlink_to(kept)
    for place in ("link", "kept"):
        with pytest.raises(ConfigError):
            written_to(str(tmp_path / place), b"trace")
    assert kept.read_text() == "kept"
    assert written_to(str(tmp_path / "new"), b"trace").read_bytes() == b"trace"
