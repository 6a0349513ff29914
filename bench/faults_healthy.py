"""Trainings without a fault, side by side for as long as asked, and everything that everstep held against them.

Every suspected hang, every incident and every eviction that was thought of counts, with its own words. At its end each
job is made to hang: quiet is worth something only where a hang would have been seen. Called by faults.py.
"""

import contextlib
import itertools
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from display import progress
from faults_irregular import KINDS
from faults_matrix import Fault, Reading
from faults_run import START_TIMEOUT_S, StalledError, Training
from figures import seconds
from launched import Launched, launched

SCRIPT = Path(__file__).with_name("faults_irregular.py")
JOB_S = 120.0
"""Long enough for ten of each irregularity, short enough that all kinds meet each other in half an hour."""

SIGHT_LIMIT_S = 120.0
"""For the hang at the end: the window may be four times as long as the longest step that was twice as long."""

_ENDLESS_S = "1000000"
_POLL_S = 0.2


@dataclass(slots=True, kw_only=True)
class Healthy:
    """One job and what was said of it. `alarms` are false by definition; `remarks` touched nobody."""

    kind: str
    nproc: int
    trained_s: float = 0.0
    steps: int = 0
    exit_code: int | None = None
    sight_s: float | None = None  # how soon the hang at its end was seen; None: it was not
    load: float = 0.0  # load average of the machine, mean over the job
    alarms: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    trouble: str = ""  # the job itself failed, or nobody watched it: it says nothing about false alarms


class _Job:
    """One that runs."""

    def __init__(self, one: Healthy, root: Path) -> None:
        self.one = one
        self._stack = contextlib.ExitStack()
        self.training = Training(root, one.nproc, [str(SCRIPT), one.kind, _ENDLESS_S])
        output = self.training.output
        self.running: Launched = self._stack.enter_context(
            launched(self.training.command, env=self.training.env, output=output)
        )
        self._begun = time.monotonic()
        self._first_at: float | None = None
        self._loads: list[float] = []
        self._proof: Reading | None = None  # of the hang at the end
        self._fault = Fault(kind="stop", layout="", seed=0, rank=one.nproc - 1, delay_s=0.0)

    def look(self) -> bool:
        """Whether it is over."""
        now = time.monotonic()
        self.one.exit_code = self.running.exit_code()
        new = self.training.journal.read()
        if self._proof is not None:
            return self._look_at_proof(self._proof, new, now)
        for record in new:
            _judge(record, self.one)
        step = self.training.step()
        if step >= 0:
            self._first_at = now if self._first_at is None else self._first_at
            self.one.trained_s, self.one.steps = now - self._first_at, step + 1
        elif now - self._begun > START_TIMEOUT_S:
            self.one.trouble = "no step within two minutes"
        self._loads.append(os.getloadavg()[0])
        self.one.load = sum(self._loads) / len(self._loads)
        if self.one.exit_code is None and self.one.trained_s >= JOB_S:
            self._cause_hang(now)
        return bool(self.one.trouble) or self.one.exit_code is not None

    def _cause_hang(self, now: float) -> None:
        try:
            drill = self.training.drill("stop", self._fault.rank, {})
        except StalledError as error:
            self.one.trouble = str(error)
            return
        self._proof, self._begun = Reading(self._fault, drill), now

    def _look_at_proof(self, proof: Reading, new: list[dict[str, Any]], now: float) -> bool:
        for record in new:
            proof.take(record)
        self.one.sight_s = self._fault.detect_s
        if self._fault.detect_s is None and now - self._begun > SIGHT_LIMIT_S:
            self.one.trouble = f"nobody watched: a stopped rank was not seen within {SIGHT_LIMIT_S:g} s"
        return proof.is_over or bool(self.one.trouble) or self._fault.detect_s is not None

    def close(self) -> None:
        self.look()
        if self.one.exit_code is not None:
            self.one.trouble = f"ended with {self.one.exit_code}: {self.running.last_output(400)}"
        self._stack.close()


def _judge(record: dict[str, Any], one: Healthy) -> None:
    """One alarm per incident; what was concluded of it and how it ended is part of it."""
    event, actions = record["event"], record.get("actions", ())
    if event["type"] == "AnomalyFound" and event.get("refusal"):
        one.remarks.append(f"{event['verdict']['code']}: {event['verdict']['sentence']} ({event['refusal']['what']})")
    for action in actions:
        if action["type"] == "IncidentOpened":
            one.alarms.append(f"{action['incident']} after {one.steps} steps: {_cause(event)}")
        elif action["type"] == "Concluded" and one.alarms and action["verdict"]["sentence"] not in one.alarms[-1]:
            one.alarms[-1] += f" -> {action['verdict']['code']}: {action['verdict']['sentence']}"
        elif action["type"] == "IncidentClosed" and one.alarms:
            one.alarms[-1] += f" -> {action['outcome']}"
        elif action["type"] == "EvictNode":
            one.alarms.append(f"evicts {action['node']}: {action['why']}")


def _cause(event: dict[str, Any]) -> str:
    if event["type"] == "HangSuspected":
        own = "; ".join(f"rank {rank}: {why}" for rank, why in event.get("silent", {}).items())
        return f"{event['why']} [{own}]"
    return f"{event['type']} {json.dumps({k: v for k, v in event.items() if k != 'type'})[:400]}"


def run_healthy(
    root: Path, minutes: float, side_by_side: int, nproc: int, kinds: Sequence[str], console: Console
) -> list[Healthy]:
    """Until so many job-minutes of training are done, or somebody presses Ctrl-C; ends all jobs."""
    jobs = [Healthy(kind=kind, nproc=nproc) for kind in _cycle(kinds, math.ceil(minutes * 60 / JOB_S))]
    waiting = list(enumerate(jobs))
    running: list[_Job] = []
    with progress(console) as bar:
        task = bar.add_task("healthy jobs", total=len(jobs))
        with contextlib.suppress(KeyboardInterrupt), _closing(running):
            while waiting or running:
                while waiting and len(running) < side_by_side:
                    number, one = waiting.pop(0)
                    running.append(_Job(one, root / f"{number}-{one.kind}"))
                for job in [job for job in running if job.look()]:
                    job.close()
                    running.remove(job)
                    bar.advance(task)
                    console.print(told(job.one), soft_wrap=True)
                done_s = sum(one.trained_s for one in jobs)
                listed = ", ".join(job.one.kind for job in running)
                bar.update(task, description=f"{done_s / 60:.1f} job-minutes, {listed}")
                time.sleep(_POLL_S)
    return [one for one in jobs if one.steps or one.trouble]


@contextlib.contextmanager
def _closing(running: list[_Job]) -> Iterator[None]:
    try:
        yield
    finally:
        for job in running:
            job.close()


def _cycle(kinds: Sequence[str], count: int) -> list[str]:
    return list(itertools.islice(itertools.cycle(kinds or list(KINDS)), count))


def told(one: Healthy) -> str:
    lines = [
        f"  {one.kind:<12} {one.trained_s / 60:.1f} min, {one.steps} steps, load {one.load:.1f}: "
        + (f"{len(one.alarms)} ALARMS" if one.alarms else "quiet")
        + f"; the hang at its end was seen after {seconds(one.sight_s)}"
    ]
    lines += [f"      {alarm}" for alarm in one.alarms]
    lines += [f"      (remark) {remark}" for remark in one.remarks]
    lines += [f"      the job failed: {one.trouble}"] if one.trouble else []
    return "\n".join(lines)
