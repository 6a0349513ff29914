"""The persistent tier before a run: flags, what is wrong with a folder, what is there, and the head of the run."""

import threading

import pytest

from everstep.errors import ConfigError
from everstep.launcher.arguments import checkpoints, options
from everstep.launcher.arguments.checkpoints import Wanted, check, find, header_line, seconds
from everstep.launcher.arguments.settings import resolve
from everstep.model.events import CheckpointsFound
from everstep.model.facts import Checkpoint
from everstep.model.spec import RunSpec


def wanted(*argv: str, environ: dict[str, str] | None = None) -> Wanted:
    return resolve(options.parse([*argv, "train.py"]), environ or {}).checkpoints


def test_none_is_wanted_unless_asked_for():
    assert wanted() == Wanted(dir="", every_s=600.0, keep=3, init_from="")


def test_a_rhythm_without_a_place_is_said():
    made = resolve(options.parse(["--checkpoint-every", "1m", "train.py"]), {})
    assert made.notes == ("without --checkpoint-dir nothing is written: --checkpoint-every has no effect",)


def test_flag_wins_over_environment_and_that_over_the_file(tmp_path):
    file = tmp_path / "everstep.toml"
    file.write_text('[checkpoint]\ndir = "/file"\nevery = "5m"\nkeep = 7\n')
    environ = {"EVERSTEP_CONFIG": str(file), "EVERSTEP_CHECKPOINT_DIR": "/environ", "EVERSTEP_CHECKPOINT_EVERY": "30s"}
    made = wanted("--checkpoint-dir", "/flag", environ=environ)
    assert made == Wanted(dir="/flag", every_s=30.0, keep=7)


def test_a_folder_becomes_absolute_and_a_url_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert wanted("--checkpoint-dir", "ck").dir == str(tmp_path / "ck")
    assert wanted("--checkpoint_dir", "s3://bucket/ck").dir == "s3://bucket/ck"


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90.0), ("30s", 30.0), ("10m", 600.0), ("1.5h", 5400.0), (45, 45.0), (0.5, 0.5)]
)
def test_times(text, value):
    assert seconds("checkpoint-every", text) == value


@pytest.mark.parametrize("text", ["", "0", "-1", "10 minutes", "1.2.3", "m", "inf", "nan", True, None])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(ConfigError, match=r"checkpoint-every.*as 90, 30s, 10m"):
        seconds("checkpoint-every", text)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("[checkpoint]\nfolder = 1\n", "unknown key 'folder'; allowed: dir, every, keep, init_from"),
        ("[checkpoint]\nkeep = 0\n", "checkpoint-keep = 0: must be a whole number, at least 1"),
        ('checkpoint = "/ck"\n', "must be a table"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path, table, words):
    file = tmp_path / "everstep.toml"
    file.write_text(table)
    with pytest.raises(ConfigError, match=words):
        wanted("--config", str(file))


def test_a_folder_that_can_be_written_is_made_and_left_empty(tmp_path):
    check(Wanted(dir=str(tmp_path / "a" / "b")))
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_file_in_its_place_is_said_before_anything_starts(tmp_path):
    (tmp_path / "ck").write_text("")
    with pytest.raises(ConfigError, match=rf"--checkpoint-dir {tmp_path}/ck cannot be used: .*Nothing was started"):
        check(Wanted(dir=str(tmp_path / "ck")))


def test_a_folder_that_cannot_be_written_is_said():
    with pytest.raises(ConfigError, match="cannot be used"):
        check(Wanted(dir="/proc/everstep-checkpoints"))


def test_a_url_that_nothing_here_understands_is_said():
    with pytest.raises(ConfigError, match="cannot be used"):
        check(Wanted(dir="nosuchprotocol://bucket/ck"))


def test_a_storage_that_hangs_does_not_hang_the_launcher(tmp_path, monkeypatch):
    release = threading.Event()
    monkeypatch.setattr(checkpoints, "ANSWER_S", 0.05)
    monkeypatch.setattr(checkpoints, "open_storage", lambda root: release.wait(10))
    with pytest.raises(ConfigError, match="has not answered within"):
        check(Wanted(dir=str(tmp_path)))
    release.set()


def test_what_to_start_from_must_be_there(tmp_path):
    with pytest.raises(ConfigError, match="no such directory"):
        check(Wanted(init_from=str(tmp_path / "gone")))
    check(Wanted(init_from=str(tmp_path)))


def spec(root: str) -> RunSpec:
    return RunSpec(program="train.py", checkpoint_dir=root)


def test_an_empty_tier_is_known_to_be_empty_and_none_is_none(tmp_path):
    assert find(spec("")) is None
    found = find(spec(str(tmp_path)))
    assert found is not None
    assert (found.checkpoints, found.why) == ((), "")


def test_a_tier_that_cannot_be_read_ends_it(tmp_path):
    (tmp_path / "step-0000000004").mkdir()
    (tmp_path / "step-0000000004" / "manifest.json").mkdir()
    with pytest.raises(ConfigError, match=r"none that can be restored; step 4: .*Nothing was started"):
        find(spec(str(tmp_path)))


def test_the_head_says_from_where():
    newest = Checkpoint(step=1400, path="/ck/step-1400", world_size=2, at=940.0)
    older = Checkpoint(step=400, path="/ck/step-400", world_size=2, at=100.0)
    found = CheckpointsFound(at=1000.0, checkpoints=(older, newest))
    assert header_line(spec("/ck"), found) == (
        "  checkpoints /ck (every 10m 00s, 3 kept): 2 checkpoints there, resumes after step 1,400, written 1m 00s ago"
    )
    assert header_line(spec("/ck"), CheckpointsFound(at=1.0)).endswith("none there yet")
    assert header_line(spec(""), None) == ""
