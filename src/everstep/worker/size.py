"""How many ranks there are, for programs whose number of nodes may change (`--nnodes MIN:MAX`).

    world = everstep.world()
    accumulate = GLOBAL_BATCH // (PER_RANK * world.size)

A generation keeps its size; with another one the program begins anew, so asking once is enough. Outside `everstep run`
the answers are those of the environment that torchrun sets.
"""

import dataclasses
import os

from everstep.worker.link.runtime import current


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Ranks and nodes of this generation, and between what they may change."""

    rank: int
    size: int
    num_nodes: int
    min_size: int
    max_size: int

    @property
    def is_elastic(self) -> bool:
        """Whether a later generation may have another size."""
        return self.min_size < self.max_size


def world() -> World:
    """The size of this generation."""
    size = int(os.environ.get("WORLD_SIZE", "1"))  # asked first: a twin of a program that knows it has no use elsewhere
    runtime = current()
    if runtime is None:
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
        return World(rank=int(os.environ.get("RANK", "0")), size=size, num_nodes=nodes, min_size=size, max_size=size)
    per_node = runtime.world_size // max(1, runtime.num_nodes)
    return World(
        rank=runtime.rank,
        size=runtime.world_size,
        num_nodes=runtime.num_nodes,
        min_size=per_node * runtime.least_nodes,
        max_size=per_node * runtime.most_nodes,
    )


def keep_size(why: str = "") -> None:
    """Declare that this program cannot continue with another number of ranks: a run of `--nnodes MIN:MAX` then waits
    for missing nodes, and takes in no others. Nothing happens outside `everstep run`."""
    runtime = current()
    if runtime is not None and runtime.rank == 0:
        said = f"the program called everstep.keep_size(){f': {why}' if why else ''}"
        runtime.tell({"size_fixed": {"world_size": 0, "why": said[:1000]}})
