"""All-to-all between the ranks of a node, and all-gather with a neighbour: does what is sent arrive, bit by bit?

Only the correctness and the arrival of the data decide. The rate is reported and compared with nothing: what is usual
between these machines is unknown here, and an invented bound would evict sound ones.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from everstep.preflight.examination.meeting import Meeting
from everstep.preflight.examination.request import Request, Said

SIZES = (1 << 10, 1 << 20)
"""Numbers of four bytes that a rank sends at once: one message each of latency's size and of bandwidth's."""

_REPEATS = 3
_SPREAD, _SALT = -1640531535, 40503  # Knuth's multiplicative hash, as a signed number of 32 bits

Exchange = Callable[[Meeting, torch.device, int], tuple[set[int], float]]
"""With so many numbers: ranks whose data came wrong, and seconds."""


def examine(request: Request, meeting: Meeting, device: torch.device, exchange: Exchange) -> Said:
    """Raises Broken, Absent, Unreachable."""
    wrong: set[int] = set()
    took: list[float] = []
    for size in SIZES:
        for _ in range(_REPEATS):
            found, took_s = exchange(meeting, device, size)
            wrong |= found
            took += [took_s] if size == SIZES[-1] else []
    meeting.tell(sorted(wrong))
    words: dict[int, list[int]] = meeting.hear()
    accused = {rank for found in words.values() for rank in found}
    name = str(request.kind)
    if accused:
        saw = next(rank for rank, found in words.items() if found)
        whose = ", ".join(request.nodes_of(accused))
        why = f"{name}: what {whose} sent arrived with other bits (seen by {request.nodes_of([saw])[0]})"
        return Said(passed=False, why=why, blames=request.nodes_of(accused))
    rate = SIZES[-1] * 4 * (request.world_size - 1) / statistics.median(took) / 1e9
    where = f"{request.world_size} ranks of {', '.join(request.group)}"
    why = f"{name} between {where}: all bits right; {rate:.2f} GB/s per rank, which is compared with nothing"
    return Said(passed=True, why=why)


def all_to_all(meeting: Meeting, device: torch.device, size: int) -> tuple[set[int], float]:
    """Every rank sends other numbers to every other."""
    world, mine = meeting.world_size, meeting.rank
    share = max(1, size // world)
    sent = torch.cat([_numbers(share, mine * world + other, device) for other in range(world)])
    got = torch.empty_like(sent)
    took_s = _timed(meeting, device, lambda: dist.all_to_all_single(got, sent, async_op=True))
    return _wrong(got.split(share), [rank * world + mine for rank in range(world)], device), took_s


def all_gather(meeting: Meeting, device: torch.device, size: int) -> tuple[set[int], float]:
    """Every rank sends its numbers to all others."""
    sent = _numbers(size, meeting.rank, device)
    got = [torch.empty_like(sent) for _ in range(meeting.world_size)]
    took_s = _timed(meeting, device, lambda: dist.all_gather(got, sent, async_op=True))
    return _wrong(got, range(meeting.world_size), device), took_s


def _timed(meeting: Meeting, device: torch.device, start: Callable[[], Any]) -> float:
    meeting.exchange(lambda: dist.all_reduce(torch.zeros(1, device=device), async_op=True))  # all are there
    began = time.perf_counter()
    meeting.exchange(start)
    return time.perf_counter() - began


def _wrong(got: Sequence[torch.Tensor], salts: Sequence[int], device: torch.device) -> set[int]:
    """By sender."""
    return {
        rank
        for rank, (part, salt) in enumerate(zip(got, salts, strict=True))
        if not torch.equal(part, _numbers(len(part), salt, device))
    }


def _numbers(count: int, salt: int, device: torch.device) -> torch.Tensor:
    """Integers, which are compared bit by bit; all patterns of bits occur."""
    return torch.arange(count, dtype=torch.int32, device=device).mul_(_SPREAD).add_(salt * _SALT)
