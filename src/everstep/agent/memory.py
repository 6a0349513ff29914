"""Snapshot memory of this node: made on request, kept over generations, handed to the ranks and to the launcher.

Answers which completed steps each rank could restore here. The worker writes, the agent only makes the memory, reads
its header, and decides what is still needed: the newest arena once both of its buffers are complete, and the one
before it until then. With one snapshot only, a peer that was killed a step earlier would have none in common with it.
"""

import os
from collections.abc import Callable
from pathlib import Path

from everstep.model.facts import Held
from everstep.worker import arena

MAX_ARENAS = 2
"""Per rank: one that holds snapshots, and its successor (another size) until that is complete itself."""

MARGIN_BYTES = 512 << 20
MARGIN_SHARE = 0.05
"""Memory that is left alone: the larger of both. Snapshots that push the training into the out-of-memory killer would
cost more than they save; a larger margin refuses snapshots that would have fitted."""


class ArenaRefusal(Exception):  # noqa: N818 - an answer, not a fault
    def __init__(self, why: str, free_bytes: int | None) -> None:
        super().__init__(why)
        self.why = why
        self.free_bytes = free_bytes


class Memory:
    """Owns every arena's descriptor on this node."""

    def __init__(self, keep: Callable[[int, int], None]) -> None:
        """`keep(rank, fd)` passes a duplicate to the launcher."""
        self._arenas: dict[int, list[int]] = {}
        self._keep = keep

    def adopt(self, rank: int, fd: int) -> None:
        """Take over an arena that the launcher kept."""
        self._arenas.setdefault(rank, []).append(fd)
        self._drop_needless(rank)

    def add(self, rank: int, fd: int) -> None:
        """A new arena, made for a rank that asked for it. The descriptor is ours from now on."""
        self._arenas.setdefault(rank, []).append(fd)
        self._drop_needless(rank)
        self._keep(rank, fd)

    def for_rank(self, rank: int, resume_step: int | None) -> list[int]:
        """What a new worker of `rank` gets, oldest first. Snapshots after the resume step are of a future that is
        done again, so they are invalidated first: they must never be mistaken for the new one's."""
        self._drop_needless(rank)
        fds = self._arenas.get(rank, [])
        for fd in fds:
            arena.invalidate_after(fd, -1 if resume_step is None else resume_step)
        return list(fds)

    def held(self) -> tuple[Held, ...]:
        """The complete snapshots of all ranks, as their headers say now."""
        found = []
        self.drop_needless()
        for rank in sorted(self._arenas):
            steps = {step for fd in self._arenas[rank] for step in arena.held_steps(fd)}
            if steps:
                found.append(Held(rank=rank, steps=tuple(sorted(steps))))
        return tuple(found)

    def close(self) -> None:
        for fds in self._arenas.values():
            for fd in fds:
                os.close(fd)
        self._arenas.clear()

    def drop_needless(self) -> None:
        """Give memory back as soon as a successor is complete."""
        for rank in self._arenas:
            self._drop_needless(rank)

    def _drop_needless(self, rank: int) -> None:
        """An older arena goes when a newer one is complete, or when there are too many."""
        fds = self._arenas.get(rank, [])
        while len(fds) > 1 and (len(fds) > MAX_ARENAS or any(_is_complete(fd) for fd in fds[1:])):
            os.close(fds.pop(0))


def _is_complete(fd: int) -> bool:
    return len(arena.held_steps(fd)) >= arena.NUM_BUFFERS


def make(num_bytes: int, rank: int, world_size: int) -> int:
    """Make an arena if there is memory for it; its descriptor. Touches every page, so it takes a while and runs in a
    thread. Raises ArenaRefusal."""
    if num_bytes <= 0:
        raise ArenaRefusal(f"{num_bytes} bytes is not a size", None)
    free = free_bytes()
    if free is not None and num_bytes > free:
        raise ArenaRefusal(f"needs {num_bytes} bytes, {free} are free", free)
    try:
        return arena.create(num_bytes, rank=rank, world_size=world_size)
    except (OSError, ValueError, OverflowError, arena.ArenaError) as error:
        raise ArenaRefusal(f"the memory could not be made: {error}", free) from error


def free_bytes() -> int | None:
    """What snapshots may take now: the least of the machine's and the cgroup's, less the margin. None: unknown."""
    limits = [limit for limit in (_machine_available(), _cgroup_available()) if limit is not None]
    if not limits:
        return None
    least = min(limits)
    return max(0, least - max(MARGIN_BYTES, int(least * MARGIN_SHARE)))


def _machine_available() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cgroup_available() -> int | None:
    """Room in the memory cgroup of this process and in those above it."""
    from everstep.probes import oom

    cgroup = oom.memory_cgroup(os.getpid())
    if cgroup is None:
        return None
    rooms = []
    for folder in (cgroup.path, *cgroup.path.parents):
        if not folder.is_relative_to(cgroup.root):
            break
        room = cgroup.room_bytes(folder)
        if room is not None:
            rooms.append(room)
    return min(rooms, default=None)
