"""The choice of the snapshot to seal next, when the copying thread has nothing to copy.

A large state is not summed up within one step: its sums are kept when the next copy interrupts them, and resumed
afterwards, for as long as the snapshot is there. One is finished before a newer one is begun, because the newest is
overwritten just as soon; steps that stay for long (trusted, an anchor, being persisted, or waiting for their digest)
come first. Pure bookkeeping. Called by `worker.snapshots.copying`, with its lock held.
"""

import dataclasses
from collections.abc import Callable

from everstep.checkpoint import arena as arenas

_LASTING = (arenas.PIN_TRUSTED, arenas.PIN_SPARE, arenas.PIN_PERSIST)
"""The pin of what is copied to a peer moves on with every step: nothing would ever be finished."""


@dataclasses.dataclass(slots=True, eq=False)
class Unsealed:
    """A complete snapshot, and the sums of its first pieces."""

    arena: arenas.Arena
    snapshot: arenas.Snapshot
    table: bytearray = dataclasses.field(default_factory=bytearray)


class Sealing:
    """Those that are complete and not sealed."""

    def __init__(self, is_candidate: Callable[[int], bool]) -> None:
        self._is_candidate = is_candidate
        self._waiting: list[Unsealed] = []

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def add(self, arena: arenas.Arena, snapshot: arenas.Snapshot) -> None:
        self._waiting.append(Unsealed(arena, snapshot))
        self._forget_gone()

    def next(self) -> Unsealed | None:
        """It stays until it is `done`."""
        self._forget_gone()
        return max(self._waiting, key=self._urgency, default=None)

    def done(self, entry: Unsealed) -> None:
        """It is sealed, or cannot be."""
        if entry in self._waiting:
            self._waiting.remove(entry)

    def _urgency(self, entry: Unsealed) -> tuple[bool, bool, int]:
        step, pins = entry.snapshot.step, arenas.pins(entry.arena.fd)
        stays = self._is_candidate(step) or any(pins[which] == step for which in _LASTING)
        return stays, bool(entry.table), step

    def _forget_gone(self) -> None:
        self._waiting = [entry for entry in self._waiting if entry.snapshot in entry.arena.snapshots()]
