"""How much each rank does right now: CPU, network, GPU, over a short interval. For evidence.

Two looks with a pause between them; what is slow to ask (netlink, NVML) is asked in threads that may be lost. Every
source without an answer is listed with its reason, and its figure is missing, not 0.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from everstep.analyzer.observations.records import GpuLoad, RankLoad
from everstep.probes.node.bounded import Bounded
from everstep.probes.process import usage
from everstep.probes.rank import gpu, traffic
from everstep.probes.rank.infiniband import port_bytes

T = TypeVar("T")

INTERVAL_S = 0.25
"""CPU time is counted in hundredths of a second: four percent of this. Longer: evidence of a hang waits."""

ASK_S = 1.0
"""Limit for one source. NVML takes a tenth of a second to start; on a broken GPU it takes for ever."""


_bounded: Bounded[Any] = Bounded()
"""Shared by the whole process: NVML that hangs, hangs for all callers."""


class Loads(msgspec.Struct, frozen=True, kw_only=True):
    """The loads of one node. Rates in bytes a second."""

    by_rank: dict[int, RankLoad]
    gpus: dict[int, tuple[GpuLoad, ...]]  # rank -> the GPUs that it uses
    links: dict[str, float]  # network interface, or InfiniBand port -> traffic
    missing: tuple[str, ...]


class _Moment(msgspec.Struct, frozen=True, kw_only=True):
    at: float
    cpu_s: dict[int, float]
    sockets: dict[int, dict[int, int]]
    links: dict[str, int]
    missing: tuple[str, ...]


async def measure(ranks: Mapping[int, Sequence[int]]) -> Loads:
    """`ranks`: the processes of each rank, its own first. Never raises but for cancellation."""
    pids = [pid for listed in ranks.values() for pid in listed]
    gpus = asyncio.create_task(_ask("GPU", gpu.read))
    try:
        before = await _look(pids)
        await asyncio.sleep(INTERVAL_S)
        after = await _look(pids)
        listed, no_gpu = await gpus
    finally:
        gpus.cancel()
    used = {rank: gpu.of_processes(listed or (), own) for rank, own in ranks.items()}
    missing = [*after.missing, *([no_gpu] if no_gpu else [])]
    if listed and not any(used.values()):
        missing.append(
            "GPU: none lists a process of these ranks (in a container NVML may number them as the host does)"
        )
    return Loads(
        by_rank={rank: _load(own, used[rank], before, after) for rank, own in ranks.items()},
        gpus={rank: found for rank, found in used.items() if found},
        links=_rates(before, after),
        missing=tuple(missing),
    )


async def _look(pids: Sequence[int]) -> _Moment:
    sockets, no_sockets = await _ask("network traffic", lambda: traffic.bytes_of(pids))
    links, no_links = await _ask("interfaces", lambda: {**traffic.interface_bytes(), **port_bytes()})
    return _Moment(
        at=time.monotonic(),
        cpu_s={pid: use.cpu_s for pid in pids if (use := usage(pid)) is not None},
        sockets=sockets or {},
        links=links or {},
        missing=tuple(why for why in (no_sockets, no_links) if why),
    )


async def _ask(what: str, call: Callable[[], T]) -> tuple[T | None, str]:
    """Call this in a thread, and return its answer, or None and why. A thread that does not come back is left alone."""
    try:
        return await asyncio.to_thread(_bounded.call, what, call, ASK_S), ""
    except TimeoutError:
        return None, f"{what}: no answer within {ASK_S:g} s"
    except (gpu.UnsupportedError, traffic.TrafficError, OSError) as error:
        return None, f"{what}: unsupported, {error}"
    except Exception as error:
        return None, f"{what}: {type(error).__name__}: {error}"


def _load(own: Sequence[int], gpus: Sequence[GpuLoad], before: _Moment, after: _Moment) -> RankLoad:
    interval_s = after.at - before.at
    main = own[0]
    is_known = main in before.cpu_s and main in after.cpu_s
    counted = [pid for pid in own if pid in before.sockets and pid in after.sockets]
    shares = [each.use_share for each in gpus if each.use_share is not None]
    num_bytes = sum(traffic.grown(before.sockets[pid], after.sockets[pid]) for pid in counted)
    return RankLoad(
        cpu_share=(after.cpu_s[main] - before.cpu_s[main]) / interval_s if is_known else None,
        gpu_share=max(shares, default=None),
        traffic_bytes_s=num_bytes / interval_s if main in counted else None,
    )


def _rates(before: _Moment, after: _Moment) -> dict[str, float]:
    """A counter that went back (a driver was loaded again) has no rate."""
    interval_s = after.at - before.at
    return {
        name: (value - before.links[name]) / interval_s
        for name, value in after.links.items()
        if name in before.links and value >= before.links[name]
    }
