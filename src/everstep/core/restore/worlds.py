"""Snapshots of generations with another number of ranks than there are now. Pure.

A node tells of each snapshot how many ranks there were. What was written by as many as there are now is a rank's own;
the rest can be restored only together, all ranks of that generation, and is kept with the copies of whoever holds it.
"""

from collections.abc import Iterable

from everstep.core.state.schema import State
from everstep.model.facts import Held

MOST_RANKS = 64
"""Every node gets the snapshots of all ranks of the former generation: beyond this that is too much for one memory and
one message, and the persistent tier is what the state is spread from."""


def divided(state: State, told: Iterable[Held]) -> tuple[tuple[Held, ...], tuple[Held, ...]]:
    """Of generations of the present size, and of others."""
    world = _world(state)
    same: list[Held] = []
    other: list[Held] = []
    for held in told:
        (same if held.world_size in (0, world) else other).append(held)
    return tuple(same), tuple(other)


def former(state: State) -> tuple[int, ...]:
    """Other sizes of which a snapshot is in memory, the smallest first."""
    found = {held.world_size for copies in state.copies.values() for held in copies}
    return tuple(sorted(size for size in found if 0 < size <= MOST_RANKS and size != _world(state)))


def _world(state: State) -> int:
    return 0 if state.spec is None else state.spec.world_size
