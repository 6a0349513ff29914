"""Snapshot memory of this node: made on request, kept over generations, handed to the ranks and to the launcher.

Answers which completed steps each rank could restore here. The worker writes, the agent only makes the memory, reads
its header, and decides what is still needed: the newest arena once two of its buffers are complete, and the one
before it until then. With one snapshot only, a peer that was killed a step earlier would have none in common with it.
What has to stay beyond that is pinned: trusted, being copied to another node, being persisted.
"""

import os
from collections.abc import Callable, Sequence

from everstep.agent.memory.former import Former
from everstep.checkpoint import arena, held
from everstep.linux import proc
from everstep.model.facts import Held

MAX_ARENAS = 2
"""Per rank: one that holds snapshots, and its successor (another size) until that is complete itself."""

MARGIN_BYTES = 512 << 20
MARGIN_SHARE = 0.05
"""Memory that is left alone: the larger of both. Snapshots that push the training into the out-of-memory killer would
cost more than they save; a larger margin refuses snapshots that would have fitted."""


FORMER_S = 30.0
"""Snapshots of another number of ranks stay for so long after this node does without them: others may be later."""

_LEAST_BUFFERS = {arena.PIN_TRUSTED: 3, arena.PIN_SPARE: 4}
"""Buffers that an arena must have for pins that stay for many steps."""


class ArenaRefusal(Exception):  # noqa: N818 - an answer, not a fault
    def __init__(self, why: str, free_bytes: int | None) -> None:
        super().__init__(why)
        self.why = why
        self.free_bytes = free_bytes


class Memory:
    """Owns every arena's descriptor on this node."""

    def __init__(
        self, keep: Callable[[int, int], None], tell_ranks: Callable[[Sequence[int]], None] = lambda _: None
    ) -> None:
        """`keep(rank, fd)` passes a duplicate to the launcher; `tell_ranks` reports to it which ranks run here."""
        self._arenas: dict[int, list[int]] = {}
        self._pins: dict[tuple[int, int], int] = {}  # (rank, which): step; for arenas that are yet to come
        self._ranks: tuple[int, ...] = ()  # ranks that run here, or ran last
        self._trusted: int | None = None  # as last reported, also if that was before the ranks were known
        self._former = Former()
        self._safe_since: float | None = None  # the ranks that run here have snapshots, and copies, of their own
        self._keep = keep
        self._tell_ranks = tell_ranks

    def adopt(self, rank: int, fd: int) -> None:
        """Take over an arena that the launcher kept."""
        world_size = arena.inspect(fd).world_size
        for other in [each for each in self.arenas_of(rank) if arena.inspect(each).world_size != world_size]:
            self._arenas[rank].remove(other)
            self._former.add(other)
        self._arenas.setdefault(rank, []).append(fd)
        self._drop_needless(rank)

    def add_former(self, fd: int) -> None:
        """Add what was fetched from a generation with another number of ranks. The descriptor is ours now."""
        self._former.add(fd)

    def find_former(self, world_size: int, rank: int, step: int) -> int | None:
        """The arena with this step of a rank of such a generation. It may be closed at the next turn of the loop."""
        return self._former.find(world_size, rank, step)

    def add(self, rank: int, fd: int) -> None:
        """A new arena, made for a rank that asked for it or for what was fetched. The descriptor is ours now."""
        for (pinned, which), step in self._pins.items():
            if pinned == rank:
                _pin(fd, which, step)
        self._arenas.setdefault(rank, []).append(fd)
        self._drop_needless(rank)
        self._keep(rank, fd)

    def arenas_of(self, rank: int) -> tuple[int, ...]:
        """Oldest first. They may be closed at the next turn of the loop: duplicate one to keep it longer."""
        return tuple(self._arenas.get(rank, ()))

    def begin(self, ranks: Sequence[int], resume_step: int | None, world_size: int = 0) -> None:
        """These ranks run here from now on, and resume after `resume_step`. Snapshots after it are of a future that is
        done again, so they are invalidated first: they must never be mistaken for the new one's. `world_size`: what was
        written with another world size is put aside; 0: there is none."""
        if world_size:
            self._put_aside(world_size)
        newest = -1 if resume_step is None else resume_step
        self._ranks = tuple(ranks)
        self._tell_ranks(ranks)
        if self._trusted is not None and self._trusted > newest:
            self._trusted = None
        for rank in ranks:
            for which in (arena.PIN_BACKUP, arena.PIN_PERSIST, arena.PIN_SPARE):
                self.pin(rank, which, None)
            for fd in self.arenas_of(rank):
                arena.invalidate_after(fd, newest)
                trusted = arena.pins(fd)[arena.PIN_TRUSTED]
                if trusted is not None and trusted > newest:
                    arena.pin(fd, arena.PIN_TRUSTED, None)
            if self._pins.get((rank, arena.PIN_TRUSTED), -1) > newest:
                del self._pins[rank, arena.PIN_TRUSTED]
            if self._trusted is not None:
                self.pin(rank, arena.PIN_TRUSTED, self._trusted)
        self._former.invalidate_after(newest)

    def _put_aside(self, world_size: int) -> None:
        self._safe_since = None
        other = [
            (rank, fd)
            for rank, fds in self._arenas.items()
            for fd in fds
            if arena.inspect(fd).world_size not in (0, world_size)
        ]
        returned = self._former.take_back(world_size)
        for rank, fd in other:
            self._arenas[rank].remove(fd)
            self._former.add(fd)
        if other:  # of ranks that there may not be any more
            self._pins.clear()
        for rank, fd in returned:
            self._arenas.setdefault(rank, []).insert(0, fd)

    def let_former_go(self, now: float, *, are_copied: bool) -> None:
        """Give up what was put aside, when every rank that runs here has had snapshots of its own for a while, and
        copies of them where those are made: by then all nodes have."""
        is_safe = are_copied and all(any(map(_is_complete, self.arenas_of(rank))) for rank in self._ranks)
        if not self._former or not is_safe:
            self._safe_since = None
        elif self._safe_since is None:
            self._safe_since = now
        elif now - self._safe_since > FORMER_S:
            self._former.close()

    def for_rank(self, rank: int) -> list[int]:
        """List the arenas that a new worker of `rank` gets, oldest first."""
        self._drop_needless(rank)
        return list(self._arenas.get(rank, []))

    def pin(self, rank: int, which: int, step: int | None) -> None:
        """Keep this step of the rank, also in memory that it gets later. None: nothing any more."""
        self._pins.pop((rank, which), None)
        if step is not None:
            self._pins[rank, which] = step
        for fd in self.arenas_of(rank):
            _pin(fd, which, step)

    def pinned(self, rank: int, which: int) -> int | None:
        return self._pins.get((rank, which))

    def trust(self, step: int) -> None:
        """Pin the step for the ranks that run here, or will once `begin` lists them; others' arenas may be here as
        well, and in use elsewhere."""
        self._trusted = step
        for rank in self._ranks:
            self.pin(rank, arena.PIN_TRUSTED, step)

    def find(self, rank: int, step: int) -> tuple[int, arena.Snapshot] | None:
        """The complete snapshot of this step, of the newest generation that wrote it, and where it is."""
        found = [
            (fd, snapshot)
            for fd in self.arenas_of(rank)
            for snapshot in arena.inspect(fd).snapshots
            if snapshot.step == step
        ]
        return max(found, key=lambda each: each[1].generation, default=None)

    def own(self) -> list[tuple[int, int]]:
        """(rank, arena) of all ranks, newest arena first, to be served to other nodes."""
        mine = [(rank, fd) for rank, fds in sorted(self._arenas.items()) for fd in reversed(fds)]
        return [*mine, *self._former.own()]

    def held(self) -> tuple[Held, ...]:
        """The complete snapshots of all ranks, as their headers say now."""
        self.drop_needless()
        found = (held.of_rank(rank, self._arenas[rank]) for rank in sorted(self._arenas))
        return (*(each for of_rank in found for each in of_rank), *self._former.held())

    def close(self) -> None:
        for fds in self._arenas.values():
            for fd in fds:
                os.close(fd)
        self._arenas.clear()
        self._former.close()

    def drop_needless(self) -> None:
        """Give memory back as soon as a successor is complete."""
        for rank in self._arenas:
            self._drop_needless(rank)

    def _drop_needless(self, rank: int) -> None:
        """An older arena goes when a newer one is complete and nothing in it is pinned, or when there are too many."""
        fds = self._arenas.get(rank, [])
        while len(fds) > 1 and (len(fds) > MAX_ARENAS or (_is_needless(fds[0]) and any(map(_is_complete, fds[1:])))):
            os.close(fds.pop(0))


def _is_complete(fd: int) -> bool:
    return len(arena.held_steps(fd)) >= arena.NUM_BUFFERS


def _pin(fd: int, which: int, step: int | None) -> None:
    """Pin a step, unless that would leave no room for the newest and for the one that is written: with two buffers
    there is no trust, with three no anchor. Otherwise no snapshot could ever be taken again."""
    if step is not None and arena.inspect(fd).num_buffers < _LEAST_BUFFERS.get(which, 0):
        return
    arena.pin(fd, which, step)


def _is_needless(fd: int) -> bool:
    return not set(arena.held_steps(fd)) & set(arena.pins(fd))


def make(
    num_bytes: int,
    rank: int,
    world_size: int,
    num_buffers: int = arena.NUM_BUFFERS,
    num_present: int = arena.MAX_BUFFERS,
    promised_bytes: int = 0,
) -> int:
    """Make an arena if there is memory for it, beside what is promised to others; its descriptor. Touches every page of
    the buffers that are to be present, so it takes a while and runs in a thread. Raises ArenaRefusal."""
    if num_bytes <= 0:
        raise ArenaRefusal(f"{num_bytes} bytes is not a size", None)
    free = free_bytes()
    if free is not None and num_bytes > free - promised_bytes:
        raise ArenaRefusal(f"needs {num_bytes} bytes, {free - promised_bytes} are free", free - promised_bytes)
    try:
        return arena.create(
            num_bytes, rank=rank, world_size=world_size, num_buffers=num_buffers, num_present=num_present
        )
    except (OSError, ValueError, OverflowError, ZeroDivisionError, arena.ArenaError) as error:
        raise ArenaRefusal(f"the memory could not be made: {error}", free) from error


def free_bytes() -> int | None:
    """Return the bytes that snapshots may take now: the lesser of what the machine and the cgroup have, less the
    margin. None: unknown."""
    limits = [limit for limit in (proc.available_bytes(), _cgroup_available()) if limit is not None]
    if not limits:
        return None
    least = min(limits)
    return max(0, least - max(MARGIN_BYTES, int(least * MARGIN_SHARE)))


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
