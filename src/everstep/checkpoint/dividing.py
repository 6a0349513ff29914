"""The division of tensors that all ranks of a node hold alike: which rank keeps which.

A pure function of names, sizes and ranks, so that all ranks come to the same division without communicating. Each
rank's inputs are in its snapshot's skeleton, and are compared when the parts are put together. Used by
`checkpoint.packing` and `worker.snapshots.dividing`.
"""

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, eq=False)
class Division:
    """The division of one state. `ranks`: those that share it; `owners`: of each shared tensor, by its number in the
    state, its name and which rank keeps it."""

    rank: int
    ranks: tuple[int, ...]
    owners: dict[int, tuple[str, int]]

    def is_kept(self, number: int) -> bool:
        shared = self.owners.get(number)
        return shared is None or shared[1] == self.rank


def divide(rank: int, ranks: Iterable[int], names: Mapping[int, str], sizes: Mapping[int, int]) -> Division:
    """Shares of about the same size: the largest tensor first, each to the rank that has least. `names` and `sizes`
    (bytes) by the number of the tensor in this rank's state; names are the same on all ranks, numbers need not be."""
    everyone = tuple(sorted(ranks))
    load = [(0, each) for each in everyone]
    heapq.heapify(load)
    owners = {}
    for number in sorted(names, key=lambda number: (-sizes[number], names[number])):
        num_bytes, owner = heapq.heappop(load)
        owners[number] = names[number], owner
        heapq.heappush(load, (num_bytes + sizes[number], owner))
    return Division(rank, everyone, owners)
