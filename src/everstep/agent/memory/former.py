"""Snapshots of generations with another number of ranks, of any node: what the present ones spread state from.

Kept by `Memory` until the ranks of the present size are safe themselves. It is only read from then on.
"""

import os
from collections.abc import Iterator

from everstep.checkpoint import arena, held
from everstep.model.facts import Held


class Former:
    """Owns the descriptors."""

    def __init__(self) -> None:
        self._arenas: dict[tuple[int, int], list[int]] = {}  # (ranks that there were, rank): oldest first

    def __bool__(self) -> bool:
        return bool(self._arenas)

    def add(self, fd: int) -> None:
        """Add an arena under the rank in its header; close it if it has no complete snapshot."""
        contents = arena.inspect(fd)
        if contents.snapshots:
            self._arenas.setdefault((contents.world_size, contents.rank), []).append(fd)
        else:
            os.close(fd)

    def take_back(self, world_size: int) -> list[tuple[int, int]]:
        """(rank, arena) of this size, which is the present one again."""
        keys = [key for key in self._arenas if key[0] == world_size]
        return [(key[1], fd) for key in keys for fd in self._arenas.pop(key)]

    def find(self, world_size: int, rank: int, step: int) -> int | None:
        """The arena that holds this step of the rank."""
        found = [
            (snapshot.generation, fd)
            for fd in self._arenas.get((world_size, rank), ())
            for snapshot in arena.inspect(fd).snapshots
            if snapshot.step == step
        ]
        return max(found)[1] if found else None

    def own(self) -> Iterator[tuple[int, int]]:
        """(rank, arena), newest first."""
        return ((rank, fd) for (_, rank), fds in sorted(self._arenas.items()) for fd in reversed(fds))

    def held(self) -> list[Held]:
        return [each for (_, rank), fds in sorted(self._arenas.items()) for each in held.of_rank(rank, fds)]

    def invalidate_after(self, step: int) -> None:
        for _, fd in self.own():
            arena.invalidate_after(fd, step)

    def close(self) -> None:
        for _, fd in self.own():
            os.close(fd)
        self._arenas.clear()
