"""A checkpoint that is struck is refused with the reason, by whoever looks there later; nothing of it is removed."""

import os

import pytest
from persisting import Kept, ask, killed_after, snapshot, tensors

from everstep.checkpoint.persist import scan, scan_all, verify
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.exporting import export
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.striking import STRUCK, strike
from everstep.checkpoint.persist.write.writing import write
from everstep.errors import SnapshotError

WHY = "rank 3 computes differently from its replicas since step 12"


def persist(root, step, seed, keep=9):
    fd = snapshot({"model": tensors(seed, (64, 64))}, step)
    try:
        write(str(root), step=step, generation=0, world_size=1, arenas={0: fd})
    finally:
        os.close(fd)
    return commit(str(root), step=step, world_size=1, keep=keep)


def strike_args(root, step, why=WHY):
    return ["strike", "--root", str(root), "--step", str(step), f"--why={why}"]


def test_a_struck_step_is_refused_with_its_reason_and_nothing_is_removed(tmp_path):
    for step in (1, 2):
        persist(tmp_path, step, step)
    files = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert [ask(strike_args(tmp_path, 2))["was_struck"] for _ in range(2)] == [False, True]
    strike(str(tmp_path), step=2, why="another reason")
    assert [one.step for one in scan(str(tmp_path))] == [1]
    assert [(one.step, one.why) for one in scan_all(str(tmp_path)).refused] == [(2, f"struck: {WHY}")]
    assert files < {path for path in tmp_path.rglob("*") if path.is_file()}
    assert [problem.why for problem in verify(str(tmp_path), 2)] == [f"struck: {WHY}"]
    assert not verify(str(tmp_path), 1)
    said: list[str] = []
    export(str(tmp_path), 2, str(tmp_path / "out"), format="torch", on_note=said.append)
    assert any(WHY in line for line in said)
    assert load_into(str(tmp_path / form.step_name(2)), {"model": Kept()}, rank=0, world_size=1).step == 2
    assert "no step 7" in ask(strike_args(tmp_path, 7))["why"]


def test_what_is_written_at_the_same_step_later_is_not_struck(tmp_path):
    for root in (str(tmp_path), "memory://struck"):
        persist(root, 1, 1)
        strike(root, step=1, why=WHY)
        assert not scan(root)
        persist(root, 1, 2)
        assert [one.step for one in scan(root)] == [1]
        assert not verify(root, 1)


def test_a_struck_step_is_none_of_those_that_are_kept_and_does_not_bring_back_what_it_overtook(tmp_path):
    persist(tmp_path, 30, 1)
    persist(tmp_path, 20, 2)  # the job went back
    strike(str(tmp_path), step=20, why=WHY)
    assert not scan(str(tmp_path))
    for step in (21, 22):
        persist(tmp_path, step, step, keep=1)
    assert [one.step for one in scan(str(tmp_path))] == [22]


def test_a_step_that_is_committed_again_stays_struck(tmp_path):
    persist(tmp_path, 1, 1)
    strike(str(tmp_path), step=1, why=WHY)
    commit(str(tmp_path), step=1, world_size=1, keep=3, is_trusted=True)
    assert not scan(str(tmp_path))


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b'{"sum":"0","body":{}}\n'])
def test_a_note_that_cannot_be_read_counts(tmp_path, data):
    persist(tmp_path, 1, 1)
    (tmp_path / form.step_name(1) / STRUCK).write_bytes(data)
    assert "struck, and why cannot be read" in scan_all(str(tmp_path)).refused[0].why


def test_whoever_is_killed_leaves_it_struck_or_not_and_whole(tmp_path):
    persist(tmp_path, 1, 1)
    for wait_s in (0.05, 0.1, 0.2, 0.4):
        killed_after(strike_args(tmp_path, 1), (), wait_s)
        assert load_into(str(tmp_path / form.step_name(1)), {"model": Kept()}, rank=0, world_size=1).step == 1
        found = scan_all(str(tmp_path))
        assert [one.why for one in found.refused] in ([], [f"struck: {WHY}"])
        assert len(found.checkpoints) + len(found.refused) == 1
    assert ask(strike_args(tmp_path, 1))["why"] == ""
    assert not scan(str(tmp_path))


def test_a_step_that_is_not_there_is_not_struck(tmp_path):
    with pytest.raises(SnapshotError, match="no step 4"):
        strike(str(tmp_path), step=4, why=WHY)
    assert not list(tmp_path.iterdir())
