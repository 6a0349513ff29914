"""Whether a step that is done again comes out as it did the first time.

A rank that was ahead when the others fell holds the snapshot of a step that all go back before. Its digests are taken
before it is forgotten, and compared when that step is complete again. A difference is no proof of a fault of ours (a
program may sum in another order each time), and is reported: the run goes on with other numbers than without the fault.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from everstep.checkpoint import arena as arenas
from everstep.checkpoint.stored import Stored
from everstep.worker.completeness.restored import tensors_of
from everstep.worker.digests.digest import weigh

MAX_BYTES = 64 << 20
"""Of a snapshot that is read for this: some 20 ms of the restart. A larger one is not compared."""


class Record:
    """The digests of one step as it was."""

    def __init__(self, step: int, weights: Mapping[str, list[int]]) -> None:
        self.step = step
        self._weights = weights

    def difference(self, parts: Mapping[str, Any]) -> str:
        """How these state dicts differ from the record; empty: not at all."""
        told = []
        for name, before in self._weights.items():
            now = Counter(int(weigh(tensor)) for tensor in tensors_of(parts[name])) if name in parts else Counter()
            lost = sum((Counter(before) - now).values())
            if lost:
                told.append(f"{lost} of {len(before)} tensors of {name}")
        return ", ".join(told)


def of_arenas(fds: Iterable[int], after: int, rank: int) -> Record | None:
    """The step after this one, if memory holds it whole; None: it does not."""
    for fd in fds:
        for snapshot in arenas.inspect(fd).snapshots:
            if snapshot.step == after + 1 and snapshot.length <= MAX_BYTES and arenas.inspect(fd).rank == rank:
                return _read(arenas.Arena(fd), snapshot)
    return None


def _read(arena: arenas.Arena, snapshot: arenas.Snapshot) -> Record | None:
    stored = Stored(arena.buffer(snapshot.buffer), snapshot.length, snapshot.skeleton_bytes, snapshot.skeleton_crc)
    if stored.partners:  # a part of it is in other ranks' memory
        return None
    with torch.no_grad():
        weights = {
            name: [int(weigh(tensor)) for tensor in tensors_of(stored.load(name))]
            for name in stored.names
            if "." not in name  # ours
        }
    return Record(snapshot.step, weights)
