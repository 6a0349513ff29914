"""Hurts a training once per cell of the matrix and waits for what everstep makes of it. Called by faults.py.

One run serves many faults, one after the other; those that leave a training spoiled (a flipped bit, a NaN) get a run of
their own. Rank and moment come from the seed. All times are the journal's: from the drill's own record on.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everstep.core.faults import drills
from matrix.faults_run import POLL_S, StalledError, Training
from measuring.launched import Launched, launched

SCRIPT = Path(__file__).parents[1] / "programs/faults_script.py"
LAYOUTS = ("dp", "2x2")
LOUD = ("kill-rank", "exit", "raise", "oom")
"""Their processes end by themselves: bench/kills.py and bench/recovery.py measure these."""

KINDS = tuple(kind for kind in drills.RANK_KINDS if kind not in LOUD)
HANGS = tuple(kind for kind in drills.HANG_KINDS)
SPOILING = ("flip-bit", "nan")
LASTING = ("slow",)
"""The fault goes on until the ranks are started again."""

NEEDS_TWO_GROUPS = ("opposite-order",)
"""In one group alone nothing can be in opposite order: such drills are refused there."""

SEEDS_OF_SLOW = 1
"""A slow rank takes a minute to find: one per layout unless asked by name."""

OPTIONS: dict[str, dict[str, Any]] = {"slow": {"percent": 30.0, "pattern": "steady"}}
LIMIT_S = {"slow": 120.0, "flip-bit": 60.0}
HANG_LIMIT_S = 40.0
SETTLE_STEPS = 25
"""New steps of all ranks before the next fault: what is usual must be known again, as in any job that runs."""

DIGESTED_STEPS = 120
"""Before a flipped bit: replicas that nobody declared (2x2) are known from two digests, one in fifty steps."""


@dataclass(slots=True, kw_only=True)
class Fault:
    """One cell of the matrix and, once it was done, what came of it. What did not happen is None."""

    kind: str
    layout: str
    seed: int
    rank: int
    delay_s: float
    seen_by: str = ""  # the event that was the first sign
    detect_s: float | None = None  # from the drill to the suspicion, the anomaly or the opened incident
    verdict_s: float | None = None  # ... to the verdict on record
    recover_s: float | None = None  # ... to the first new step of the slowest rank
    code: str = ""
    ranks: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    sentence: str = ""
    outcome: str = ""  # how the incident was closed
    lost_steps: int | None = None
    why: str = ""  # why there is no outcome

    @property
    def is_hang(self) -> bool:
        return self.kind in HANGS

    @property
    def is_loud(self) -> bool:
        """It was to hang, and a process ended instead: gloo does so with some sizes. Seen at once, and no figure of the
        hang rule."""
        return self.seen_by not in ("", "HangSuspected", "AnomalyFound")

    @property
    def right_rank(self) -> bool | None:
        """The culprit is named first. A NaN has no culprit: every rank logs the same loss."""
        if self.kind == "nan":
            return None
        return self.ranks[:1] == (self.rank,)

    @property
    def right_group(self) -> bool | None:
        """Or it is among the suspects, or in the group that was named."""
        if self.kind == "nan":
            return None
        return bool(self.right_rank) or (bool(self.ranks) and self.rank in (*self.ranks, *self.group))

    @property
    def ended_well(self) -> bool:
        return self.outcome == ("recovered" if self.is_hang or self.outcome == "recovered" else "observed")


@dataclass(slots=True)
class Results:
    faults: list[Fault] = field(default_factory=list)
    false_alarms: list[str] = field(default_factory=list)  # incidents that no drill caused
    num_starts: int = 0


def plan(kinds: Sequence[str], layouts: Sequence[str], seeds: int, nproc: int, *, slow_seeds: int) -> list[Fault]:
    """In the order in which they are done: layouts one after the other, kinds mixed, what spoils a training last."""
    found: list[Fault] = []
    for layout in layouts:
        cells = []
        for kind, seed in itertools.product(kinds, range(seeds)):
            if (kind in LASTING and seed >= slow_seeds) or (kind in NEEDS_TWO_GROUPS and layout == "dp"):
                continue
            dice = random.Random(f"{layout} {kind} {seed}")
            cell = Fault(kind=kind, layout=layout, seed=seed, rank=dice.randrange(nproc), delay_s=dice.random())
            cells.append(cell)
        random.Random(f"order {layout}").shuffle(cells)
        found += sorted(cells, key=lambda cell: (cell.kind in SPOILING, cell.kind in LASTING))
    return found


class Session:
    """One run that is hurt again and again."""

    def __init__(self, training: Training, running: Launched) -> None:
        self.training = training
        self.running = running
        self.journal = training.journal
        self._num_excused = 0

    def settle(self, kind: str) -> None:
        """Until the next fault may come. Raises StalledError."""
        steps = DIGESTED_STEPS if kind == "flip-bit" else SETTLE_STEPS
        self.training.until_step(max(self.training.step(), 0) + steps, self.running)
        self.journal.read()

    def false_alarms(self) -> list[str]:
        """Incidents so far that no drill caused and that were not told before."""
        strange = [a for a in self.journal.actions("IncidentOpened") if a.get("drill") is None]
        new, self._num_excused = strange[self._num_excused :], len(strange)
        return [f"{action['incident']}: {action['why']}" for action in new]

    def hurt(self, fault: Fault, options: dict[str, Any]) -> None:
        """Cause it, and fill in what comes. Raises StalledError when it cannot even be caused."""
        time.sleep(fault.delay_s)
        self.journal.read()
        begun = len(self.journal.records)
        drill = self.training.drill(fault.kind, fault.rank, options)
        limit_s = LIMIT_S.get(fault.kind, HANG_LIMIT_S)
        deadline = time.monotonic() + limit_s
        reading = Reading(fault, drill)
        while not reading.is_over:
            self.journal.read()
            for record in self.journal.records[begun:]:
                reading.take(record)
            begun = len(self.journal.records)
            if self.running.exit_code() is not None and not reading.is_over:
                raise StalledError(f"the run ended with {self.running.exit_code()}: {self.running.last_output(300)}")
            if time.monotonic() > deadline:
                fault.why = f"nothing more within {limit_s:g} s"
                return
            time.sleep(POLL_S)

    def end_generation(self) -> None:
        """Have all ranks started again, by a fault that is always seen. Raises StalledError."""
        dummy = Fault(kind="exit", layout="", seed=0, rank=0, delay_s=0.0)
        self.hurt(dummy, {})
        if dummy.outcome != "recovered":
            raise StalledError(f"the ranks could not be started again: {dummy.why or dummy.outcome}")


class Reading:
    """From the drill's record to the end of the incident that it caused."""

    def __init__(self, fault: Fault, drill: str) -> None:
        self.is_over = False
        self._fault = fault
        self._drill = drill
        self._asked_at: float | None = None
        self._incident: str | None = None

    def take(self, record: dict[str, Any]) -> None:
        event = record["event"]
        if event["type"] == "DrillRequested" and event["drill"] == self._drill:
            self._asked_at = event["at"]
        if self._asked_at is None:
            return
        after_s = event["at"] - self._asked_at
        for action in record.get("actions", ()):
            self._act(action, after_s, event["type"])

    def _act(self, action: dict[str, Any], after_s: float, event: str) -> None:
        fault = self._fault
        match action["type"]:
            case "Refused" if action["what"].startswith(f"drill {self._drill}"):
                fault.why, self.is_over = f"refused: {action['why']}", True
            case "IncidentOpened" if action.get("drill") == self._drill:  # others are false alarms
                self._incident, fault.detect_s, fault.seen_by = action["incident"], after_s, event
            case "Concluded" if action["incident"] == self._incident:
                verdict = action["verdict"]
                fault.code, fault.sentence = verdict["code"], verdict["sentence"]
                fault.ranks = tuple(verdict.get("ranks", ()))
                fault.group = tuple(verdict.get("group_ranks", ()))
                fault.verdict_s = after_s if fault.verdict_s is None else fault.verdict_s
            case "IncidentClosed" if action["incident"] == self._incident:
                fault.outcome, fault.lost_steps = action["outcome"], action.get("lost_steps")
                recovered_at = action.get("recovered_at")
                if recovered_at is not None and self._asked_at is not None:
                    fault.recover_s = recovered_at - self._asked_at
                self.is_over = True
            case _:
                pass


def run_matrix(root: Path, faults: Sequence[Fault], nproc: int, policy: str, told: Callable[[Fault], None]) -> Results:
    """Every fault once, or what was done until Ctrl-C. `told` hears of each fault when it is done."""
    results = Results()
    waiting = list(faults)
    with contextlib.suppress(KeyboardInterrupt):
        while waiting:
            layout = waiting[0].layout
            results.num_starts += 1
            with _session(root / f"{results.num_starts}-{layout}", layout, nproc, policy) as session:
                _serve(session, waiting, results, told)
    return results


@contextlib.contextmanager
def _session(folder: Path, layout: str, nproc: int, policy: str) -> Iterator[Session]:
    training = Training(folder, nproc, [str(SCRIPT), layout], policy)
    with launched(training.command, env=training.env, output=training.output) as running:
        yield Session(training, running)


def _serve(session: Session, waiting: list[Fault], results: Results, told: Callable[[Fault], None]) -> None:
    """As many of the next faults as this run can take."""
    layout = waiting[0].layout
    while waiting and waiting[0].layout == layout:
        fault = waiting.pop(0)
        try:
            session.settle(fault.kind)
            results.false_alarms += session.false_alarms()
            session.hurt(fault, OPTIONS.get(fault.kind, {}))
        except StalledError as error:
            fault.why = fault.why or str(error)
        results.false_alarms += session.false_alarms()
        results.faults.append(fault)
        told(fault)
        is_refused = fault.why.startswith("refused")
        if fault.kind in SPOILING or (fault.why and not is_refused):
            return
        if fault.kind in LASTING and not is_refused and fault.outcome == "observed":
            try:
                session.end_generation()
            except StalledError:
                return
