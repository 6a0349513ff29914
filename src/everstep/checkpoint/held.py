"""Reports of what memory holds: steps of a rank, and which generation wrote each.

Called by the owners of arenas: agents (their own ranks' and other nodes'), and the launcher's keeper. It reads headers
only, and believes nothing that is not a complete snapshot.
"""

from collections.abc import Iterable

from everstep.checkpoint import arena
from everstep.model.facts import Held


def of_rank(rank: int, fds: Iterable[int]) -> tuple[Held, ...]:
    """Complete snapshots in these arenas, one value for each number of ranks that there were. Of a step that is there
    twice, the newer generation's counts: the other one is of a history that was given up."""
    worlds: dict[int, dict[int, int]] = {}
    for fd in fds:
        contents = arena.inspect(fd)
        newest = worlds.setdefault(contents.world_size, {})
        for snapshot in contents.snapshots:
            newest[snapshot.step] = max(snapshot.generation, newest.get(snapshot.step, snapshot.generation))
    return tuple(_held(rank, world_size, newest) for world_size, newest in worlds.items() if newest)


def _held(rank: int, world_size: int, newest: dict[int, int]) -> Held:
    steps = tuple(sorted(newest))
    generations = tuple(newest[step] for step in steps)
    return Held(rank=rank, steps=steps, generations=generations, world_size=world_size)
