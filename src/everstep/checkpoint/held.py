"""What memory holds, in the form in which it is told: steps of a rank, and which generation wrote each.

Called by whoever owns arenas: agents (their own ranks' and other nodes'), and the launcher's keeper. It reads headers
only, and believes nothing that is not a complete snapshot.
"""

from collections.abc import Iterable

from everstep.checkpoint import arena
from everstep.model.facts import Held


def of_rank(rank: int, fds: Iterable[int]) -> Held | None:
    """Complete snapshots in these arenas; None when there is none. Of a step that is there twice, the newer
    generation's counts: the other one is of a history that was given up."""
    newest: dict[int, int] = {}
    for fd in fds:
        for snapshot in arena.inspect(fd).snapshots:
            newest[snapshot.step] = max(snapshot.generation, newest.get(snapshot.step, snapshot.generation))
    if not newest:
        return None
    steps = tuple(sorted(newest))
    return Held(rank=rank, steps=steps, generations=tuple(newest[step] for step in steps))
