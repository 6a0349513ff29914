"""An object store knows no atomic rename of a folder: a commit is killed before each of its operations, and two commit
the same step at once. On fsspec's memory store; `test_persist_s3` goes over HTTP.
"""

import itertools
import os
import threading
from collections.abc import Callable, Iterator

import fsspec
import pytest
from persisting import Kept, snapshot, tensors

from everstep.checkpoint.persist.read.reading import load_into
from everstep.checkpoint.persist.read.verifying import verify
from everstep.checkpoint.persist.store import storage
from everstep.checkpoint.persist.store.committing import commit
from everstep.checkpoint.persist.store.scanning import scan
from everstep.checkpoint.persist.write.writing import write

SIZES = ((9, 9), (3,))


class KilledError(BaseException):
    """Nothing that a process does afterwards happens."""


class Guarded:
    """A filesystem each of whose operations asks first."""

    def __init__(self, inner: object, before: Callable[[str], None]) -> None:
        self._inner = inner
        self._before = before

    def __getattr__(self, name: str) -> object:
        found = getattr(self._inner, name)
        if name not in ("ls", "size", "cat_file", "pipe_file", "modified", "rm", "mv"):
            return found

        def operation(*arguments: object, **options: object) -> object:
            self._before(name)
            return found(*arguments, **options)

        return operation


@pytest.fixture
def root() -> Iterator[str]:
    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket/run"
    fsspec.filesystem("memory").store.clear()


def write_step(root: str, step: int, generation: int = 0, seed: int | None = None) -> None:
    for rank in (0, 1):
        parts = {"model": Kept(tensors(step if seed is None else seed, *SIZES)).state, "own": rank}
        fd = snapshot(parts, step, rank=rank, world_size=2, generation=generation)
        write(root, step=step, generation=generation, world_size=2, arenas={rank: fd})
        os.close(fd)


def guard(monkeypatch: pytest.MonkeyPatch, before: Callable[[str], None]) -> None:
    """Every storage that is opened from now on by this thread's commit."""
    made = storage.UrlStorage.__init__

    def init(self: storage.UrlStorage, root: str) -> None:
        made(self, root)
        self._fs = Guarded(self._fs, before)

    monkeypatch.setattr(storage.UrlStorage, "__init__", init)


def weights(root: str, step: int) -> object:
    kept = Kept()
    load_into(
        next(one.path for one in scan(root) if one.step == step), {"model": kept, "own": Kept()}, rank=1, world_size=2
    )
    return kept.state["t0"].tolist()


def killed_commit(root: str, monkeypatch: pytest.MonkeyPatch, killed_at: int) -> bool:
    """Whether it was killed before it was done."""
    number = itertools.count()

    def before(_: str) -> None:
        if next(number) >= killed_at:
            raise KilledError

    with monkeypatch.context() as patch:
        guard(patch, before)
        try:
            commit(root, step=2, world_size=2, keep=9)
        except KilledError:
            return True
    return False


def test_a_commit_that_is_killed_before_any_operation_leaves_the_old_steps_and_a_whole_one_or_none(root, monkeypatch):
    seen = set()
    for killed_at in itertools.count():
        fsspec.filesystem("memory").store.clear()
        write_step(root, 1)
        commit(root, step=1, world_size=2, keep=9)
        write_step(root, 2)
        is_killed = killed_commit(root, monkeypatch, killed_at)
        there = [one.step for one in scan(root)]
        assert there in ([1], [1, 2]), "what was committed stays"
        if 2 in there:
            assert verify(root, 2) == []
        seen.add((is_killed, 2 in there))
        assert commit(root, step=2, world_size=2, keep=9).why == "", "the next one finishes it"
        assert verify(root, 2) == []
        if not is_killed:
            break
    assert seen == {(True, False), (True, True), (False, True)}


@pytest.mark.soak
def test_a_step_that_is_done_again_is_the_old_one_or_the_new_one_or_none_but_never_a_mixture(root, monkeypatch):
    old, new = tensors(1, *SIZES)["t0"].tolist(), tensors(50, *SIZES)["t0"].tolist()
    for killed_at in itertools.count():
        fsspec.filesystem("memory").store.clear()
        write_step(root, 1, seed=9)
        commit(root, step=1, world_size=2, keep=9)
        write_step(root, 2, seed=1)
        commit(root, step=2, world_size=2, keep=9)
        write_step(root, 2, generation=1, seed=50)
        is_killed = killed_commit(root, monkeypatch, killed_at)
        there = {one.step for one in scan(root)}
        assert 1 in there
        if 2 in there:
            assert verify(root, 2) == []
            assert weights(root, 2) in (old, new)
        assert commit(root, step=2, world_size=2, keep=9).why == ""
        assert weights(root, 2) == new
        if not is_killed:
            break


def test_two_that_commit_the_same_step_at_once_never_take_it_away(root, monkeypatch):
    """The first one stands still before each of its operations in turn, counts as lost, and goes on when another one
    has committed."""
    for stands_at in itertools.count():
        fsspec.filesystem("memory").store.clear()
        write_step(root, 1)
        stands, goes_on, number = threading.Event(), threading.Event(), itertools.count()
        slow = threading.Thread(target=_commit_quietly, args=(root,))

        def before(_: str, number=number, stands_at=stands_at, stands=stands, goes_on=goes_on, slow=slow) -> None:
            if threading.current_thread() is slow and next(number) == stands_at:
                stands.set()
                assert goes_on.wait(60)

        with monkeypatch.context() as patch:
            guard(patch, before)
            slow.start()
            while not stands.wait(0.01) and slow.is_alive():
                pass
            commit(root, step=1, world_size=2, keep=9)
            goes_on.set()
            slow.join(60)
        assert not slow.is_alive()
        assert [one.step for one in scan(root)] == [1], f"before operation {stands_at}"
        assert verify(root, 1) == []
        if not stands.is_set():
            break


def _commit_quietly(root: str) -> None:
    try:
        commit(root, step=1, world_size=2, keep=9)
    except Exception:  # it may find that the other one was there before
        pass
