"""Collectives inside the node: gloo over loopback between forked processes; latency, bandwidth, and the bits of the
sum.
"""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep.preflight.checks.working.arithmetic import digest, filled, torch_problem
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Failed, run_forked
from everstep.preflight.settings import Level, Settings, Sizes

_LIMIT_S = {Level.QUICK: 30.0, Level.FULL: 120.0, Level.BURN_IN: 120.0}
_ENOUGH_S = 5.0  # a busy node is measured with fewer repeats, not waited for
_MIN_REPEATS = 3
_SMALL = 2  # numbers: latency, not bandwidth


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="import torch")
    problem = torch_problem()
    if problem:
        yield unsupported("collective.gloo.latency_s", problem, "s")
        return
    world = 4 if len(os.sched_getaffinity(0)) >= 4 else 2
    yield Doing(what=f"all_reduce of {world} processes")
    # The ranks' meeting place is a file without a name: nothing is left, whatever dies.
    store = os.memfd_create("everstep-check-store")
    try:
        works = [partial(_rank, rank, world, f"/proc/self/fd/{store}", settings.sizes) for rank in range(world)]
        answers = run_forked(works, limit_s=_LIMIT_S[settings.level])
    finally:
        os.close(store)
    failed = [f"rank {rank}: {a.why}" for rank, a in enumerate(answers) if isinstance(a, Failed)]
    if failed:
        yield Result(
            name="collective.gloo", value="failed", verdict=Judgement.BAD, how=f"{world} forked processes, gloo",
            why=f"all_reduce inside the node failed: {'; '.join(failed)[:300]}",
        )  # fmt: skip
        return
    yield from _results([answer for answer in answers if not isinstance(answer, Failed)], world, settings.sizes)


def _rank(rank: int, world: int, store: str, sizes: Sizes) -> dict[str, Any]:
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    limit = timedelta(seconds=_LIMIT_S[Level.FULL])
    begun = time.perf_counter()
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=limit)
    init_s = time.perf_counter() - begun
    try:
        large = filled(sizes.allreduce_bytes // 4, 1, "float32", rank).flatten()
        summed = large.clone()
        dist.all_reduce(summed)
        expected = sum(filled(sizes.allreduce_bytes // 4, 1, "float32", other).flatten() for other in range(world))
        is_right = bool(torch.equal(summed, expected))  # exact: multiples of 2^-16 below 2, in any order
        times = {"small": _timed(dist, torch.ones(_SMALL), sizes), "large": _timed(dist, large, sizes)}
        return {"init_s": init_s, "digest": digest(summed), "is_right": is_right, **times}
    finally:
        dist.destroy_process_group()


def _timed(dist: Any, tensor: Any, sizes: Sizes) -> float:  # noqa: ANN401
    """Median seconds of one all_reduce."""
    import time

    import torch

    times: list[float] = []
    repeats = _MIN_REPEATS
    while len(times) < repeats:
        work = tensor.clone()
        dist.barrier()
        begun = time.perf_counter()
        dist.all_reduce(work)
        times.append(time.perf_counter() - begun)
        if len(times) == 1:  # all ranks must agree on the number of the others
            slowest = torch.tensor([times[0]])
            dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
            repeats = max(_MIN_REPEATS, min(sizes.allreduces, int(_ENOUGH_S / max(float(slowest), 1e-6))))
    return sorted(times)[len(times) // 2]


def _results(answers: list[dict[str, Any]], world: int, sizes: Sizes) -> Iterator[Result]:
    how = f"{world} forked processes, gloo over loopback"
    digests = [answer["digest"] for answer in answers]
    agree = len(set(digests)) == 1 and all(answer["is_right"] for answer in answers)
    wrong = [rank for rank, a in enumerate(answers) if not a["is_right"] or a["digest"] != digests[0]]
    yield Result(
        name="collective.gloo.digest", value=digests[0], better=Better.SAME, tolerance=0.0, how=how,
        verdict=Judgement.OK if agree else Judgement.BAD,
        why="all ranks got the same bits, and the right ones" if agree else f"wrong sum on ranks {wrong}",
    )  # fmt: skip
    small = max(answer["small"] for answer in answers)
    large = max(answer["large"] for answer in answers)
    rate = 2 * (world - 1) / world * sizes.allreduce_bytes / large
    yield measured(
        "collective.gloo.latency_s", small, "s", how=f"median all_reduce of {_SMALL} numbers, {how}",
        better=Better.LOWER, tolerance=1.0,
    )  # fmt: skip
    yield measured(
        "collective.gloo.bandwidth", rate, "bytes/s", better=Better.HIGHER, tolerance=0.4,
        how=f"bus bandwidth, median all_reduce of {sizes.allreduce_bytes >> 20} MiB, {how}",
    )  # fmt: skip
    yield measured(
        "collective.gloo.init_s", max(a["init_s"] for a in answers), "s", how=f"init_process_group, {how}",
        better=Better.LOWER, tolerance=2.0,
    )  # fmt: skip
