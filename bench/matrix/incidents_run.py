"""One real `everstep run` of bench/incidents.py: three nodes of one rank and standbys, hurt, and read from its journal.

What is measured comes from the journal alone: a fault's own time as the verdict has it, the first new step of the
slowest rank, and the completed steps that were done again.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from everstep.journal.reader import Cursor
from everstep.model import actions as act
from everstep.model.events import AnomalyFound, NodeAlerted, NodeJoined, NodeLost, WorkersStarted
from everstep.model.record import Record
from measuring.launched import Launched, launched

T = TypeVar("T")
EVERSTEP = (sys.executable, "-m", "everstep.cli.main")
SCRIPT = Path(__file__).parents[1] / "programs/incidents_script.py"
NUM_NODES = 3
LIMIT_S = 240.0
_POLL_S = 0.05


class NotSeenError(Exception):
    """What was waited for did not come; with what the run did instead."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What the run made of one row. `codes` and `rules` in their order, without repeats in a row; what was only said
    and left alone is not among them where something was done as well."""

    codes: tuple[str, ...]
    says: str  # of the first verdict
    rules: tuple[str, ...]
    evicted: tuple[str, ...]
    num_incidents: int
    stood_still_s: float | None  # over all incidents, from the fault to the first new step of the slowest rank
    lost_steps: int
    updated: bool = False  # a new version of the program trains


class Job:
    def __init__(self, folder: Path, process: Launched) -> None:
        self.folder = folder
        self.run_dir = folder / "run"
        self.process = process
        self._cursor = Cursor(self.run_dir / "journal.jsonl")
        self._records: list[Record] = []
        self._first = 0  # of the row's own

    def begin_row(self) -> None:
        """What is read from now on is what happens from now on."""
        self.records(ever=True)
        self._first = len(self._records)

    def records(self, *, ever: bool = False) -> list[Record]:
        """Of this row, or of the run."""
        self._records += [entry for entry in self._cursor.read() if isinstance(entry, Record)]
        return self._records if ever else self._records[self._first :]

    def events(self, kind: type[T], *, ever: bool = False) -> list[T]:
        return [record.event for record in self.records(ever=ever) if isinstance(record.event, kind)]

    def actions(self, kind: type[T], *, ever: bool = False) -> list[T]:
        records = self.records(ever=ever)
        return [action for record in records for action in record.actions if isinstance(action, kind)]

    def until(self, what: str, condition: Callable[[], T], limit_s: float = LIMIT_S) -> T:
        deadline = time.monotonic() + limit_s
        while not (found := condition()):
            if self.process.exit_code() is not None and not condition():
                raise NotSeenError(f"ended ({self.process.exit_code()}) before {what}: {self.story()}")
            if time.monotonic() > deadline:
                raise NotSeenError(f"not within {limit_s:g} s: {what}: {self.story()}")
            time.sleep(_POLL_S)
        return found

    def until_trained(self, steps: int = 20) -> None:
        """So many new steps of every rank of the generation that runs now."""
        self.until(f"{steps} steps", lambda: self._trained(steps))

    def until_closed(self, number: int = 1, outcome: str = "recovered") -> None:
        """So many incidents ended like that."""
        closed = lambda: sum(each.outcome == outcome for each in self.actions(act.IncidentClosed)) >= number  # noqa: E731
        self.until(f"incident {number}, {outcome}", closed)

    def until_rule(self, rule: str) -> None:
        """Decided, and the job trains again."""
        self.until(f"rule {rule}", lambda: any(each.decision.rule == rule for each in self.actions(act.Concluded)))
        self.until("an end of the incident", self._all_closed)

    def until_evicted(self, node: str) -> None:
        self.until(f"{node} evicted", lambda: any(each.node == node for each in self.actions(act.EvictNode)))
        self.until("an end of the incident", self._all_closed)

    def until_standby(self) -> None:
        self.until("a standby", lambda: len(self._nodes()) > NUM_NODES)

    def node_of(self, rank: int) -> str:
        return [each.node for each in self.actions(act.StartWorkers, ever=True) if each.first_rank == rank][-1]

    def agent_of(self, node: str) -> int:
        return next(each.pid for each in self.events(NodeJoined, ever=True) if each.node == node)

    def rank_pid(self, rank: int) -> int:
        started = [one for event in self.events(WorkersStarted, ever=True) for one in event.started]
        return [one.pid for one in started if one.rank == rank][-1]

    def fault(self, **what: object) -> None:
        """From now on; whoever reads it sees all of it."""
        for used in self.folder.glob("used-*"):
            used.unlink()
        partial = self.folder / "fault.new"
        partial.write_text(json.dumps(what))
        partial.rename(self.folder / "fault.json")

    def heal(self) -> None:
        (self.folder / "fault.json").unlink(missing_ok=True)

    def kernel(self, node: str, *lines: str) -> None:
        """Into the node's kernel log, in the kernel's form."""
        self.until(f"the senses of {node}", lambda: self._listens(node))
        with (self.folder / f"kmsg-{node}").open("a") as log:
            log.writelines(f"3,{7000 + i},{5140900 + i},-;{line}\n" for i, line in enumerate(lines))

    def ask(self, *words: object) -> str:
        """Another verb of everstep; what it says."""
        command = [*EVERSTEP, *map(str, words)]
        env = {**os.environ, "EVERSTEP_HOME": str(self.folder / "home")}
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=env)
        return done.stdout + done.stderr

    def drill(self, *words: object, wait_s: float = 1.0) -> str:
        return self.ask("drill", *words, "--run", self.run_dir, "--timeout", wait_s)

    def seen(self) -> Seen:
        concluded, closed = self.actions(act.Concluded), self.actions(act.IncidentClosed)
        left = {each.incident for each in closed if each.outcome == "observed"}
        if len(left) < len(closed):
            concluded = [each for each in concluded if each.incident not in left]
        at = {each.incident: each.verdict.at for each in reversed(concluded)}
        at |= self._stopped_later()
        times = [each.recovered_at - at[each.incident] for each in closed if each.recovered_at is not None]
        return Seen(
            codes=_changes(each.verdict.code for each in concluded),
            says=concluded[0].verdict.sentence if concluded else "",
            rules=_changes(each.decision.rule for each in concluded),
            evicted=tuple(dict.fromkeys(each.node for each in self.actions(act.EvictNode))),
            num_incidents=len(closed),
            stood_still_s=sum(times) if times else None,
            lost_steps=sum(each.lost_steps or 0 for each in closed),
            updated=any(each.stage == "trained" for each in self.actions(act.UpdateConcluded)),
        )

    def _stopped_later(self) -> dict[str, float]:
        """Incidents of a job that trained on until it was stopped for them, and when that was."""
        return {
            action.incident: record.at
            for record in self.records()
            for action in record.actions
            if isinstance(action, act.IncidentOpened) and isinstance(record.event, NodeAlerted | AnomalyFound)
        }

    def story(self) -> str:
        seen = self.seen()
        return f"{seen.codes} {seen.rules} {self.process.last_output(600)}"

    def _trained(self, steps: int) -> bool:
        started = self.actions(act.StartWorkers, ever=True)
        folder = self.run_dir / "logs" / f"gen-{max((each.generation for each in started), default=0)}"
        files = [folder / f"rank-{rank}" / "stdout.log" for rank in range(NUM_NODES)]
        return all(file.exists() and file.read_text().count("\n") >= steps for file in files)

    def _all_closed(self) -> bool:
        return len(self.actions(act.IncidentOpened)) == len(self.actions(act.IncidentClosed)) > 0

    def _nodes(self) -> set[str]:
        gone = {each.node for each in self.events(NodeLost, ever=True)}
        return {each.node for each in self.events(NodeJoined, ever=True)} - gone

    def _listens(self, node: str) -> bool:
        path = self.run_dir / "nodes" / node / "senses.json"
        return path.exists() and '"kernel log": ""' in path.read_text()


@contextmanager
def running(folder: Path, *options: str, policy: Mapping[str, object], env: Mapping[str, str]) -> Iterator[Job]:
    """Ends with everything that it started."""
    folder.mkdir()
    for number in range(16):
        (folder / f"kmsg-n{number}").touch()
    lines = [f"{name} = {json.dumps(value)}" for name, value in policy.items()]
    (folder / "everstep.toml").write_text("\n".join(["[policy]", *lines]) + "\n")
    code = folder / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT.read_text())
    where = ("--run-dir", str(folder / "run"), "--config", str(folder / "everstep.toml"))
    nodes = ("--local-nodes", str(NUM_NODES), "--nproc-per-node", "1")
    environ = {
        **os.environ,
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_BENCH_DIR": str(folder),
        "EVERSTEP_KMSG": str(folder / "kmsg-{node}"),
        "OMP_NUM_THREADS": "1",
        **env,
    }
    command = [*EVERSTEP, "run", *where, *nodes, *options, str(code / "train.py")]
    with launched(command, env=environ, output=folder / "output") as process:
        yield Job(folder, process)


def _changes(values: Iterator[str]) -> tuple[str, ...]:
    kept: list[str] = []
    for value in values:
        if not kept or kept[-1] != value:
            kept.append(value)
    return tuple(kept)
