"""One healthy irregular program under `everstep run`, from its start to its end, and what everstep did to it.

What counts is read from the program's own files (how often it was started) and from the journal (what was said).
Each program runs in a process of its own of the benchmark. Called by healthy.py.
"""

import itertools
import json
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from matrix.faults_run import Journal
from measuring.figures import quantile
from measuring.launched import Launched, launched

SCRIPT = Path(__file__).with_name("healthy_script.py")
START_LIMIT_S = 180.0
END_LIMIT_S = 120.0
PROOF_LIMIT_S = 120.0
_POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class Case:
    kind: str
    who: str
    mode: str  # plain, or state
    seconds: float
    times: int
    once: bool
    nproc: int = 2

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.who}-{self.mode}-{self.seconds:g}"


@dataclass(slots=True, kw_only=True)
class Told:
    """What became of one case. `proof_s`: how soon a rank that was stopped at the end was noticed."""

    case: Case
    times: int = 0
    restarts: int = 0
    evictions: int = 0
    incidents: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)  # how long each irregularity took
    proof_s: float | None = None
    exit_code: int | None = None
    took_s: float = 0.0
    load: float = 0.0
    trouble: str = ""

    @property
    def hurt(self) -> str:
        """Empty: nobody was hurt. One restart per place is what a program with State can bear."""
        allowed = 1 if self.case.mode == "state" else 0
        if self.evictions:
            return f"{self.evictions} evictions"
        return f"{self.restarts} restarts" if self.restarts > allowed else ""


class Events:
    """What the ranks wrote about themselves."""

    def __init__(self, folder: Path, nproc: int) -> None:
        self._journals = [Journal(folder / f"events-{rank}.jsonl", key="what") for rank in range(nproc)]

    def read(self) -> None:
        for journal in self._journals:
            journal.read()

    def of(self, rank: int, what: str) -> list[dict[str, Any]]:
        return [record for record in self._journals[rank].records if record["what"] == what]


def run_case(case: Case, folder: Path, server: str, prove: bool) -> Told:
    folder.mkdir(parents=True)
    one = Told(case=case)
    env = {
        **os.environ,
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_BENCH_DIR": str(folder),
        "EVERSTEP_BENCH_SERVER": server,
        "TMPDIR": str(folder),
    }
    script = [str(SCRIPT), case.kind, str(case.seconds), case.who, case.mode]
    options = ["--nproc-per-node", str(case.nproc), "--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "everstep", "run", *options, *script]
    begun = time.monotonic()
    with launched(command, env=env, output=folder / "output") as running:
        _Course(one, folder, running).go(prove)
        one.exit_code = running.exit_code()
        if one.exit_code != 0 and not one.trouble:
            one.trouble = f"ended with {one.exit_code}"
        if one.trouble:
            one.trouble += f": {running.last_output(1500)}"
    one.took_s = time.monotonic() - begun
    return one


class _Course:
    """The phases of one program: irregular as often as wished, the proof that somebody watches, its end."""

    def __init__(self, one: Told, folder: Path, running: Launched) -> None:
        self.one, self.case, self.folder, self.running = one, one.case, folder, running
        self.events = Events(folder, self.case.nproc)
        self.journal = Journal(folder / "run" / "journal.jsonl")
        self.rank = self.case.nproc - 1 if self.case.who == "some" else 0  # whose irregularities are counted
        self.proved = False
        self._loads: list[float] = []

    def go(self, prove: bool) -> None:
        longest_s = self.case.seconds * (self.case.nproc if self.case.who == "all" else 1)
        limit_s = START_LIMIT_S + (self.case.times + 1) * (2 * longest_s + 30.0)
        if self._until(self._is_done, limit_s, f"{self.case.times} irregularities") and prove:
            self._prove()
        (self.folder / "over").touch()
        if not self.one.trouble:
            self._until(lambda: self.running.exit_code() is not None, END_LIMIT_S + 2 * self.case.seconds, "an end")
        self._count()

    def _until(self, condition: Any, limit_s: float, what: str) -> bool:  # noqa: ANN401
        deadline = time.monotonic() + limit_s
        while True:
            self.events.read()
            self.journal.read()
            self._loads.append(os.getloadavg()[0])
            if condition():
                return True
            if self.running.exit_code() is not None:
                return False
            if time.monotonic() > deadline:
                self.one.trouble = f"not within {limit_s:.0f} s: {what}"
                return False
            time.sleep(_POLL_S)

    def _is_done(self) -> bool:
        ended = len(self.events.of(self.rank, "end"))
        trained = any(record["step"] >= 24 for record in self.events.of(0, "step"))
        return trained if self.case.once else ended >= self.case.times

    def _prove(self) -> None:
        """Quiet is worth something only where a hang would have been seen: stop a rank, which is certain."""
        self._count()
        pid = self.events.of(self.case.nproc - 1, "start")[-1]["pid"]
        before, starts = len(self.journal.actions("IncidentOpened")), len(self.events.of(0, "start"))
        stopped_at = time.time()
        os.kill(pid, signal.SIGSTOP)
        (self.folder / "over").touch()
        self.proved = True
        if self._until(lambda: len(self.journal.actions("IncidentOpened")) > before, PROOF_LIMIT_S, "proof"):
            self.one.proof_s = time.time() - stopped_at
        self._until(lambda: len(self.events.of(0, "start")) > starts, PROOF_LIMIT_S, "a restart after the proof")

    def _count(self) -> None:
        """What was done to the program until it was stopped on purpose."""
        self.events.read()
        self.journal.read()
        one = self.one
        one.load = quantile(self._loads, 0.5) or 0.0
        one.times = len(self.events.of(self.rank, "end"))
        one.waits = [
            round(end["at"] - begin["at"], 2)
            for rank in range(self.case.nproc)
            for begin, end in _pairs(self.events, rank)
        ]
        if self.proved:
            return
        one.restarts = max(0, max(len(self.events.of(rank, "start")) for rank in range(self.case.nproc)) - 1)
        one.evictions = len(self.journal.actions("EvictNode"))
        one.incidents = [f"{action['incident']}: {action['why']}" for action in self.journal.actions("IncidentOpened")]
        one.incidents += [
            f"{action['verdict']['code']}: {action['verdict']['sentence']}"
            for action in self.journal.actions("Concluded")
        ]
        one.doubts = [told for record in self.journal.records if (told := doubt_of(record))]


def doubt_of(record: dict[str, Any]) -> str:
    """A standstill that was called doubtful, in its own words; empty for everything else."""
    for action in record.get("actions", ()):
        if action["type"] == "Concluded" and action["verdict"].get("certainty") == "doubtful":
            return str(action["verdict"]["sentence"])
    return ""


def _pairs(events: Events, rank: int) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Each end with the beginning before it; what was cut off by a restart has no end."""
    both = sorted(events.of(rank, "begin") + events.of(rank, "end"), key=lambda record: float(record["at"]))
    return [
        (first, second)
        for first, second in itertools.pairwise(both)
        if first["what"] == "begin" and second["what"] == "end"
    ]


def as_json(one: Told) -> dict[str, Any]:
    case = {name: getattr(one.case, name) for name in ("kind", "who", "mode", "seconds", "times", "nproc")}
    rest = {name: getattr(one, name) for name in Told.__slots__ if name != "case"}
    return json.loads(json.dumps({**rest, "done": one.times, **case, "hurt": one.hurt}))  # type: ignore[no-any-return]
