"""One training of bench/parties.py, hurt again and again, and what everstep made of it, read from its journal."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matrix.faults_run import Journal
from matrix.incidents_rows import dead_fuse, failing_service, mounted
from matrix.parties_faults import OUTSIDE, PINNED, TRUTH
from measuring.launched import Launched, launched

SCRIPT = Path(__file__).parents[1] / "jobs" / "parties_script.py"
START_LIMIT_S = 120.0
LIMIT_S = {"slow-machine": 150.0, "burners": 120.0, "flip-bit": 90.0, "frozen": 90.0}
USUAL_LIMIT_S = 75.0
NODES = 2
SETTLE_STEPS = 15
SETTLE_S = 20.0
"""Before one that is slow, at least: rounds of two seconds that show what is usual."""

READ_ONLY = 1
"""MS_RDONLY."""
_POLL_S = 0.05


def ranks_per_node(kind: str) -> int:
    return 1 if kind in PINNED else 2


@dataclass(frozen=True, kw_only=True)
class Hurt:
    kind: str
    rank: int
    step: int  # more than that which it has when the fault is asked for
    seed: int
    mode: str


@dataclass(slots=True, kw_only=True)
class Told:
    hurt: Hurt
    code: str = ""
    blame: str = ""
    confidence: str = ""
    ranks: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    node: str = ""
    sentence: str = ""
    outcome: str = ""
    evicted: tuple[str, ...] = ()
    others: tuple[str, ...] = ()  # incidents beside it
    after_s: float | None = None
    happened: bool = True  # False: the run ended before the fault
    trouble: str = ""

    @property
    def right_party(self) -> bool:
        return self.blame in TRUTH[self.hurt.kind].split("|")

    @property
    def right_rank(self) -> bool:
        if self.hurt.rank in self.ranks:
            return True
        return not self.ranks and bool(self.node) and self.node == self.nodes[self.hurt.rank]

    @property
    def wrongly_evicted(self) -> bool:
        return bool(self.evicted) and TRUTH[self.hurt.kind] != "machine"


@contextmanager
def _running(folder: Path, mode: str, kinds: set[str]) -> Iterator["Run"]:
    folder.mkdir(parents=True)
    for number in range(32):
        (folder / f"kmsg-n{number}").touch()
    policy = {"max_evicted_share": 9.0, "max_restarts": 10000, "digest_every": 10, "slow_round_s": 2.0}
    (folder / "everstep.toml").write_text(
        "[policy]\n" + "".join(f"{name} = {value}\n" for name, value in policy.items())
    )
    env = {
        **os.environ,
        "EVERSTEP_HOME": str(folder / "home"),
        "EVERSTEP_BENCH_DIR": str(folder),
        "EVERSTEP_KMSG": str(folder / "kmsg-{node}"),
        "OMP_NUM_THREADS": "1",
        "TMPDIR": str(folder),
        "TORCH_FR_BUFFER_SIZE": "128",
    }
    nproc = min(map(ranks_per_node, kinds))
    nodes = ["--local-nodes", NODES, "--standby", 1, "--nproc-per-node", nproc]
    where = ["--run-dir", folder / "run", "--config", folder / "everstep.toml"]
    command = [sys.executable, "-m", "everstep", "run", *where, *nodes, SCRIPT, mode]
    with ExitStack() as stack:
        if kinds & set(PINNED):
            env["EVERSTEP_BENCH_PIN"] = "1"
        stack.enter_context(mounted(folder / "small", "tmpfs", "size=1m"))
        stack.enter_context(mounted(folder / "read-only", "tmpfs", "", READ_ONLY))
        (folder / "dead").mkdir()
        stack.enter_context(dead_fuse(folder / "dead"))
        env["EVERSTEP_BENCH_SERVER"] = stack.enter_context(failing_service())
        running = stack.enter_context(launched([str(word) for word in command], env=env, output=folder / "output"))
        yield Run(folder, running, nproc)
    listed = folder / "cgroups"
    for line in listed.read_text().split() if listed.exists() else ():
        with contextlib.suppress(OSError):
            Path(line).rmdir()


def run_hurts(hurts: Sequence[Hurt], root: Path, tell: Callable[[Told], object] = lambda _: None) -> list[Told]:
    """One after the other in one run; in another one where that has ended. `tell` hears of each at once."""
    told: list[Told] = []
    for attempt in range(len(hurts)):
        left = hurts[len(told) :]
        if not left:
            break
        with _running(root / str(attempt), left[0].mode, {one.kind for one in left}) as run:
            for number, hurt in enumerate(left):
                one = run.hurt(number, hurt)
                if one.trouble and not one.happened and number > 0:
                    break  # the run had ended before it: it has its turn in the next one
                told.append(one)
                tell(one)
                if one.trouble:
                    break
    return told


class Run:
    def __init__(self, folder: Path, running: Launched, nproc: int) -> None:
        self.folder, self.running, self.nproc = folder, running, nproc
        self.journal, self.first = Journal(folder / "run" / "journal.jsonl"), 0

    def until(self, condition: Callable[[], Any], limit_s: float, what: str) -> str:
        """Empty, or why it did not come."""
        deadline = time.monotonic() + limit_s
        while True:
            is_over = self.running.exit_code() is not None
            self.journal.read()
            if condition():
                return ""
            if is_over:
                return f"ended with {self.running.exit_code()} before {what}: {self.running.last_output(600)}"
            if time.monotonic() > deadline:
                return f"not within {limit_s:g} s: {what}: {self.running.last_output(300)}"
            time.sleep(_POLL_S)

    def actions(self, kind: str) -> list[dict[str, Any]]:
        """Of this fault."""
        records = self.journal.records[self.first :]
        return [action for record in records for action in record.get("actions", ()) if action["type"] == kind]

    def hurt(self, number: int, hurt: Hurt) -> Told:
        told = Told(hurt=hurt)
        begun, done, _ = self.step()
        more = lambda: self.step()[0] != begun or self.step()[1] >= done + SETTLE_STEPS  # noqa: E731
        told.trouble = self.until(more, START_LIMIT_S, "steps")
        told.trouble = told.trouble or self.until(lambda: self.step()[1] >= SETTLE_STEPS, START_LIMIT_S, "steps")
        told.trouble = told.trouble or self.until(lambda: not self.open(), START_LIMIT_S, "the end of other incidents")
        if not told.trouble and hurt.kind in PINNED:
            self.until(lambda: False, SETTLE_S, "")
        if told.trouble:
            told.happened = False
            return told
        self.first = len(self.journal.records)
        told.nodes = tuple(self.node_of(rank) for rank in range(NODES * self.nproc))
        happened = self.folder / f"hurt-{number}"
        fault = {"number": number, "step": self.step()[2] + hurt.step, "kind": hurt.kind}
        (self.folder / "fault.new").write_text(json.dumps({**fault, "rank": hurt.rank, "seed": hurt.seed}))
        (self.folder / "fault.new").rename(self.folder / "fault.json")
        with ExitStack() as stack:
            if hurt.kind in OUTSIDE:
                time.sleep(random.Random(hurt.seed).random())
                happened.write_text(str(time.time()))
                _from_outside(self, hurt, stack)
            told.trouble = self.until(happened.exists, 60.0, "the fault")
            told.happened = happened.exists()
            if not told.trouble:
                limit_s = LIMIT_S.get(hurt.kind, USUAL_LIMIT_S)
                is_settled = lambda: self.is_settled(hurt)  # noqa: E731
                told.trouble = self.until(is_settled, limit_s, "a verdict and the end of its incident")
                self.read_verdict(told, float(happened.read_text()))
        return told

    def open(self) -> set[str]:
        opened = {each["incident"] for each in self.journal.actions("IncidentOpened")}
        return opened - {each["incident"] for each in self.journal.actions("IncidentClosed")}

    def step(self) -> tuple[str, int, int]:
        """Which process of rank 0, how many it has done, and its number."""
        with contextlib.suppress(OSError, ValueError):
            begun, done, step = (self.folder / "step").read_text().split()
            return begun, int(done), int(step)
        return "", 0, -1

    def mine(self, hurt: Hurt) -> list[dict[str, Any]]:
        concluded = self.actions("Concluded")
        if hurt.kind in PINNED:  # the job is slower is said first; who it is later
            named = [one for one in concluded if one["verdict"].get("ranks")]
            return [one for one in concluded if named and one["incident"] == named[0]["incident"]]
        chosen = next((one["incident"] for one in concluded if one["incident"] not in self._waited_out()), "")
        return [one for one in concluded if one["incident"] == chosen]

    def _waited_out(self) -> set[str]:
        """Incidents in which everstep did nothing but wait until the fault said more: its word is that of the next."""
        superseded = {e["incident"] for e in self.actions("IncidentClosed") if e["outcome"] == "superseded"}
        acted = {one["incident"] for one in self.actions("Concluded") if one["decision"]["rule"] != "wait"}
        return superseded - acted

    def is_settled(self, hurt: Hurt) -> bool:
        closed = {each["incident"] for each in self.actions("IncidentClosed")}
        mine = self.mine(hurt)
        return bool(mine) and (mine[0]["incident"] in closed or bool(self.actions("EndRun")))

    def read_verdict(self, told: Told, begun: float) -> None:
        concluded, mine = self.actions("Concluded"), self.mine(told.hurt)
        told.evicted = tuple(each["node"] for each in self.actions("EvictNode"))
        if not mine:
            return
        verdict, incident = mine[-1]["verdict"], mine[0]["incident"]
        told.code, told.blame, told.confidence = verdict["code"], verdict["blame"], verdict["confidence"]
        told.ranks, told.node = tuple(verdict.get("ranks", ())), verdict.get("node") or ""
        told.sentence = verdict["sentence"]
        told.others = tuple(each["verdict"]["code"] for each in concluded if each["incident"] != incident)
        told.after_s = next(
            record["at"] - begun
            for record in self.journal.records[self.first :]
            for action in record.get("actions", ())
            if action["type"] == "Concluded" and action["incident"] == incident
        )
        told.outcome = next((e["outcome"] for e in self.actions("IncidentClosed") if e["incident"] == incident), "")

    def pid(self, rank: int) -> int:
        started = [one for event in self.journal.events("WorkersStarted") for one in event["started"]]
        return next(one["pid"] for one in reversed(started) if one["rank"] == rank)

    def node_of(self, rank: int) -> str:
        for each in reversed(self.journal.actions("StartWorkers")):
            if each["first_rank"] <= rank < each["first_rank"] + self.nproc:
                return str(each["node"])
        raise LookupError(rank)

    def drill(self, *words: object) -> None:
        command = [sys.executable, "-m", "everstep", "drill", *map(str, words), "--run", str(self.folder / "run")]
        env = {**os.environ, "EVERSTEP_HOME": str(self.folder / "home")}
        subprocess.run([*command, "--timeout", "1"], capture_output=True, timeout=60, check=False, env=env)


SIGNALS = {
    "kill": signal.SIGKILL,
    "terminate": signal.SIGTERM,
    "interrupt": signal.SIGINT,
    "stop": signal.SIGSTOP,
    "quit": signal.SIGQUIT,
    "hang-up": signal.SIGHUP,
}


def _from_outside(run: Run, hurt: Hurt, stack: ExitStack) -> None:
    kind = hurt.kind
    if kind in SIGNALS:
        os.kill(run.pid(hurt.rank), SIGNALS[kind])
    elif kind == "xid":
        line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
        with (run.folder / f"kmsg-{run.node_of(hurt.rank)}").open("a") as log:
            log.write(f"3,7000,5140900,-;{line}\n")
        os.kill(run.pid(hurt.rank), signal.SIGABRT)
    elif kind == "burners":
        core = sorted(os.sched_getaffinity(run.pid(hurt.rank)))[0]
        stack.enter_context(_burning(core))
    elif kind == "frozen":
        stack.enter_context(_frozen(run.pid(hurt.rank)))
    else:
        target = run.node_of(hurt.rank) if kind == "lost-node" else hurt.rank
        names = {"lost-node": "lose-node", "cgroup-memory": "oom", "slow-machine": "slow"}
        more = ("--percent", "80") if kind == "slow-machine" else ()
        run.drill(names.get(kind, kind), target, *more)


@contextmanager
def _burning(core: int) -> Iterator[None]:
    loop = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    burning = [subprocess.Popen([sys.executable, "-c", loop]) for _ in range(3)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    group = Path(f"/sys/fs/cgroup/freezer/everstep-bench-{pid}")
    group.mkdir()
    (group / "cgroup.procs").write_text(str(pid))
    (group / "freezer.state").write_text("FROZEN")
    try:
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
        with contextlib.suppress(OSError):
            group.rmdir()
