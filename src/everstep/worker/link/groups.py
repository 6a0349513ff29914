"""The process groups that this rank is in, as torch's own book-keeping has them. For the watch thread."""

import sys
from typing import Any

MAX_GROUP = 4096
"""Larger groups are not listed; ranks that entered their collectives are then taken for their members."""

MAX_NAMED = 1 << 17
"""Ranks in all groups together."""


def groups(*, smaller_than_job: bool) -> list[tuple[str, str, list[int]]]:
    """Name, title, and global ranks in order, of each group with two or more ranks. None where torch's book-keeping has
    another form than this knows: the groups are not declared then."""
    module: Any = sys.modules.get("torch.distributed.distributed_c10d")
    found: list[tuple[str, str, list[int]]] = []
    try:
        world = module._world
        size = max((len(ranks) for ranks in world.pg_group_ranks.values()), default=0)
        for group, ranks in list(world.pg_group_ranks.items()):
            name = world.pg_names.get(group)
            if name is not None and 1 < len(ranks) <= MAX_GROUP and not (smaller_than_job and len(ranks) == size):
                numbers = sorted(int(rank) for rank in ranks)  # they may be NumPy's
                found.append((str(name), str(getattr(group, "group_desc", "")), numbers))
    except Exception:
        return []
    return found if sum(len(ranks) for _, _, ranks in found) <= MAX_NAMED else []
