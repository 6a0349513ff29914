"""A real `everstep run` in a test: started, watched through its journal, hurt, and checked for what it leaves behind.

Every wait has a deadline. A process counts as one of the run when it carries the run's id in its environment or its
run directory in its command line, so also those that lost their parents are found.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec
from lateness import Lateness

from everstep.checkpoint import arena
from everstep.cli.act.drill import DrillResult
from everstep.journal.reader import read_journal
from everstep.model.actions import Action
from everstep.model.events import ControllerStarted, NodeJoined, WorkersStarted
from everstep.model.record import Record

TIMEOUT_S = 170.0
"""For what happens sooner or later: just below pytest's own limit, so that the run's story is told."""

T = TypeVar("T")
COMMAND = (sys.executable, "-m", "everstep.cli.main", "run")

TRAIN = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, steps = dist.get_rank(), int(sys.argv[1])
if "until-hit" in sys.argv and os.environ["EVERSTEP_GENERATION"] == "0":
    steps = 1_000_000
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(steps):
    loss = model(torch.ones(2, 4)).sum()
    loss.backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step(); optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.02)
dist.destroy_process_group()
"""

LOOP = """
i=0
while [ $i -lt $1 ] || [ "$2 $EVERSTEP_GENERATION" = "until-hit 0" ]; do
    echo "step $i"; i=$((i+1)); sleep 0.05
done
"""
"""A program without Python: it starts at once, so that tests of the launcher are about the launcher."""

UNTIL_HIT = "until-hit"
"""After the number of steps, for these two: the first generation goes on until something ends it, however late that
comes on a busy machine."""


@dataclass
class Run:
    """One launcher's life."""

    run_dir: Path
    process: "subprocess.Popen[bytes]"
    out_path: Path
    err_path: Path
    extra: dict[str, str] = field(default_factory=dict)
    _records: list[Record] = field(default_factory=list)
    _size: int = -1

    @property
    def journal(self) -> Path:
        return self.run_dir / "journal.jsonl"

    def out(self) -> str:
        return self.out_path.read_text(errors="replace")

    def err(self) -> str:
        return self.err_path.read_text(errors="replace")

    def records(self) -> list[Record]:
        """What waits look at again and again is read again only where it has grown."""
        if not self.journal.exists():
            return []
        if (size := self.journal.stat().st_size) != self._size:
            self._records = [entry for entry in read_journal(self.journal).entries if isinstance(entry, Record)]
            self._size = size
        return self._records

    def events(self, kind: type[T]) -> list[T]:
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    def actions(self, kind: type[T]) -> list[T]:
        found: list[Action] = [action for record in self.records() for action in record.actions]
        return [action for action in found if isinstance(action, kind)]

    def until(self, what: str, condition: Callable[[], T], limit_s: float = TIMEOUT_S) -> T:
        deadline = time.monotonic() + limit_s
        while True:
            found = condition()
            if found:
                return found
            if self.process.poll() is not None and not condition():
                raise AssertionError(f"ended ({self.process.returncode}) before {what}\n{self.story()}")
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {limit_s} s: {what}\n{self.story()}")
            time.sleep(0.02)

    def until_step(self, step: int, generation: int = 0, world_size: int = 2) -> None:
        """Every rank of this generation has printed it."""
        files = [self.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log" for rank in range(world_size)]
        line = f"step {step}\n"
        self.until(f"step {step}", lambda: all(f.exists() and line in f.read_text() for f in files))

    def said(self, rank: int) -> dict[str, str]:
        """What the rank printed last, over all generations: the last word of a line under those before it."""
        found = {}
        for folder in sorted((self.run_dir / "logs").glob("gen-*"), key=lambda path: int(path.name[4:])):
            path = folder / f"rank-{rank}" / "stdout.log"
            found |= last_words(path.read_text()) if path.exists() else {}
        return found

    def wait(self, limit_s: float = TIMEOUT_S) -> int:
        began = time.monotonic()
        with Lateness() as late:
            while (code := self.process.poll()) is None:
                if time.monotonic() - began > limit_s + late.seconds:
                    raise AssertionError(f"still running after {limit_s} s\n{self.story()}")
                time.sleep(0.01)
        return code

    def rank_pid(self, rank: int, generation: int = 0) -> int:
        def find() -> int | None:
            for event in self.events(WorkersStarted):
                if event.generation == generation:
                    for started in event.started:
                        if started.rank == rank:
                            return started.pid
            return None

        return self.until(f"rank {rank} of generation {generation}", find)

    def agent_pid(self, node: str = "n0") -> int:
        return self.until(node, lambda: next((e.pid for e in self.events(NodeJoined) if e.node == node), None))

    def held_steps(self, node: str, rank: int) -> set[int]:
        """Snapshots of this rank in the memory of that node: its own, or copies. The journal tells of copies once a
        minute only."""
        steps: set[int] = set()
        for link in Path(f"/proc/{self.agent_pid(node)}/fd").iterdir():
            with contextlib.suppress(OSError):
                if f"/memfd:everstep-arena-{rank} " in str(link.readlink()):
                    fd = os.open(link, os.O_RDONLY)
                    steps |= set(arena.held_steps(fd))
                    os.close(fd)
        return steps

    def controller_pid(self) -> int:
        return self.until("a controller", lambda: next((e.pid for e in self.events(ControllerStarted)), None))

    def drill(self, *argv: object, limit_s: float = TIMEOUT_S) -> DrillResult:
        """`everstep drill`, and what came of it. By itself it waits for two minutes."""
        command = [sys.executable, "-m", "everstep.cli.main", "drill", *map(str, argv), "--run", str(self.run_dir)]
        answer = subprocess.run([*command, "--json"], capture_output=True, timeout=limit_s, check=False)
        assert answer.stdout, answer.stderr.decode()
        return msgspec.json.decode(answer.stdout, type=DrillResult)

    def story(self) -> str:
        lines = [f"exit code {self.process.poll()}"]
        with contextlib.suppress(Exception):
            for record in self.records()[-40:]:
                lines.append(f"{record.seq} {record.event!r:.300} -> {[type(a).__name__ for a in record.actions]}")
        for path in (self.err_path, *self.run_dir.glob("nodes/*/*.log"), self.run_dir / "controller.log"):
            with contextlib.suppress(OSError):
                lines.append(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
        return "\n".join(lines)

    def survivors(self) -> list[str]:
        return [describe(pid) for pid in processes_of(self.run_dir)]

    def assert_nothing_left(self, limit_s: float = 5.0) -> None:
        began = time.monotonic()
        with Lateness() as late:
            while left := self.survivors():
                if time.monotonic() - began > limit_s + late.seconds:
                    raise AssertionError(f"left behind: {left}\n{self.story()}")
                time.sleep(0.02)


def last_words(text: str) -> dict[str, str]:
    """The last word of each line, under those before it."""
    return {before: last for before, _, last in (line.rpartition(" ") for line in text.splitlines())}


def processes_of(run_dir: Path) -> list[int]:
    marks = (str(run_dir).encode(),)
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                text = (
                    Path(f"/proc/{entry.name}/cmdline").read_bytes() + Path(f"/proc/{entry.name}/environ").read_bytes()
                )
                if any(mark in text for mark in marks):
                    found.append(int(entry.name))
    return found


def mapped_by(pids: Iterable[int]) -> set[tuple[str, int]]:
    """The files that these processes have in their memory: device, as in /proc/PID/maps, and inode."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                cells = line.split(None, 5)
                found.add((cells[3], int(cells[4])))
    return found


def in_shm() -> dict[str, tuple[str, int]]:
    """What is in /dev/shm, named as in `mapped_by`: two names of one file, or none that is left, are the same there."""
    found = {}
    for entry in os.scandir("/dev/shm"):
        with contextlib.suppress(OSError):
            made = entry.stat(follow_symlinks=False)
            found[entry.name] = (f"{os.major(made.st_dev):02x}:{os.minor(made.st_dev):02x}", made.st_ino)
    return found


def describe(pid: int) -> str:
    with contextlib.suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return f"{pid} {state} {line[:200]}"
    return str(pid)


class Launcher:
    """Starts runs of one test below its own directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: list[Run] = []

    def script(self, text: str = TRAIN, name: str = "train.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        shutil.copy(Path(__file__).with_name("uncompiled.py"), self.folder)
        return path

    def loop(self, num_steps: int = 10_000, text: str = LOOP) -> tuple[object, ...]:
        """Arguments that run a shell script on two ranks."""
        return ("--nproc-per-node", 2, "--no-python", "sh", self.script(text, "loop.sh"), num_steps)

    def in_peace(
        self, script: Path, *argv: object, num_ranks: int = 2, env: dict[str, str] | None = None
    ) -> list[dict[str, str]]:
        """What each rank of this program says where nothing happens to it and we are not there, as `Run.said`."""
        command = (sys.executable, Path(__file__).with_name("plain_ranks.py"), num_ranks, script, *argv)
        plain = subprocess.Popen(
            [*map(str, command)],
            cwd=self.folder,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},  # as ranks are given where there are several
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, said = plain.communicate(timeout=TIMEOUT_S)
        except BaseException:
            os.killpg(plain.pid, signal.SIGKILL)
            plain.communicate()
            raise
        assert plain.returncode == 0, said
        return [last_words((self.folder / f"plain-{rank}").read_text()) for rank in range(num_ranks)]

    def start(self, *argv: object, run_dir: str = "run", env: dict[str, str] | None = None) -> Run:
        path = self.folder / run_dir
        number = len(self.runs)
        out, err = self.folder / f"out-{number}", self.folder / f"err-{number}"
        environ = {
            **os.environ,
            "EVERSTEP_HOME": str(self.folder / "home"),
            "EVERSTEP_TEST_DIR": str(path),
            "EVERSTEP_EXIT_CODES": "everstep",  # say how it ended; torchrun's are 0 and 1 (test_run_torchrun.py)
            **(env or {}),
        }
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*COMMAND, "--run-dir", str(path), *map(str, argv)],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env=environ,
                cwd=self.folder,
                start_new_session=True,
            )
        run = Run(run_dir=path, process=process, out_path=out, err_path=err)
        self.runs.append(run)
        return run

    def close(self) -> None:
        for run in self.runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
            for pid in processes_of(run.run_dir):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def launching(folder: Path) -> Iterator[Launcher]:
    """Everything that was started has ended when this returns, or the test fails; /dev/shm is as it was."""
    shm = set(in_shm())
    launcher = Launcher(folder)
    try:
        yield launcher
        for run in launcher.runs:
            run.assert_nothing_left()
        _assert_same_shm(shm)
    finally:
        launcher.close()


def _assert_same_shm(before: set[str], limit_s: float = 10.0) -> None:
    """All processes of the run have ended: what others still have in their memory is theirs, and goes away."""
    deadline = time.monotonic() + limit_s
    while new := _left_in_shm(before):
        assert time.monotonic() < deadline, f"new in /dev/shm: {new}"
        time.sleep(0.05)


def _left_in_shm(before: set[str]) -> set[str]:
    new = {name: file for name, file in in_shm().items() if name not in before}
    if not new:
        return set()
    mapped = mapped_by(int(entry.name) for entry in os.scandir("/proc") if entry.name.isdigit())
    return {name for name, file in new.items() if file not in mapped}
