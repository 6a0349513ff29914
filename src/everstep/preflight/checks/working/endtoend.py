"""A tiny training run and an inference in two processes at once: the same bits after every step, or something is wrong.

A small transformer block with its loss, gradients and update written out: everything a real step touches, without an
optimizer's import of several seconds.
"""

import os
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep.preflight.checks.working.arithmetic import torch_problem, trained
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Failed, run_forked
from everstep.preflight.settings import Level, Settings

_LIMIT_S = 30.0


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="import torch")
    problem = torch_problem()
    if problem:
        for name in ("training", "inference"):
            yield unsupported(f"endtoend.{name}.digest", problem)
        return
    cores = sorted(os.sched_getaffinity(0))
    pins = cores if settings.level is not Level.QUICK else [cores[0], cores[-1]]
    pins = [*pins[:4]] if len(pins) > 1 else [pins[0], pins[0]]
    yield Doing(what=f"{settings.sizes.train_steps} training steps on cores {pins}")
    works = [partial(trained, settings.sizes.train_steps) for _ in pins]
    answers = dict(enumerate(run_forked(works, limit_s=_LIMIT_S + settings.sizes.train_steps, cores=pins)))
    failed = [f"process on cpu {pins[i]}: {a.why}" for i, a in answers.items() if isinstance(a, Failed)]
    if failed:
        yield Result(
            name="endtoend.training", value="failed", verdict=Judgement.BAD, how="forked processes",
            why=f"the training step failed: {'; '.join(failed)[:300]}",
        )  # fmt: skip
        return
    good = [answer for answer in answers.values() if not isinstance(answer, Failed)]
    yield from aligned(good, pins)
    for name in ("training", "inference"):
        yield measured(
            f"endtoend.{name}.step_s", statistics.median(a[f"{name}_s"] for a in good), "s", better=Better.LOWER,
            tolerance=0.4, how=f"median {name} step of a small transformer block, one thread, {len(pins)} at once",
        )  # fmt: skip


def aligned(answers: list[dict[str, Any]], pins: list[int]) -> Iterator[Result]:
    """Pure. Where the processes' bits part, if they do: the first step and what it was."""
    steps = len(answers[0]["steps"])
    how = f"{steps} steps in {len(answers)} processes on cores {pins}, SHA-256 of loss, gradients and parameters"
    parting = next(
        (
            (step, part)
            for step in range(steps)
            for part in ("loss", "gradients", "parameters")
            if len({a["steps"][step][part] for a in answers}) > 1
        ),
        None,
    )
    last = answers[0]["steps"][-1]["parameters"]
    if parting:
        step, part = parting
        shown = ", ".join(f"cpu {pin}: {a['steps'][step][part]}" for pin, a in zip(pins, answers, strict=True))
        why = f"processes with the same input part at step {step} in their {part} ({shown})"
        yield Result(name="endtoend.training.digest", value=last, verdict=Judgement.BAD, why=why, how=how)
    else:
        yield Result(
            name="endtoend.training.digest", value=last, verdict=Judgement.OK, how=how, better=Better.SAME,
            tolerance=0.0, why=f"the same bits after each of {steps} steps in {len(answers)} processes",
        )  # fmt: skip
    falls = answers[0]["losses"][-1] < answers[0]["losses"][0]
    yield Result(
        name="endtoend.training.loss_falls", value=falls, verdict=Judgement.OK if falls else Judgement.BAD, how=how,
        why=f"loss {answers[0]['losses'][0]:.4f} to {answers[0]['losses'][-1]:.4f}",
    )  # fmt: skip
    outputs = {a["inference"] for a in answers}
    yield Result(
        name="endtoend.inference.digest", value=answers[0]["inference"], better=Better.SAME, tolerance=0.0, how=how,
        verdict=Judgement.OK if len(outputs) == 1 else Judgement.BAD,
        why=f"{len(answers)} processes gave {len(outputs)} different output(s)",
    )  # fmt: skip
