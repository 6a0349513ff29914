"""Plays a scenario on a run, whatever its engine: wait until it trains, hurt it, wait for the end of the incident."""

import os
import re
import signal
import sys
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from everstep.journal.reader import Cursor
from everstep.model.actions import Finish, IncidentClosed, IncidentOpened, StartWorkers
from everstep.model.events import NodeJoined, NodeLost, TemplateReported, WorkersStarted
from everstep.model.record import Record
from measuring.watched import Watched
from playing.scenario import OF_RANKS, Fault, Scenario

EVERSTEP = [sys.executable, "-P", "-m", "everstep.cli.main"]
NUM_STEPS = 60
"""Of each rank in a generation, before the next fault: by then its agent has told of its snapshots, which decides how
long ranks get to end."""

POLICY = "[policy]\nnode_silent_s = 4.0\nexamine = false\n"
OPTIONS = ("--max-restarts", "1000")


def saving(scenario: Scenario, folder: Path) -> tuple[str, ...]:
    """Where the last step goes, `folder` being one that all nodes see."""
    return ("--checkpoint-dir", str(folder / "ckpt")) if scenario.is_preempted else ()


class Player(Watched):
    """A run that a subclass has started. A context manager: what was started ends."""

    name: str

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.num_ranks = scenario, scenario.num_ranks
        self._cursor: Cursor | None = None
        self.records: list[Record] = []
        self._num_gone = 0

    @abstractmethod
    def everstep(self, *words: object) -> None:
        """Run a verb where the run is; does not wait for it to end."""

    @abstractmethod
    def agent_of(self, node: str) -> int:
        """Its process, as this process sees it."""

    @abstractmethod
    def rank_of(self, rank: int, node: str, pid: int) -> int:
        """Its process, as this process sees it; `pid` is the agent's word for it."""

    @abstractmethod
    def power_off(self, node: str) -> None:
        """The machine of that node is gone without a word."""

    @abstractmethod
    def preempt(self) -> None:
        """All of its machines are wanted by somebody else: the run is told so, and has a while to end."""

    def drain(self, node: str) -> None:
        """Somebody needs its machine, and says so in the way of this engine."""
        self.everstep("drain", node, "--why", "a fan is to be replaced", "--run", self.run_dir)

    def play(self) -> None:
        """Raises SystemExit when something that is awaited never comes, and when the machine is so busy that something
        else happens."""
        self.until("training", lambda: self.generation() >= 0 and self.all_stepped(self.generation(), NUM_STEPS))
        for done, fault in enumerate(self.scenario.faults):
            self.until(f"all ready before {fault}", self._is_ready)
            if self._num(IncidentOpened) != done:
                raise SystemExit(f"{self.name}: an incident before {fault} that no fault caused\n{self.said()[-4000:]}")
            print(f"  {self.name}: {fault}", file=sys.stderr, flush=True)
            before, num_closed = self.generation(), self._num(IncidentClosed)
            self._cause(fault)
            self.until(f"the end of the incident after {fault}", lambda n=num_closed: self._num(IncidentClosed) > n)
            self.until(f"a generation after {fault}", lambda g=before: self.generation() > g)
        self.until("the last generation to train", lambda: self.all_stepped(self.generation(), NUM_STEPS))
        if self.scenario.is_preempted:
            self.until("all ready before the end", self._is_ready)
            print(f"  {self.name}: preempt", file=sys.stderr, flush=True)
            self.preempt()
            self.until("the end of the run", lambda: self._num(Finish) > 0)
        self._read()

    def _cause(self, fault: Fault) -> None:
        node = self._node_of_rank(fault.targets[0]) if fault.kind in OF_RANKS else self._node_of(fault.targets[0])
        if fault.kind in ("kill-rank", "stop-rank"):
            number = signal.SIGKILL if fault.kind == "kill-rank" else signal.SIGSTOP
            pids = [self.rank_of(each, self._node_of_rank(each), self._pid_of(each)) for each in fault.targets]
            for pid in pids:
                os.kill(pid, number)
        elif fault.kind == "skip-collective":
            self.everstep("drill", "skip-collective", fault.targets[0], "--run", self.run_dir)
        elif fault.kind == "kill-agent":
            os.kill(self.agent_of(node), signal.SIGKILL)
        elif fault.kind == "lose-node":
            self.everstep("drill", "lose-node", node, "--run", self.run_dir)
        else:
            self._num_gone += 1
            self.drain(node) if fault.kind == "drain" else self.power_off(node)

    def _is_ready(self) -> bool:
        self._read()
        if self._num(IncidentOpened) > self._num(IncidentClosed) or not self.all_stepped(self.generation(), NUM_STEPS):
            return False
        ready: set[str] = set()
        for record in self.records:
            event = record.event
            if isinstance(event, TemplateReported) and event.usable:
                ready.add(event.node)
            elif isinstance(event, NodeLost):
                ready.discard(event.node)
        return len(ready) >= self.scenario.nodes + self.scenario.standby - self._num_gone

    def _read(self) -> None:
        path = self.run_dir / "journal.jsonl"
        if self._cursor is None and path.exists():
            self._cursor = Cursor(path)
        if self._cursor is not None:
            self.records += [each for each in self._cursor.read() if isinstance(each, Record)]

    def _num(self, kind: type) -> int:
        self._read()
        return sum(isinstance(action, kind) for record in self.records for action in record.actions)

    def _node_of_rank(self, rank: int) -> str:
        return self._node_of(rank // self.scenario.ranks_per_node)

    def _node_of(self, slot: int) -> str:
        self._read()
        starts = [each for record in self.records for each in record.actions if isinstance(each, StartWorkers)]
        return [each.node for each in starts if each.slot == slot][-1]

    def _pid_of(self, rank: int) -> int:
        events = [record.event for record in self.records if isinstance(record.event, WorkersStarted)]
        return [each.pid for event in events for each in event.started if each.rank == rank][-1]

    def pid_of_agent(self, node: str) -> int:
        """As the agent itself numbers it."""
        events = [record.event for record in self.records if isinstance(record.event, NodeJoined)]
        return [each.pid for each in events if each.node == node][-1]


def agent_among(pids: Sequence[int], node: str) -> int | None:
    for pid in pids:
        words = _words(pid)
        if "everstep.agent" in words and "--node" in words and words[words.index("--node") + 1] == node:
            return pid
    return None


def launcher_among(pids: Sequence[int]) -> int:
    return next(pid for pid in pids if _words(pid)[: len(EVERSTEP)] == EVERSTEP)


def with_inner(pids: Sequence[int], inner: int) -> int:
    """The one that has this number in its own process namespace."""
    wanted = re.compile(rf"^NSpid:.*\t{inner}$", re.MULTILINE)
    for pid in pids:
        try:
            if wanted.search(Path(f"/proc/{pid}/status").read_text()):
                return pid
        except OSError:
            continue
    raise SystemExit(f"process {inner} is on no host")


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []
