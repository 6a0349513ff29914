"""Which directory a person means, and what they are told when there is none."""

import os
from pathlib import Path

import pytest

from everstep.errors import ConfigError, JournalError
from everstep.journal.beside import continued
from everstep.journal.runs import RunDir, find_run, known_runs, make_run_dir, new_run_id, register


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def started(run: str, run_dir: str | None = None) -> RunDir:
    made = make_run_dir(run, run_dir)
    made.journal.write_text("{}\n")
    assert register(run, made) == ""
    return made


def test_the_latest_run_is_the_default(home: Path) -> None:
    started("r1")
    second = started("r2")
    assert find_run() == second
    assert find_run("r1").path == home / "runs" / "r1"
    assert (home / "runs" / "latest").readlink() == Path("r2"), "relative, so that a home can be moved"


def test_a_run_directory_elsewhere_has_the_same_names(tmp_path: Path) -> None:
    there = started("r1", str(tmp_path / "there"))
    for found in (find_run(), find_run("r1"), find_run("there"), find_run("there/journal.jsonl")):
        assert found == there
    assert find_run(run_dir="there") == there


def test_a_run_that_another_host_goes_on_with_is_found_where_that_one_writes(home: Path, tmp_path: Path) -> None:
    begun = started("r1")
    there = tmp_path / "there"
    there.mkdir()
    continued.point(begun.path, there)
    assert find_run("r1") == begun, "nothing is there yet"
    (there / "journal.jsonl").write_text("{}\n")
    assert find_run("r1").path == find_run(run_dir=str(begun.path)).path == there
    assert find_run(str(begun.journal)) == begun, "its own journal, by name"
    again = tmp_path / "again"
    again.mkdir()
    (again / "journal.jsonl").write_text("{}\n")
    continued.point(begun.path, again)
    assert find_run("r1").path == again
    continued.forget(begun.path)
    assert find_run("r1") == begun


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user's directory")
def test_a_link_to_somebody_elses_directory_is_not_followed(home: Path, tmp_path: Path) -> None:
    begun = started("r1")
    there = tmp_path / "there"
    there.mkdir()
    (there / "journal.jsonl").write_text("{}\n")
    continued.point(begun.path, there)
    os.chown(there, 12345, -1)
    assert find_run("r1") == begun


def test_an_id_means_the_registered_run_before_a_directory(home: Path, tmp_path: Path) -> None:
    started("r1")
    (tmp_path / "r1").mkdir()
    assert find_run("r1").path == home / "runs" / "r1"


def test_no_run_yet_teaches() -> None:
    with pytest.raises(ConfigError, match=r"no run yet in .*home\. Try: everstep demo"):
        find_run()
    with pytest.raises(ConfigError, match=r"no run 'r9'.*There is none yet\. Try: everstep demo"):
        find_run("r9")


def test_on_a_host_that_only_took_part_in_a_run_it_is_said_where_to_ask(home: Path) -> None:
    (home / "hosts" / "re126-h1-1f").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"This host took part in re126: run this on the first host of that run"):
        find_run()


def test_an_unknown_run_lists_known_ones() -> None:
    started("r1")
    started("r2")
    with pytest.raises(ConfigError, match=r"no run 'r9'.*The last ones are: r1, r2"):
        find_run("r9")
    assert known_runs() == ["r1", "r2"]


def test_a_directory_without_a_journal_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.txt").write_text("x")
    with pytest.raises(ConfigError, match="no run was started there"):
        find_run("empty")
    with pytest.raises(ConfigError, match=r"not a journal\.jsonl"):
        find_run("other.txt")


def test_a_removed_run_directory_is_said_to_be_gone(tmp_path: Path) -> None:
    there = started("r1", str(tmp_path / "there"))
    there.journal.unlink()
    there.path.rmdir()
    with pytest.raises(ConfigError, match="its directory was removed"):
        find_run()


@pytest.mark.parametrize("run", ["", "../x", "a/b", "latest", ".hidden", "x" * 101])
def test_a_bad_id_is_refused(run: str) -> None:
    with pytest.raises(ConfigError, match="run id"):
        make_run_dir(run)


def test_a_directory_that_cannot_be_made_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match=r"cannot make the run directory .*--run-dir"):
        make_run_dir("r1", str(tmp_path / "file" / "below"))


def test_a_home_that_cannot_be_written_does_not_stop_a_run(tmp_path: Path, home: Path) -> None:
    home.write_text("a file where the home should be")
    there = make_run_dir("r1", str(tmp_path / "there"))
    assert f"--run-dir {there.path}" in register("r1", there)


def test_a_new_id_is_valid_and_free(home: Path) -> None:
    run = new_run_id()
    assert make_run_dir(run).path == home / "runs" / run
    assert new_run_id() != run


def test_a_dangling_id_is_not_taken_again(home: Path, tmp_path: Path) -> None:
    started("r1", str(tmp_path / "there"))
    (tmp_path / "there").rename(tmp_path / "moved")
    assert os.path.lexists(home / "runs" / "r1")
    started("r1", str(tmp_path / "moved"))
    assert find_run("r1").path == tmp_path / "moved"


def test_no_controller_without_a_lock() -> None:
    assert started("r1").controller_pid() is None


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o002])
def test_a_run_directory_is_for_its_user_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        assert mode_of(make_run_dir("r1").path) == 0o700
        empty = tmp_path / "empty"
        empty.mkdir()
        assert mode_of(make_run_dir("r2", str(empty)).path) == 0o700
        again = started("r3", str(tmp_path / "again"))
        again.path.chmod(0o755)
        assert mode_of(make_run_dir("r3", str(again.path)).path) == 0o700
    finally:
        os.umask(before)


def test_a_directory_with_other_things_stays_open_to_its_readers_and_ours_in_it_is_closed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir(mode=0o755)
    (tmp_path / "project").chmod(0o755)
    (tmp_path / "project" / "train.py").touch()
    run_dir = make_run_dir("r1", str(tmp_path / "project"))
    assert mode_of(run_dir.path) == 0o755
    assert all(mode_of(run_dir.path / name) == 0o700 for name in ("logs", "code", "errors", "evidence", "nodes"))


def test_a_directory_in_which_everybody_may_write_is_refused_unless_it_is_empty(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "something").touch()
    with pytest.raises(ConfigError, match="every user may write"):
        make_run_dir("r1", str(shared))
    (shared / "something").unlink()
    assert mode_of(make_run_dir("r1", str(shared)).path) == 0o700


@pytest.mark.parametrize(
    "name",
    [
        "launcher.log",
        "controller.log",
        "journal.lock",
        "spec.json.new",
        "token",
        "journal.jsonl.new",
        "progress.json.new",
    ],
)
def test_a_planted_link_is_removed_and_not_written_through(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(victim)
    made = make_run_dir("r1", str(tmp_path / "run"))
    assert not (made.path / name).exists()
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("name", ["logs", "code", "nodes", "errors", "evidence"])
def test_a_linked_folder_in_a_run_directory_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link"):
        make_run_dir("r1", str(tmp_path / "run"))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users")
def test_what_belongs_to_somebody_else_is_refused(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    (tmp_path / "mine").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    os.chown(tmp_path / "link", 65534, 65534, follow_symlinks=False)
    planted = started("r3", str(tmp_path / "planted"))
    (planted.path / "spec.json").touch()
    os.chown(planted.path / "spec.json", 65534, 65534)
    for place in (theirs, tmp_path / "link", planted.path):
        with pytest.raises(ConfigError, match="belongs to"):
            make_run_dir("r1", str(place))
    assert list(theirs.iterdir()) == []
