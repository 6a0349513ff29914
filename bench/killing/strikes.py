"""Carries out a plan of kills on a running training and watches it come back. Called by kills.py.

Answers for each kill: did the run go on, after how long, and how many steps were lost. What it says comes from the
run's own files (journal, loss log) as they grow; it must not help the run in any way.
"""

import os
import signal
import statistics
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from killing.killplan import Kill
from measuring.figures import NEVER
from measuring.journaltail import JournalTail, Population
from measuring.launched import Launched
from measuring.losslog import LossLog

_POLL_S = 0.005
_START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one kill did. `recovered_s`: kill to first new step of the slowest rank; for a controller killed while the
    training ran, kill to the start of the next controller. NEVER with the reason in `why`."""

    kill: Kill
    recovered_s: float
    lost_steps: int | None  # None: the journal does not know
    disturbed: bool  # the workers were restarted
    why: str = ""


class StalledError(Exception):
    """The training stopped making steps although nothing was killed."""


class Watch:
    """A run seen from outside."""

    def __init__(self, running: Launched, journal: Path, losses: Path) -> None:
        self.running = running
        self.journal = JournalTail(journal)
        self.losses = LossLog(losses)
        self._growth: deque[float] = deque(maxlen=30)
        self._grew_at = time.monotonic()
        self.num_losses = 0  # written so far, redone steps counted again

    def look(self) -> Population:
        new = self.losses.read()
        self.num_losses += new
        if new:
            now = time.monotonic()
            self._growth.append(now - self._grew_at)
            self._grew_at = now
        return self.journal.read()

    @property
    def step_s(self) -> float:
        return statistics.median(self._growth) if self._growth else 0.1

    def until_step(self, step: int) -> None:
        """Wait until this step is logged. Raises StalledError."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while self.losses.last_step < step:
            self.look()
            if self.running.exit_code() is not None:
                raise StalledError(f"the run ended with {self.running.exit_code()} at step {self.losses.last_step}")
            if time.monotonic() > deadline:
                raise StalledError(f"no step {step} within {_START_TIMEOUT_S:g} s; at {self.losses.last_step}")
            time.sleep(_POLL_S)


def strike(watch: Watch, kill: Kill, timeout_s: float) -> Outcome:
    """Carry out one kill and wait until the run is whole again."""
    watch.until_step(kill.after_step)
    time.sleep(kill.phase * watch.step_s)
    before = watch.look()
    generation, num_closed = before.generation, len(before.closed)
    if kill.in_recovery_s is not None:
        os.kill(before.ranks[kill.rank], signal.SIGKILL)
        time.sleep(kill.in_recovery_s)
    killed_at, gone = _fire(watch, kill)
    why = await_whole(watch, kill.target, gone, timeout_s)
    after = watch.journal.population
    closed = after.closed[num_closed:]
    lost = [one.lost_steps for one in closed if one.outcome != "superseded"]
    return Outcome(
        kill=kill,
        recovered_s=NEVER if why else whole_at(after, kill.target, num_closed) - killed_at,
        lost_steps=None if any(steps is None for steps in lost) else sum(steps or 0 for steps in lost),
        disturbed=after.generation != generation,
        why=why,
    )


def _fire(watch: Watch, kill: Kill) -> tuple[float, set[int]]:
    """Send the signal to the process that has the role now. When, on the wall clock, and which pids must go with it.

    In a recovery the one in the journal may be gone already: the next one is taken as soon as there is one.
    """
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        population = watch.look()
        pid = _victim(population, kill)
        if pid is not None:
            gone = {pid, *population.ranks.values()} if kill.target == "agent" else {pid}
            at = time.time()
            try:
                os.kill(pid, kill.signal)
                return at, gone
            except ProcessLookupError:
                pass
        time.sleep(_POLL_S)
    raise StalledError(f"no process to kill for: {kill.told}")


def _victim(population: Population, kill: Kill) -> int | None:
    match kill.target:
        case "rank":
            return population.ranks.get(kill.rank)
        case "agent":
            return next(iter(population.agents.values()), None)
        case _:
            return population.controllers[-1][1] if population.controllers else None


def await_whole(watch: Watch, target: str, gone: set[int], timeout_s: float) -> str:
    """Empty when the run is whole: the dead replaced, no incident open, and then a step done. Else why not."""
    deadline = time.monotonic() + timeout_s
    whole_at_loss: int | None = None
    while True:
        missing = _missing(watch.look(), target, gone)
        if missing:
            whole_at_loss = None
        elif whole_at_loss is None:
            whole_at_loss = watch.num_losses
        elif watch.num_losses > whole_at_loss:
            return ""
        if watch.running.exit_code() is not None:
            return f"the run ended with {watch.running.exit_code()}"
        if time.monotonic() > deadline:
            return f"after {timeout_s:g} s: {missing or 'no new step'}"
        time.sleep(_POLL_S)


def _missing(now: Population, target: str, gone: set[int]) -> str:
    if target == "controller" and now.controllers[-1][1] in gone:
        return "no new controller"
    if gone & set(now.agents.values()):
        return "no new agent"
    if gone & set(now.ranks.values()):
        return "no new worker"
    return f"{now.num_open} incidents are still open" if now.num_open else ""


def whole_at(after: Population, target: str, num_closed: int) -> float:
    """When the slowest rank did its first new step, or the new controller began, whatever came last."""
    times = [one.recovered_at for one in after.closed[num_closed:] if one.recovered_at is not None]
    if target == "controller":
        times.append(after.controllers[-1][0])
    return max(times, default=NEVER)
