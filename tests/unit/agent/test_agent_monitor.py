"""The monitor's looks at a real process and a real board: what the hang rule gets to know of a quiet rank."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.agent.memory.board import Board
from everstep.agent.ranks.workers import Paths, Worker
from everstep.agent.watching.monitor import ENDING_S, LOOK_QUIET_S, LOOK_S, Monitor
from everstep.agent.watching.stacks import Look
from everstep.model.facts import Signals
from everstep.probes.oom import KernelLog
from everstep.probes.process import usage
from everstep.probes.rank.stack import command, find_py_spy, parse
from everstep.worker.process.board import Activity, BoardLine

pytestmark = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


class PySpy:
    """Stacks without an agent around them."""

    async def of_rank(self, worker: Worker, limit_s: float) -> Look:
        done = subprocess.run(command(find_py_spy(), worker.pid), capture_output=True, timeout=60, check=False)
        threads, why_not = parse(done.stdout, done.stderr)
        return Look(threads=threads, missing=(why_not,))


class Rank:
    """A process that did steps of 0.1 s until just now, and its monitor."""

    def __init__(self, text: str, folder: Path) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", f"print(flush=True); {text}"], stdout=subprocess.PIPE)
        self.process.stdout.readline()
        self.board = Board(1)
        self.log = KernelLog(os.devnull)
        paths = Paths.prepare(logs=folder, errors=folder, generation=0, rank=0)
        worker = Worker(rank=0, local_rank=0, pid=self.process.pid, paths=paths, log=self.log)
        self.group = SimpleNamespace(store_port=None, workers={0: worker}, generation=0)
        self.monitor = Monitor("n0", self.board, PySpy(), lambda work: asyncio.run(work))
        self.board.reset(0, rank=0, generation=0, spawned_at=time.time())
        self.line = BoardLine(self.board.fd, 0)
        now = time.time()
        for step in range(20):
            at = now + step / 10
            self.line.step_done(step, at)
            self.line.set_communication(step, at)
            self.look(at)
        self.now = now + 2.0

    def look(self, now: float) -> Signals:
        (signals,) = self.monitor.look(self.group, now).signals
        return signals

    def quiet_for(self, seconds: float) -> Signals:
        """Looks every quarter of a second of a time that passes faster than the real one."""
        signals = None
        for look in range(1, int(seconds * 4) + 1):
            at = self.now + look / 4
            self.line.set_communication(19, at)
            signals = self.look(at)
        return signals

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.board.close()
        self.log.close()


@pytest.fixture
def rank(tmp_path):
    made = []

    def start(text: str) -> Rank:
        made.append(Rank(text, tmp_path))
        return made[0]

    yield start
    for each in made:
        each.close()


def until_state(pid: int, letter: str) -> None:
    deadline = time.monotonic() + 60
    while usage(pid).state != letter:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def until_it_is_in(pid: int, function: str) -> None:
    deadline = time.monotonic() + 60
    look = command(find_py_spy(), pid)
    while function not in subprocess.run(look, capture_output=True, timeout=60, check=False, text=True).stdout:
        assert time.monotonic() < deadline


def test_a_rank_that_steps_is_neither_quiet_nor_looked_at(rank):
    one = rank("import time; time.sleep(60)")
    signals = one.look(one.now)
    assert (signals.phase, signals.looking, signals.waits_on, signals.last_step) == ("train", False, "", 19)
    assert one.monitor.look_again_s == LOOK_S


def test_what_a_quiet_rank_waits_for(rank):
    one = rank("import time; time.sleep(60)")
    until_state(one.process.pid, "S")
    signals = one.quiet_for(3.0)
    assert (signals.waits_on, signals.waits_for) == ("outside", "sleeps")
    assert 40 < signals.wait_left_s <= 60
    assert signals.communication_s > 2
    assert signals.device_s > 2
    assert one.monitor.look_again_s == LOOK_QUIET_S


def test_nobody_is_judged_before_its_stack_was_seen(rank):
    one = rank("import time; time.sleep(60)")
    one.monitor._spawn = lambda work: work.close()
    assert one.quiet_for(1.5).looking


def test_a_stopped_rank_waits_for_nothing(rank):
    one = rank("import time; time.sleep(60)")
    os.kill(one.process.pid, signal.SIGSTOP)
    until_state(one.process.pid, "T")
    signals = one.quiet_for(3.0)
    assert (signals.state, signals.waits_on) == ("T", "")
    assert not signals.looking


def test_a_full_garbage_collection_is_no_loop(rank):
    one = rank("any(iter(int, 1))")  # for ever
    assert one.quiet_for(30.0).stack_s > 2
    one.line.set_collecting(True)
    assert one.look(one.now + 30.25).stack_s is None
    one.line.set_collecting(False)
    assert one.look(one.now + 30.5).stack_s > 2


def test_what_the_program_says_of_itself(rank):
    one = rank("import time; time.sleep(60)")
    one.line.set_activity(Activity.EVALUATION, one.now)
    assert one.quiet_for(1.0).phase == "evaluation"
    one.line.set_activity(Activity.PAUSED, one.now)
    assert one.look(one.now + 1.5).paused


ENDINGS = {
    "exit handler": "import atexit, time\ndef upload():\n    time.sleep(600)\natexit.register(upload)\n",
    "thread": "import threading, time\ndef upload():\n    time.sleep(600)\nthreading.Thread(target=upload).start()\n",
}


@pytest.mark.parametrize("text", ENDINGS.values(), ids=ENDINGS)
def test_a_process_that_does_not_end_after_its_program_is_told_with_its_place(rank, tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    one = rank(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import train")
    worker = one.group.workers[0]
    one.line.set_over(time.time(), finished=True)
    assert one.look(one.now + ENDING_S / 2).is_over
    assert one.monitor.note_of(worker, one.now + ENDING_S / 2) is None, "most end within a moment"
    assert one.monitor.take_news(one.now + ENDING_S / 2) == []
    until_it_is_in(one.process.pid, "upload")
    at = one.now + ENDING_S + 1
    one.look(at)
    note = one.monitor.note_of(worker, at)
    assert note is not None
    assert (note.kind, note.says) == ("ending", "train.py:3 upload")
    assert one.monitor.take_news(at) == [worker]
    one.look(at + 30)
    assert one.monitor.take_news(at + 30) == [], "it is told once"
