"""The ranks' lines reach the terminal whole, in order, marked, and completely."""

import pytest

from everstep.errors import ConfigError
from everstep.launcher.output import OutputTail, Shown, shown_streams


class Screen:
    def __init__(self):
        self.streams = {1: b"", 2: b""}

    def write(self, stream, data):
        self.streams[stream] += data


@pytest.fixture
def screen():
    return Screen()


def tail(tmp_path, screen, **changes):
    shown = {"log_dir": tmp_path, "nproc_per_node": 2, "world_size": 2, "role": "default", "streams": {0: 3, 1: 3}}
    return OutputTail(Shown(**{**shown, **changes}), screen.write)


def write(tmp_path, rank, text, generation=0, name="stdout.log"):
    folder = tmp_path / f"gen-{generation}" / f"rank-{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("a") as file:
        file.write(text)


def test_only_whole_lines_are_shown_until_the_end(tmp_path, screen):
    following = tail(tmp_path, screen)
    following.poll()
    write(tmp_path, 0, "one\ntw")
    following.poll()
    assert screen.streams[1] == b"[default0]:one\n"
    write(tmp_path, 0, "o\nthr")
    following.drain()
    assert screen.streams[1] == b"[default0]:one\n[default0]:two\n[default0]:thr\n"


def test_streams_stay_apart(tmp_path, screen):
    write(tmp_path, 1, "out\n")
    write(tmp_path, 1, "err\n", name="stderr.log")
    tail(tmp_path, screen).drain()
    assert screen.streams == {1: b"[default1]:out\n", 2: b"[default1]:err\n"}


def test_a_generation_that_came_and_went_between_two_looks_is_shown(tmp_path, screen):
    for generation in range(4):
        write(tmp_path, 0, f"g{generation}\n", generation)
    tail(tmp_path, screen).drain()
    assert screen.streams[1] == b"".join(b"[default0]:g%d\n" % generation for generation in range(4))


def test_a_generation_that_never_started_anywhere_is_passed_over(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "a\n", 0)
    following.poll()
    write(tmp_path, 0, "b\n", 3)
    following.poll()
    assert screen.streams[1] == b"[default0]:a\n[default0]:b\n"


def test_the_rest_of_a_generation_comes_before_the_next_one(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "a\nlast words")
    following.poll()
    write(tmp_path, 0, "b\n", 1)
    following.poll()
    assert screen.streams[1] == b"[default0]:a\n[default0]:last words\n[default0]:b\n"


def test_a_rank_that_appears_late_is_found(tmp_path, screen):
    following = tail(tmp_path, screen)
    write(tmp_path, 0, "a\n")
    following.poll()
    write(tmp_path, 1, "b\n")
    following.poll()
    assert screen.streams[1] == b"[default0]:a\n[default1]:b\n"


def test_earlier_attempts_are_skipped(tmp_path, screen):
    write(tmp_path, 0, "old\n", 0)
    write(tmp_path, 0, "old\n", 1)
    following = tail(tmp_path, screen)
    following.skip_existing()
    write(tmp_path, 0, "new\n", 2)
    following.drain()
    assert screen.streams[1] == b"[default0]:new\n"


def test_the_template_is_torchruns(tmp_path, screen):
    write(tmp_path, 1, "x\n")
    tail(
        tmp_path, screen, nproc_per_node=1, streams={0: 3}, template="${role_name}/${rank}/${local_rank}/${x} "
    ).drain()
    assert screen.streams[1] == b"default/1/0/${x} x\n"


def test_bytes_that_are_no_text_pass_unchanged(tmp_path, screen):
    write(tmp_path, 0, "")
    (tmp_path / "gen-0" / "rank-0" / "stdout.log").write_bytes(b"\xff\xfe\x00\n")
    tail(tmp_path, screen).drain()
    assert screen.streams[1] == b"[default0]:\xff\xfe\x00\n"


def test_much_output_is_shown_completely(tmp_path, screen):
    line = "x" * 99 + "\n"
    write(tmp_path, 0, line * 50_000)
    tail(tmp_path, screen).poll()
    assert screen.streams[1].count(b"\n") == 50_000


@pytest.mark.parametrize(
    ("redirects", "tee", "only", "shown"),
    [
        ("0", "0", None, {0: 3, 1: 3}),
        ("3", "0", None, {0: 0, 1: 0}),
        ("1", "0", None, {0: 2, 1: 2}),
        ("3", "3", None, {0: 3, 1: 3}),
        ("0:3", "0", None, {0: 0, 1: 3}),
        ("0", "0", (1,), {0: 0, 1: 3}),
    ],
)
def test_what_is_shown_is_torchruns_rule(redirects, tee, only, shown):
    assert shown_streams(redirects, tee, only, 2) == shown


def test_a_redirect_that_torch_does_not_understand():
    with pytest.raises(ConfigError, match="--redirects many"):
        shown_streams("many", "0", None, 2)
