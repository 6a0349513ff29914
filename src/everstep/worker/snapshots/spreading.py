"""Restores the state that a generation of another size has left in memory into the objects of a State.

The snapshots of all its ranks are at hand. They become a checkpoint in this process's memory, which is read like one of
the persistent tier: the same names, the same blocks, the same refusals, so a job that continues with fewer ranks has
exactly what a job of that size would have read from disk. Called by `restoring`, once. Raises SnapshotError.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from everstep.checkpoint import arena as arenas
from everstep.errors import SnapshotError
from everstep.worker.process.signals import came_from_signal

if TYPE_CHECKING:
    from everstep.checkpoint.persist.read.giving import Loaded
    from everstep.wire.frames import RankTells


class Runtime(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int
    world_size: int
    generation: int
    resume_step: int | None
    former_world: int
    former: dict[int, int]

    def tell(self, frame: "RankTells") -> None: ...


class DamagedSourceError(Exception):
    """One of the snapshots is not what was written."""

    def __init__(self, rank: int, why: str) -> None:
        super().__init__(why)
        self.rank = rank


def from_former(runtime: Runtime, objects: Mapping[str, Any]) -> "Loaded":
    """Raises SnapshotError where the state cannot be spread, DamagedSourceError, OSError."""
    from everstep.checkpoint.persist.read import reading
    from everstep.checkpoint.persist.store.committing import commit
    from everstep.checkpoint.persist.store.storage import open_storage
    from everstep.checkpoint.persist.write.writing import write

    step = runtime.resume_step
    assert step is not None, "sent together with the size"
    root = f"memory://everstep-{os.getpid()}-{runtime.generation}"
    try:
        world_size = runtime.former_world
        _write(runtime, lambda: write(root, step=step, generation=0, world_size=world_size, arenas=runtime.former))
        path = commit(root, step=step, world_size=world_size, keep=1).path
        try:
            return reading.load_into(path, objects, rank=runtime.rank, world_size=runtime.world_size)
        except SnapshotError as error:
            tell_fixed(runtime, world_size, str(error))
            raise
    finally:
        with suppress(OSError):
            open_storage(root).remove("")


def tell_fixed(runtime: Runtime, world_size: int, why: str) -> None:
    """Report that the program can continue with this number of ranks only."""
    runtime.tell({"size_fixed": {"world_size": world_size, "why": why[:1000]}})


def _write(runtime: Runtime, write: Callable[[], object]) -> None:
    try:
        write()
    except SnapshotError as error:
        for rank, fd in runtime.former.items():
            snapshots = [each for each in arenas.inspect(fd).snapshots if each.step == runtime.resume_step]
            damage = arenas.verify(fd, snapshots[-1]) if snapshots else "it is not there any more"
            if damage:
                raise DamagedSourceError(rank, damage) from error
        raise
    except Exception as error:
        if came_from_signal(error):
            raise
        raise SnapshotError(f"step {runtime.resume_step} cannot be spread: {type(error).__name__}: {error}") from error
