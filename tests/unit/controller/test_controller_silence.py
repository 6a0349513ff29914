"""Which nodes are missed: those that say nothing while this controller listens, and only those."""

import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from everstep.controller.silence import BLOCKED_S, FENCE_S, LOOK_S, SPARE_S, Silence
from everstep.controller.starved import Starved
from everstep.linux import proc

LIMIT_S = 3.5


class Watched:
    def __init__(self) -> None:
        self.now = 50.0
        self.cannot_read = False
        self.silent: list[str] = []
        self.lost: list[str] = []
        self.blocked: set[str] = set()
        self.waited: dict[str, float] = {}
        self.engine_waited = 0.0
        self.limits: dict[str, float] = {}
        self.silence = Silence(self, self, clock=lambda: self.now)  # type: ignore[arg-type]

    def silent_limit_s(self, node: str) -> float:
        return self.limits.get(node, LIMIT_S)

    def is_behind(self) -> bool:
        return self.cannot_read

    def on_silent(self, node: str, _silent_s: float) -> None:
        self.silent.append(node)

    def on_lost(self, node: str, _silent_s: float) -> None:
        self.lost.append(node)

    def waited_s(self, node: str) -> float:
        return self.waited.get(node, 0.0)

    def engine_waited_s(self) -> float:
        return self.engine_waited

    def is_blocked(self, node: str) -> bool:
        return node in self.blocked

    def listen(self, seconds: float, *talking: str) -> None:
        """As the loop does when it is in time."""
        for _ in range(round(seconds / LOOK_S)):
            self.now += LOOK_S
            for node in talking:
                self.silence.heard(node)
            self.silence.look()


@pytest.fixture
def watched() -> Watched:
    made = Watched()
    for node in ("n0", "n1"):
        made.silence.expect(node)
    return made


def test_only_who_says_nothing_is_missed_and_told_once(watched):
    watched.listen(LIMIT_S - 2 * LOOK_S, "n0")
    assert watched.silent == []
    watched.listen(3 * LOOK_S, "n0")
    assert (watched.silent, watched.lost) == (["n1"], [])
    watched.listen(FENCE_S + 2 * LOOK_S, "n0")
    assert (watched.silent, watched.lost) == (["n1"], ["n1"])
    watched.listen(60.0, "n0")
    assert (watched.silent, watched.lost) == (["n1"], ["n1"])


def test_a_node_that_is_spared_is_told_again_later_with_all_of_its_silence(watched):
    watched.listen(LIMIT_S + LOOK_S, "n0")
    watched.silence.spare("n1")
    watched.listen(SPARE_S - 2 * LOOK_S, "n0")
    assert (watched.silent, watched.lost) == (["n1"], [])
    watched.listen(3 * LOOK_S, "n0")
    assert watched.silent == ["n1", "n1"]
    assert watched.silence.silent_s["n1"] > LIMIT_S + SPARE_S
    watched.silence.spare("n1")
    watched.listen(1.0, "n0", "n1")
    watched.listen(LIMIT_S + 2 * LOOK_S, "n0")  # it was heard: its next silence is a new one
    assert (watched.silent, watched.lost) == (["n1"] * 3, [])
    watched.silence.spare("n0")  # nothing was told of it
    watched.listen(LIMIT_S + LOOK_S)
    assert "n0" in watched.silent


def test_an_engine_that_waits_for_a_cpu_gets_the_time_to_answer(watched):
    watched.listen(LIMIT_S + LOOK_S, "n0")
    for _ in range(10):
        watched.engine_waited += 1.0
        watched.listen(1.0, "n0")
    assert (watched.silent, watched.lost) == (["n1"], [])
    watched.listen(FENCE_S + LOOK_S, "n0")
    assert watched.lost == ["n1"]


def test_a_node_of_which_nothing_is_needed_may_be_silent_for_longer(watched):
    watched.limits = {"n0": LIMIT_S, "n1": 10.0}
    watched.listen(LIMIT_S + FENCE_S + 1.0)
    assert (watched.silent, watched.lost) == (["n0"], ["n0"])
    watched.limits["n1"] = LIMIT_S  # it was given a slot: what was missed until now counts
    watched.listen(2 * LOOK_S)
    assert watched.silent == ["n0", "n1"]


def test_the_whole_decision_takes_less_than_five_seconds():
    assert LIMIT_S + FENCE_S + 2 * LOOK_S < 5.0


def test_who_ended_in_time_is_not_lost_twice(watched):
    watched.listen(LIMIT_S + LOOK_S * 2, "n0")
    watched.silence.forget("n1")
    watched.listen(60.0, "n0")
    assert watched.lost == []


def test_what_it_says_after_that_does_not_spare_it(watched):
    watched.listen(LIMIT_S + LOOK_S * 2, "n0")
    watched.listen(FENCE_S + LOOK_S * 2, "n0", "n1")
    assert watched.lost == ["n1"]


def test_a_controller_that_was_stopped_blames_nobody(watched):
    for _ in range(5):
        watched.now += 60.0  # stopped, or starved
        watched.silence.look()
    assert watched.silent == []


def test_a_controller_that_cannot_read_any_more_blames_nobody(watched):
    watched.cannot_read = True
    watched.listen(60.0)
    assert watched.silent == []
    watched.cannot_read = False
    watched.listen(LIMIT_S - 2 * LOOK_S)
    assert watched.silent == []


def test_strangers_are_not_missed(watched):
    watched.silence.heard("n9")
    watched.listen(60.0, "n0", "n1")
    assert watched.silent == []


def test_an_agent_that_waits_for_a_processor_is_not_missed_for_that_time():
    watched = Watched()
    waited = watched.waited = {"n0": 100.0}
    for node in ("n0", "n1"):
        watched.silence.expect(node)
    watched.listen(1.0, "n0", "n1")
    for _ in range(30):  # six seconds, in which n0 could hardly run
        waited["n0"] += LOOK_S * 0.9
        watched.listen(LOOK_S)
    assert watched.silent == ["n1"]
    watched.listen(LIMIT_S)
    assert watched.silent == ["n1", "n0"], "then it could, and said nothing"


def test_how_long_an_agent_waited_is_asked_of_agents_of_this_machine_only():
    starved = Starved()
    starved.joined("n0", socket.gethostname(), os.getpid())
    assert starved.waited_s("n0") == 0.0, "this process is no agent"
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "everstep.agent"]) as agent:
        try:
            begins(agent)
            starved.joined("n1", socket.gethostname(), agent.pid)
            starved.joined("n2", "elsewhere", agent.pid)
            before = starved.waited_s("n1")
            assert before >= 0.0
            assert starved.waited_s("n2") == 0.0
        finally:
            agent.kill()
    agent.wait()
    assert starved.waited_s("n1") == 0.0


def test_an_agent_that_the_kernel_keeps_asleep_is_not_missed_for_that_time(watched):
    watched.listen(1.2, "n0")
    watched.blocked = {"n1"}
    watched.listen(30.0, "n0")
    assert watched.silent == []
    watched.blocked = set()
    watched.listen(LIMIT_S - 1.2 - 2 * LOOK_S, "n0")
    assert watched.silent == [], "it gets what was left of its time"
    watched.listen(4 * LOOK_S, "n0")
    assert watched.silent == ["n1"]


def test_nor_for_ever(watched):
    watched.blocked = {"n1"}
    watched.listen(BLOCKED_S + LIMIT_S - 2 * LOOK_S, "n0")
    assert watched.silent == []
    watched.listen(2.0, "n0")
    assert watched.silent == ["n1"]


def test_a_word_gives_it_the_whole_time_again(watched):
    watched.blocked = {"n1"}
    watched.listen(BLOCKED_S - 5.0, "n0")
    watched.listen(LOOK_S, "n0", "n1")
    watched.listen(BLOCKED_S - 5.0, "n0")
    assert watched.silent == []


def test_who_sleeps_in_the_kernel_is_seen():
    """A child that has not yet begun its program keeps its parent so, as a slow disk does."""
    code = "import ctypes, time\nif ctypes.CDLL(None).vfork() == 0: time.sleep(60)"
    held = subprocess.Popen([sys.executable, "-c", code, "everstep.agent"])
    free = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "everstep.agent"])
    starved = Starved()
    try:
        begins(held)
        begins(free)
        starved.joined("held", socket.gethostname(), held.pid)
        starved.joined("free", socket.gethostname(), free.pid)
        starved.joined("stranger", socket.gethostname(), os.getpid())
        late = time.monotonic() + 30
        while not starved.is_blocked("held"):
            assert time.monotonic() < late
            time.sleep(0.01)
        assert not starved.is_blocked("stranger")
        assert not starved.is_blocked("never joined")
        free.send_signal(signal.SIGSTOP)  # whoever is stopped could be gone for good
        while proc.stat(free.pid).state != "T":
            assert time.monotonic() < late
        assert not starved.is_blocked("free")
    finally:
        for child in proc.children_by_parent().get(held.pid, []):
            os.kill(child, signal.SIGKILL)
        for process in (held, free):
            process.kill()
            process.wait()


def begins(process: subprocess.Popen[bytes]) -> None:
    """Its command line can be read: a moment after its start."""
    late = time.monotonic() + 30
    while b"everstep.agent" not in proc.read_or_nothing(f"/proc/{process.pid}/cmdline"):
        assert time.monotonic() < late
        time.sleep(0.002)


COMPETING = """
import hashlib, os, threading
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
def work():
    while True:
        hashlib.sha256(bytes(1 << 22))
for _ in range(2):
    threading.Thread(target=work).start()
"""


def test_another_thread_that_waits_for_a_processor_counts_too():
    """It may hold the interpreter's lock, which the thread that speaks waits for."""
    starved = Starved()
    with subprocess.Popen([sys.executable, "-c", COMPETING, "everstep.agent"]) as agent:
        try:
            begins(agent)
            starved.joined("n0", socket.gethostname(), agent.pid)
            late = time.monotonic() + 30
            while starved.waited_s("n0") - proc.sched_ns(agent.pid)[1] / 1e9 < 0.2:
                assert time.monotonic() < late
                time.sleep(0.02)
        finally:
            agent.kill()


def test_the_engine_gets_its_whole_time_from_when_it_is_told(watched):
    """A loop that was late told it late; its time to end the node does not shrink by that."""
    watched.listen(LIMIT_S - LOOK_S / 2, "n1")
    watched.now += 10 * LOOK_S  # counts as two looks
    watched.silence.heard("n1")
    watched.silence.look()
    assert watched.silent == ["n0"]
    watched.listen(FENCE_S - LOOK_S, "n1")
    assert watched.lost == []
    watched.listen(2 * LOOK_S, "n1")
    assert watched.lost == ["n0"]
