"""A commit whose machine stands still between two of its acts, and goes on when another generation has committed.

Each commit is a process of its own that really stops itself (SIGSTOP) right before the act in question, and is woken by
SIGCONT. Nothing of it becomes visible then, nothing of the others' is lost, and it says why.
"""

import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from persisting import Kept, snapshot, tensors

from everstep.checkpoint.persist import scan, scan_all
from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store import committing, retention
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.storage import FolderStorage, UrlStorage, open_storage
from everstep.checkpoint.persist.write.writing import write

RUN = "a-run"
FENCED_OFF = f"SnapshotError: step 40 of generation 0: {committing.fencing.FENCED_OFF}"


def values(step: int, generation: int) -> dict[str, torch.Tensor]:
    return tensors(100 * generation + step, (64, 64))


def written(root: Path, step: int, generation: int) -> None:
    fd = snapshot({"model": values(step, generation)}, step, generation=generation)
    write(str(root), step=step, generation=generation, world_size=1, arenas={0: fd}, run=RUN)
    os.close(fd)


def committed(root: Path, step: int, generation: int, resumed: tuple[tuple[int, int], ...] = (), keep: int = 3) -> Any:
    written(root, step, generation)
    return commit(
        str(root), step=step, world_size=1, keep=keep, run=RUN, generation=generation, resumed=((0, -1), *resumed)
    )


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def before(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> Callable[[], None]:
    """In the process that calls it: it stops right before this act."""

    def patch() -> None:
        real = getattr(owner, name)

        def stopping(*arguments: Any, **named: Any) -> Any:
            if when(*arguments):
                setattr(owner, name, real)
                stop()
            return real(*arguments, **named)

        setattr(owner, name, stopping)

    return patch


@contextlib.contextmanager
def standing_still(patch: Callable[[], None], act: Callable[[], object]) -> Iterator[Callable[[], str]]:
    """A process that does `act` and has stopped itself in the middle. What is given wakes it up, waits for its end, and
    returns what went wrong for it; empty: nothing."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            patch()
            act()
            os.write(writing, b"done")
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), os.read(reading, 1000)
    is_over = False

    def woken() -> str:
        nonlocal is_over
        os.kill(pid, signal.SIGCONT)
        os.waitpid(pid, 0)
        is_over = True
        return os.read(reading, 1000).decode().removeprefix("done")

    try:
        yield woken
    finally:
        os.close(reading)
        if not is_over:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def seen(root: Path | str) -> list[tuple[int, bool]]:
    """What a run that starts now would be offered: steps, and whether each is the new generation's."""
    found = []
    for one in scan(str(root)):
        kept = Kept()
        load_into(one.path, {"model": kept}, rank=0, world_size=1)
        found.append((one.step, torch.equal(kept.state["t0"], values(one.step, 1)["t0"])))
        assert verify(str(root), one.step) == []
    return found


def drafts(root: Path) -> list[str]:
    """What lies among the drafts, whatever it is."""
    return sorted(path.name for path in (root / ".writing").iterdir())


ACTS = {
    "before it looks for parts": before(committing, "_whole_draft"),
    "between the manifest and the last look": before(committing.fencing, "refuse_if_overtaken"),
    "between the last look and the renaming": before(FolderStorage, "move_folder"),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("again", [30, 50], ids=["older", "newer"])
def test_a_commit_of_a_generation_that_is_over_does_not_become_visible(tmp_path, act, again):
    """Step 40 of generation 0 is on its way; generation 1 resumes after step 25, and commits before or beyond it."""
    committed(tmp_path, 20, 0)
    written(tmp_path, 40, 0)
    late = lambda: commit(str(tmp_path), step=40, world_size=1, keep=3, run=RUN, generation=0)  # noqa: E731
    with standing_still(ACTS[act], late) as woken:
        committed(tmp_path, again, 1, ((1, 25),))
        expected = seen(tmp_path)
        assert expected == [(20, False), (again, True)]
        assert woken() in (FENCED_OFF, f"SnapshotError: no part of step 40 is in {tmp_path}")
        assert seen(tmp_path) == expected
    committed(tmp_path, 60, 1, ((1, 25),))
    assert drafts(tmp_path) == []


def test_the_same_step_of_a_later_generation_is_not_replaced(tmp_path):
    """The other one stands still in the moment in which the step of a run before it is moved aside for its own."""
    committed(tmp_path, 40, 0)
    written(tmp_path, 40, 0)
    is_target = lambda path, _: path.name == "step-0000000040"  # noqa: E731
    late = lambda: commit(str(tmp_path), step=40, world_size=1, keep=3, run=RUN, generation=0)  # noqa: E731
    with standing_still(before(Path, "rename", is_target), late) as woken:
        committed(tmp_path, 40, 1, ((1, 25),))
        assert seen(tmp_path) == [(40, True)]
        assert "fenced it off" in woken()
        assert seen(tmp_path) == [(40, True)]


def test_retention_that_stood_still_does_not_remove_a_step_that_was_made_since(tmp_path):
    for step in (10, 20):
        committed(tmp_path, step, 0)
    written(tmp_path, 30, 0)
    late = lambda: commit(str(tmp_path), step=30, world_size=1, keep=1, run=RUN, generation=0)  # noqa: E731
    with standing_still(before(retention, "_is_still"), late) as woken:
        committed(tmp_path, 10, 1, ((1, 5),))  # the job went back a long way
        assert seen(tmp_path) == [(10, True)]
        assert woken() == ""
        assert seen(tmp_path) == [(10, True)]


def test_a_part_that_is_written_too_late_is_no_checkpoint(tmp_path):
    """And what it leaves behind goes with the next commit."""
    fd = snapshot({"model": values(40, 0)}, 40)
    late = lambda: write(str(tmp_path), step=40, generation=0, world_size=1, arenas={0: fd}, run=RUN)  # noqa: E731
    is_part = lambda _, name, *__: name.endswith("rank-00000.json")  # noqa: E731
    with standing_still(before(FolderStorage, "write", is_part), late) as woken:
        committed(tmp_path, 30, 1, ((1, 25),))
        woken()
        assert seen(tmp_path) == [(30, True)]
    os.close(fd)
    committed(tmp_path, 50, 1, ((1, 25),))
    assert seen(tmp_path) == [(30, True), (50, True)]
    assert drafts(tmp_path) == []


@pytest.mark.parametrize("is_url", [True, False])
def test_readers_leave_out_what_a_run_went_back_on_however_it_came_there(tmp_path, is_url):
    """As in an object store, where moving a folder is many acts: the late one is simply there."""
    root = f"file://{tmp_path}" if not is_url else f"local://{tmp_path}"
    aside = tmp_path.parent / f"{tmp_path.name}-aside"
    committed(tmp_path, 20, 0)
    committed(tmp_path, 40, 0)
    shutil.move(tmp_path / "step-0000000040", aside)
    committed(tmp_path, 50, 1, ((1, 25),))
    shutil.move(aside, tmp_path / "step-0000000040")
    found = scan_all(root)
    assert [one.step for one in found.checkpoints] == [20, 50]
    assert found.refused[0].why == "of a history that is void: generation 1 of its run resumed after step 25"
    done = committed(tmp_path, 60, 1, ((1, 25),), keep=2)
    assert [step for step, is_new in seen(tmp_path) if is_new] == [50, 60], (
        "it is not counted among those that are kept"
    )
    assert any("history that is void" in note for note in done.notes)


def test_what_was_done_before_the_job_went_back_stays(tmp_path):
    """Whoever committed it, and however late: it is of the history that the job is in."""
    for step in (10, 20):
        committed(tmp_path, step, 0)
    committed(tmp_path, 50, 1, ((1, 25),))
    assert [one.step for one in scan(str(tmp_path))] == [10, 20, 50]


def test_a_run_that_has_the_name_of_an_earlier_one_is_not_taken_for_its_past(tmp_path):
    committed(tmp_path, 100, 3, ((3, 35),))
    committed(tmp_path, 200, 0)
    assert [one.step for one in scan(str(tmp_path))] == [100, 200]


def test_other_runs_drafts_and_the_own_generations_are_left_alone(tmp_path):
    fd = snapshot({"model": values(40, 0)}, 40)
    for run, generation in (("another", 0), (RUN, 1), (RUN, 0)):
        write(str(tmp_path), step=40, generation=generation, world_size=1, arenas={0: fd}, run=run)
    os.close(fd)
    committing.fencing.fence(open_storage(str(tmp_path)), RUN, 1)
    assert [name[16:19] for name in drafts(tmp_path)] == ["g0-", "g1-"]


def test_an_object_store_fences_too(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    root = "memory://fencing"
    fd = snapshot({"model": values(40, 0)}, 40)
    write(root, step=40, generation=0, world_size=1, arenas={0: fd}, run=RUN)
    os.close(fd)
    try:
        committing.fencing.fence(UrlStorage(root), RUN, 1)
        with pytest.raises(Exception, match="no part of step 40"):
            commit(root, step=40, world_size=1, keep=3, run=RUN, generation=0)
    finally:
        fsspec.filesystem("memory").rm("/fencing", recursive=True)
