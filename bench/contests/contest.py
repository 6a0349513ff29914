"""One launch of the benchmarked training and the kills done to it. Called by recovery.py.

Answers: how long from SIGKILL of one rank to the first new step of the slowest rank, or why that never
came. Must not compare launchers; every launcher is treated by exactly this code.
"""

import itertools
import math
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contests.peers import Contender
from measuring.figures import NEVER
from measuring.launched import Launched, launched
from measuring.steplog import StepLogs, first_step_of_slowest, latest_by_rank, steps_of_attempt

SCRIPT = Path(__file__).parents[1] / "programs/recovery_script.py"
_POLL_S = 0.02  # only delays noticing: the times themselves are the ranks' own


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is done to every launcher alike."""

    num_ranks: int = 4
    kills: int = 2  # per launch
    min_steps: int = 20  # every rank's, before each kill
    settle_s: float = 5.0  # since the first step of the attempt, before each kill
    start_timeout_s: float = 120.0
    recovery_timeout_s: float = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """One kill. `recovered_s` is NEVER when no new attempt stepped in time, with the reason in `why`."""

    contender: str
    round: int
    kill: int
    rank: int
    recovered_s: float
    step_s: float  # median step time before the kill: the load of the machine at that moment
    why: str = ""


class NeverTrainedError(Exception):
    """The launch never trained, so nothing can be said about its recovery."""


def measure(
    contender: Contender, plan: Plan, *, round_: int, seed: int, folder: Path, say: Callable[[str], None]
) -> list[Recovery]:
    """Launch, kill `plan.kills` times, end. Stops at a recovery that never comes. Raises NeverTrainedError."""
    folder.mkdir(parents=True)
    steps = folder / "steps"
    scratch = folder / "tmp"
    steps.mkdir()
    scratch.mkdir()
    env = {**os.environ, **contender.env, "EVERSTEP_BENCH_DIR": str(steps), "TMPDIR": str(scratch)}
    env["EVERSTEP_HOME"] = str(folder)  # run directories stay out of the user's home
    line = contender.line(SCRIPT, plan.num_ranks)
    # Seeded by the round alone: every launcher loses the same ranks at the same phases of a step.
    rng = random.Random(f"{seed}/{round_}")
    found: list[Recovery] = []
    with launched(line, env=env, output=folder / "launcher.log") as running:
        logs = StepLogs(steps)
        for kill in range(1, plan.kills + 1):
            say(f"kill {kill}/{plan.kills}: training until {plan.min_steps} steps and {plan.settle_s:g} s")
            step_s = _train(running, logs, plan)
            rank = rng.randrange(plan.num_ranks)
            time.sleep(rng.random() * step_s)
            say(f"kill {kill}/{plan.kills}: SIGKILL of rank {rank}, at most {plan.recovery_timeout_s:g} s")
            recovered_s, why = _kill(running, logs, plan, rank)
            found.append(
                Recovery(
                    contender=contender.name,
                    round=round_,
                    kill=kill,
                    rank=rank,
                    recovered_s=recovered_s,
                    step_s=step_s,
                    why=why,
                )
            )
            if recovered_s == NEVER:
                break
    return found


def _train(running: Launched, logs: StepLogs, plan: Plan) -> float:
    """Wait until the current attempt has settled; its median step time."""
    deadline = time.monotonic() + plan.start_timeout_s
    while time.monotonic() < deadline:
        logs.read()
        pids = {step.pid for step in latest_by_rank(logs.done).values()}
        counts = steps_of_attempt(logs.done, pids)
        if len(counts) == plan.num_ranks and min(counts.values()) >= plan.min_steps:
            times = [step.at for step in logs.done if step.pid in pids and step.rank == 0]
            if time.monotonic() - times[0] >= plan.settle_s:
                gaps = sorted(later - earlier for earlier, later in itertools.pairwise(times))
                return gaps[len(gaps) // 2]
        if running.exit_code() is not None:
            raise NeverTrainedError(f"launcher ended with {running.exit_code()}: {_last_line(running)}")
        time.sleep(_POLL_S)
    raise NeverTrainedError(f"no {plan.min_steps} steps of {plan.num_ranks} ranks within {plan.start_timeout_s:g} s")


def _kill(running: Launched, logs: StepLogs, plan: Plan, rank: int) -> tuple[float, str]:
    """Kill the rank; seconds until the slowest rank of a new attempt has stepped, or NEVER and why."""
    logs.read()
    old_pids = {step.pid for step in logs.done}
    victim = latest_by_rank(logs.done)[rank].pid
    killed_at = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    while (waited_s := time.monotonic() - killed_at) < plan.recovery_timeout_s:
        logs.read()
        at = first_step_of_slowest(logs.done, after=killed_at, old_pids=old_pids, num_ranks=plan.num_ranks)
        if at is not None:
            return at - killed_at, ""
        if running.exit_code() is not None:
            return (
                NEVER,
                f"launcher ended with {running.exit_code()} after {waited_s:.1f} s: {_last_line(running)}",
            )
        time.sleep(_POLL_S)
    return NEVER, f"no step of a new attempt within {plan.recovery_timeout_s:g} s"


def _last_line(running: Launched) -> str:
    return next((line for line in reversed(running.last_output().splitlines()) if line.strip()), "no output")


def as_json(found: Recovery) -> dict[str, object]:
    """JSON has no infinity: never is null, and `why` says so."""
    return {
        "contender": found.contender,
        "round": found.round,
        "kill": found.kill,
        "rank": found.rank,
        "recovered_s": round(found.recovered_s, 4) if math.isfinite(found.recovered_s) else None,
        "step_s": round(found.step_s, 4),
        "why": found.why,
    }
