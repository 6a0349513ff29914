"""Matrix products with digests: the same sum must have the same bits in every repeat, on every core."""

import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep.preflight.checks.working.arithmetic import DTYPES, products, torch_problem
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Answer, Failed, run_forked
from everstep.preflight.settings import Level, Settings

_QUICK_CORES = 8  # spread over the sockets; --full looks at every core
_AT_ONCE = 4  # few, so that each core is measured at its own speed; a burn-in loads all


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="import torch")
    problem = torch_problem()
    cores = _cores(settings.level)
    for dtype in DTYPES:
        if problem:
            yield unsupported(f"compute.{dtype}.digest", problem)
            yield unsupported(f"compute.{dtype}.speed", problem, "flop/s")
            continue
        yield Doing(what=f"{dtype} matrix products on cores {cores[0]}-{cores[-1]}")
        yield from _of_type(dtype, cores, settings)


def _cores(level: Level) -> list[int]:
    usable = sorted(os.sched_getaffinity(0))
    if level is not Level.QUICK or len(usable) <= _QUICK_CORES:
        return usable
    return usable[:: len(usable) // _QUICK_CORES][:_QUICK_CORES]


def _of_type(dtype: str, cores: list[int], settings: Settings) -> Iterator[Result]:
    sizes = settings.sizes
    answers: dict[int, Answer] = {}
    at_once = len(cores) if settings.level is Level.BURN_IN else _AT_ONCE
    for start in range(0, len(cores), at_once):
        batch = cores[start : start + at_once]
        works = [partial(products, dtype, sizes.matrix, sizes.products) for _ in batch]
        answers |= zip(batch, run_forked(works, limit_s=20.0 + 2 * sizes.products, cores=batch), strict=True)
    good = {core: answer for core, answer in answers.items() if not isinstance(answer, Failed)}
    for core, answer in answers.items():
        if isinstance(answer, Failed):
            yield Result(
                name=f"compute.{dtype}.cpu{core}", value="failed", verdict=Judgement.BAD, device=f"cpu {core}",
                why=f"matrix products in a process on cpu {core}: {answer.why}", how="forked process",
            )  # fmt: skip
    if good:
        yield from compare_digests(dtype, {core: answer["digests"] for core, answer in good.items()}, sizes.matrix)
        yield from _exactness(dtype, good)
        yield from _speeds(dtype, good, sizes.matrix)


def _exactness(dtype: str, answers: dict[int, dict[str, Any]]) -> Iterator[Result]:
    """Only float64 has room for the exact product of these inputs."""
    if dtype != "float64":
        return
    wrong = {core: answer["wrong"] for core, answer in answers.items() if answer["wrong"]}
    yield Result(
        name="compute.float64.exact", value=not wrong, better=Better.SAME, tolerance=0.0,
        verdict=Judgement.BAD if wrong else Judgement.OK,
        why=f"wrong products on {', '.join(f'cpu {core}' for core in wrong)}" if wrong else "",
        how="row sums of each product compared with integer arithmetic",
    )  # fmt: skip


def compare_digests(dtype: str, digests: dict[int, list[str]], side: int) -> Iterator[Result]:
    """Pure. One result for the node, and one more for each core that does not agree with the majority."""
    every = [digest for repeats in digests.values() for digest in repeats]
    expected = statistics.mode(every)
    how = f"{side} x {side} product, one thread, SHA-256 of the bytes; {len(every)} times on {len(digests)} cores"
    wrong = {core: sum(d != expected for d in repeats) for core, repeats in digests.items()}
    wrong = {core: number for core, number in wrong.items() if number}
    name = f"compute.{dtype}.digest"
    if not wrong:
        alone = len(every) < 2
        yield Result(
            name=name, value=expected, better=Better.SAME, tolerance=0.0, how=how,
            verdict=Judgement.NOTED if alone else Judgement.OK,
            why="computed only once" if alone else f"the same {len(every)} times on {len(digests)} cores",
        )  # fmt: skip
        return
    where = ", ".join(f"cpu {core} ({number} of {len(digests[core])})" for core, number in wrong.items())
    yield Result(
        name=name, value=expected, better=Better.SAME, tolerance=0.0, how=how, verdict=Judgement.BAD,
        why=f"the same product had other bits on {where}",
    )  # fmt: skip
    for core in wrong:
        other = next(d for d in digests[core] if d != expected)
        yield Result(
            name=f"compute.{dtype}.digest.cpu{core}", value=other, baseline=expected, baseline_from="majority",
            verdict=Judgement.BAD, device=f"cpu {core}", how=how, why=f"cpu {core} computes {dtype} products wrongly",
        )  # fmt: skip


def _speeds(dtype: str, answers: dict[int, dict[str, Any]], side: int) -> Iterator[Result]:
    flops = 2.0 * side**3
    how = f"fastest of the {side} x {side} products of a core, one thread"
    speeds = {core: flops / answer["best_s"] for core, answer in answers.items()}
    yield measured(
        f"compute.{dtype}.speed", statistics.median(speeds.values()), "flop/s", how=f"median over cores: {how}",
        better=Better.HIGHER,
    )  # fmt: skip
    if len(speeds) > 1:
        yield measured(
            f"compute.{dtype}.core_balance", min(speeds.values()) / statistics.median(speeds.values()), "ratio",
            how=f"slowest core by the median: {how}", better=Better.HIGHER,
        )  # fmt: skip
    slowest = min(speeds, key=lambda core: speeds[core])
    yield measured(
        f"compute.{dtype}.slowest_core_speed", speeds[slowest], "flop/s", how=f"slowest core: {how}",
        better=Better.HIGHER, tolerance=0.3, device=f"cpu {slowest}",
    )  # fmt: skip
