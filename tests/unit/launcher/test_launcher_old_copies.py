"""Copies of code do not pile up: those of runs that are over go, those that somebody can go back to stay."""

import os

import pytest

from everstep.journal.beside.lock import acquire
from everstep.journal.format import encode_header, encode_record
from everstep.launcher.versions.old_copies import remove_old_copies
from everstep.model.actions import Finish
from everstep.model.events import StopRequested
from everstep.model.record import Header, Record

NUM = 6


def run(runs, number, *actions):
    path = runs / f"r{number}"
    (path / "code" / "start").mkdir(parents=True)
    (path / "code" / "start" / "train.py").touch()
    record = Record(seq=1, at=1.0, gen=0, event=StopRequested(at=1.0, why="", signal=15), actions=actions)
    header = encode_header(Header(run=path.name, everstep_version="1", policy={}))
    (path / "journal.jsonl").write_bytes(header + encode_record(record))
    os.utime(path / "code", (number, number))
    return path


FINISH = Finish(outcome="succeeded", why="x", exit_code=0)


def test_the_newest_of_runs_that_are_over_keep_their_copy(tmp_path):
    paths = [run(tmp_path, number, FINISH) for number in range(NUM)]
    assert remove_old_copies(tmp_path, kept=2) == NUM - 2
    assert [(path / "code").exists() for path in paths] == [False] * (NUM - 2) + [True] * 2
    assert all((path / "journal.jsonl").exists() for path in paths)
    assert remove_old_copies(tmp_path, kept=2) == 0


@pytest.mark.parametrize("why", ["not over", "in use", "torn", "no journal", "garbage", "a link"])
def test_a_run_that_may_be_started_again_keeps_its_copy(tmp_path, why):
    runs = tmp_path / "runs"
    path = run(runs if why != "a link" else tmp_path, 0, *([] if why == "not over" else [FINISH]))
    lock = -1
    if why == "in use":
        lock = acquire(path / "journal.lock")
    elif why == "torn":
        (path / "journal.jsonl").write_bytes((path / "journal.jsonl").read_bytes()[:-1])
    elif why == "no journal":
        (path / "journal.jsonl").unlink()
    elif why == "garbage":
        (path / "journal.jsonl").write_bytes(b"garbage\n")
    elif why == "a link":
        runs.mkdir()
        (runs / "r0").symlink_to(path)
    assert remove_old_copies(runs, kept=0) == 0
    assert (path / "code" / "start" / "train.py").exists()
    if lock >= 0:
        os.close(lock)


def test_no_home_is_no_error(tmp_path):
    assert remove_old_copies(tmp_path / "none") == 0
