"""One program that hangs, under `everstep run`: from the moment of the hang to verdict, action and next step.

All times are from the stamp that the program itself wrote. Called by certain.py.
"""

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.healthy_run import Events
from matrix.faults_run import Journal
from measuring.launched import Launched, launched

SCRIPT = Path(__file__).with_name("certain_script.py")
NPROC = 3
START_LIMIT_S = 240.0
CERTAIN_LIMIT_S = 120.0
DOUBTFUL_LIMIT_S = 180.0
GROUP_LIMIT_S = {"certain": 1800.0, "state": 1800.0, "plain": 50.0}
"""Time limit of the collectives: torch's own where it must not matter; short for a doubtful plain program, which has to
be left alone until then."""

_POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Hang:
    kind: str
    certain: bool
    mode: str  # plain, or state
    number: int = 0

    @property
    def limit_s(self) -> float:
        return GROUP_LIMIT_S["certain" if self.certain else self.mode]

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.mode}-{self.number}"


@dataclass(slots=True, kw_only=True)
class Found:
    """What did not happen is None. `loud`: a process ended by itself, so that no hang was to be found."""

    hang: Hang
    report_s: float | None = None  # to the incident or the first word about it
    verdict_s: float | None = None
    action_s: float | None = None  # to the restart's decision
    again_s: float | None = None  # to the first step of the restarted program
    certainty: str = ""
    code: str = ""
    sentence: str = ""
    place: str = ""
    ranks: tuple[int, ...] = ()
    loud: bool = False
    load: float = 0.0
    trouble: str = ""

    @property
    def right(self) -> bool:
        return NPROC - 1 in self.ranks


def run_hang(hang: Hang, folder: Path, server: str) -> Found:
    folder.mkdir(parents=True)
    found = Found(hang=hang)
    env = {
        **os.environ,
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_BENCH_DIR": str(folder),
        "EVERSTEP_BENCH_SERVER": server,
        "EVERSTEP_BENCH_LIMIT_S": str(hang.limit_s),
        "TMPDIR": str(folder),
    }
    options = ["--nproc-per-node", str(NPROC), "--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "everstep", "run", *options, str(SCRIPT), hang.kind, hang.mode]
    with launched(command, env=env, output=folder / "output") as running:
        _watch(found, folder, running)
        if found.trouble:
            found.trouble += f": {running.last_output(1500)}"
    return found


def _watch(found: Found, folder: Path, running: Launched) -> None:
    events, journal = Events(folder, NPROC), Journal(folder / "run" / "journal.jsonl")
    reading = Reading(found)

    def until(condition: Callable[[], bool], limit_s: float, what: str) -> bool:
        deadline = time.monotonic() + limit_s
        while not condition():
            events.read()
            for record in journal.read():
                reading.take(record)
            if running.exit_code() is not None:
                found.trouble = f"ended with {running.exit_code()} before {what}"
            elif time.monotonic() > deadline:
                found.trouble = f"not within {limit_s:g} s: {what}"
            if found.trouble:
                return False
            time.sleep(_POLL_S)
        return True

    if not until(lambda: bool(events.of(NPROC - 1, "hang")), START_LIMIT_S, "the hang"):
        return
    begun = events.of(NPROC - 1, "hang")[0]["at"]
    found.load = os.getloadavg()[0]
    reading.begin(begun)
    limit_s = CERTAIN_LIMIT_S if found.hang.certain else max(DOUBTFUL_LIMIT_S, found.hang.limit_s + 60.0)
    again = lambda: [one for one in events.of(0, "step") if one["at"] > _restarted(events, begun)]  # noqa: E731
    if until(lambda: bool(again()), limit_s, "a step after the restart"):
        found.again_s = again()[0]["at"] - begun
        reading.end()


def _restarted(events: Events, begun: float) -> float:
    """When rank 0 was started again after the hang; infinite: it was not."""
    return next((one["at"] for one in events.of(0, "start") if one["at"] > begun), float("inf"))


class Reading:
    """From the records of a journal to the first signs after the hang. What came before it is no sign."""

    def __init__(self, found: Found) -> None:
        self._found = found
        self._begun: float | None = None
        self._early: list[dict[str, Any]] = []

    def begin(self, at: float) -> None:
        self._begun = at
        for record in self._early:
            self.take(record)

    def end(self) -> None:
        if self._found.action_s is None:
            self._found.trouble = "restarted, and the journal does not say why"

    def take(self, record: dict[str, Any]) -> None:
        if self._begun is None:
            self._early.append(record)
            return
        event, found = record["event"], self._found
        after_s = record["at"] - self._begun
        if after_s < 0:
            return
        if event["type"] in ("WorkerExited", "NodeLost") and found.action_s is None:
            found.loud = True
        for action in record.get("actions", ()):
            self._act(action, after_s)

    def _act(self, action: dict[str, Any], after_s: float) -> None:
        found = self._found
        match action["type"]:
            case "IncidentOpened" if found.report_s is None:
                found.report_s = after_s
            case "Concluded" if found.action_s is None:
                verdict = action["verdict"]
                found.verdict_s = after_s if found.verdict_s is None else found.verdict_s
                found.certainty, found.code = verdict.get("certainty", ""), verdict["code"]
                found.sentence, found.place = verdict["sentence"], verdict.get("place", "")
                found.ranks = tuple(verdict.get("ranks", ()))
            case "StopWorkers" | "StartWorkers" if found.action_s is None:
                found.action_s = after_s
            case _:
                pass
