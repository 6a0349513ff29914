"""An agent of which nothing is heard: lost, or only late? Asked of real processes."""

import os
import signal
import subprocess
import sys
import time

import pytest

from everstep.engines.lateness import LATE_S, RECENT_S, Beats, find_late

SPINS, SLEEPS = "while True: pass", "import time; time.sleep(1000)"


@pytest.fixture
def process(request):
    program = f"print(1, flush=True)\n{request.param}"
    started = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert started.stdout is not None
    started.stdout.readline()
    yield started
    started.kill()
    started.wait()
    started.stdout.close()


def until_state(pid, state):
    ends_at = time.monotonic() + 30
    while (found := find_late(pid, 9.0)) is None or found.state != state:
        assert time.monotonic() < ends_at, found
        time.sleep(0.01)
    return found


@pytest.mark.parametrize(("process", "state"), [(SPINS, "R"), (SLEEPS, "S")], indirect=["process"])
def test_one_that_lives_and_said_nothing_to_its_launcher_is_late(process, state):
    found = until_state(process.pid, state)
    assert (found.pid, found.silent_s) == (process.pid, 9.0)
    assert found.cpu_wait_share is None or 0 <= found.cpu_wait_share <= 1
    assert find_late(process.pid, LATE_S / 2) is None  # heard by its launcher: it is cut off


@pytest.mark.parametrize("process", [SPINS], indirect=True)
def test_one_that_is_stopped_or_gone_is_not_late(process):
    process.send_signal(signal.SIGSTOP)
    ends_at = time.monotonic() + 30
    while find_late(process.pid, 9.0) is not None:
        assert time.monotonic() < ends_at
        time.sleep(0.01)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert find_late(process.pid, 9.0) is None  # not collected yet
    process.wait()
    assert find_late(process.pid, 9.0) is None


def test_a_silence_counts_until_what_was_said_after_it_can_have_arrived_elsewhere():
    beats = Beats()
    assert beats.silent_s("n1", 100.0) == 0.0
    beats.expect("n1", 100.0)
    for tenths in range(1000, 1030):
        beats.hear("n1", tenths / 10)
    assert beats.silent_s("n1", 103.0) == pytest.approx(0.1)
    beats.hear("n1", 107.0)
    assert beats.silent_s("n1", 107.0 + RECENT_S / 2) == pytest.approx(4.1)
    beats.hear("n1", 108.0)
    beats.hear("n1", 109.0)
    assert beats.silent_s("n1", 109.1) == pytest.approx(0.1)
    beats.forget("n1")
    assert beats.silent_s("n1", 200.0) == 0.0
