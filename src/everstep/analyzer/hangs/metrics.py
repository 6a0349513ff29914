"""The idle rank among the busy, the busy one among the idle. Pure.

The weakest of the four kinds of evidence: it shows which rank differs, not why. While ranks wait in NCCL their GPUs
show 100 %, so the idle one is the culprit; while ranks wait in gloo their CPUs idle, so the busy one is.
"""

from collections.abc import Mapping

import msgspec

from everstep.analyzer.observations.records import RankLoad

BUSY_SHARE = 0.5
"""A rank that works or spins uses a processor or GPU nearly whole; half leaves room for a shared machine."""
IDLE_SHARE = 0.1
"""A rank that waits in a system call uses none; its logging and heartbeat threads some percent."""
MAX_ODD_SHARE = 0.25
"""More odd ones than a quarter are no exception: then the job has two kinds of ranks."""
MIN_KNOWN = 3
"""With two ranks neither is the odd one."""


class OddOnes(msgspec.Struct, frozen=True, kw_only=True):
    ranks: tuple[int, ...]
    source: str  # "processor", "GPU", "traffic"
    idle: bool  # idle among the busy; else busy among the idle
    says: str


def odd_ones_out(loads: Mapping[int, RankLoad]) -> list[OddOnes]:
    """One entry per source that shows a clear difference. Ranks without a figure are left out, not taken as idle."""
    sources = {
        "processor": {r: load.cpu_share for r, load in loads.items() if load.cpu_share is not None},
        "GPU": {r: load.gpu_share for r, load in loads.items() if load.gpu_share is not None},
        "traffic": _relative(
            {r: load.traffic_bytes_s for r, load in loads.items() if load.traffic_bytes_s is not None}
        ),
    }
    return [odd for source, shares in sources.items() if (odd := _odd(source, shares))]


def _relative(traffic: dict[int, float]) -> dict[int, float]:
    """Traffic has no natural whole: the busiest rank is one."""
    most = max(traffic.values(), default=0.0)
    return {rank: value / most for rank, value in traffic.items()} if most > 0 else {}


def _odd(source: str, shares: Mapping[int, float]) -> OddOnes | None:
    busy = sorted(rank for rank, share in shares.items() if share >= BUSY_SHARE)
    idle = sorted(rank for rank, share in shares.items() if share <= IDLE_SHARE)
    if len(shares) < MIN_KNOWN or not busy or not idle:
        return None
    few, many = (idle, busy) if len(idle) <= len(busy) else (busy, idle)
    if len(few) > max(1, len(shares) * MAX_ODD_SHARE) or len(few) + len(many) < len(shares) * 0.9:
        return None
    is_idle = few is idle
    typical = sorted(shares[rank] for rank in many)[len(many) // 2]
    says = f"{source} use {shares[few[0]]:.0%}, while {len(many)} others show {typical:.0%}"
    return OddOnes(ranks=tuple(few), source=source, idle=is_idle, says=says)
