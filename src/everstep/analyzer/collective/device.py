"""Match of operations in NCCL's own record with entries of torch's flight record, so that an operation has its group
from torch and its times on the device from NCCL. Pure.

An entry gets an operation where it is the only one of its kind that NCCL queued between this entry and the next one of
the kind. Several at once (a coalesced call) get none: nothing shows which is which.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

_FAMILIES = (
    "allreduce", "allgatherv", "allgather", "reducescatter", "alltoall", "broadcast", "reduce", "gather", "scatter",
)  # fmt: skip
"""In this order: the first that a name begins with is its family."""

_OF_ONE_RANK = ("gather", "scatter")
"""torch's record has the size of the whole buffer on one rank only."""

EARLY_S = 0.0005
"""Two clocks are read to compare the records; they differ by less."""


class DeviceOp(msgspec.Struct, frozen=True, kw_only=True):
    """A collective as NCCL's profiler plug-in recorded it on one rank. Wall clock and seconds."""

    comm: str  # the communicator's hash
    ordinal: int  # the communicator's first collective has 0
    func: str  # "AllReduce"
    num_bytes: int  # of the whole buffer; -1: not known
    queued_at: float
    begin_at: float | None  # its first kernel began; None: not (yet) known
    took_s: float | None  # from the first kernel's begin to the last one's end; None: not (yet) known
    is_open: bool  # what is not known may still come


Queued = tuple[str, int, float]
"""An entry of torch's record: operation, bytes (-1: not known), when it was queued."""


def family(name: str) -> str:
    """Return the family of an operation: "allgather" for torch's `_all_gather_base` and for NCCL's `AllGather`. Empty:
    none that is known."""
    plain = name.lower().replace("_", "")
    return next((each for each in _FAMILIES if plain.startswith(each)), "")


def join(entries: Sequence[Queued], ops: Iterable[DeviceOp]) -> list[DeviceOp | None]:
    """For each entry its operation; None where none can be told."""
    ours: defaultdict[tuple[str, int], list[DeviceOp]] = defaultdict(list)
    for op in sorted(ops, key=lambda op: op.queued_at):
        ours[_kind(op.func, op.num_bytes)].append(op)
    found: list[DeviceOp | None] = [None] * len(entries)
    by_kind: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for number in sorted(range(len(entries)), key=lambda number: entries[number][2]):
        by_kind[_kind(*entries[number][:2])].append(number)
    for kind, numbers in by_kind.items():
        queued = [op.queued_at + EARLY_S for op in ours.get(kind, ())]
        starts = [entries[number][2] for number in numbers]
        # Entries of the same moment are one coalesced call.
        for number, start, end in zip(numbers, starts, [*starts[1:], float("inf")], strict=True):
            first, last = bisect_left(queued, start), bisect_left(queued, end)
            if kind[0] and last - first == 1:
                found[number] = ours[kind][first]
    return found


def _kind(name: str, num_bytes: int) -> tuple[str, int]:
    plain = family(name)
    return plain, -1 if plain in _OF_ONE_RANK else num_bytes
