"""What a rank leaves running: the user's after success, as under torchrun; ended with a generation that failed."""

import contextlib
import os
import signal
import time
from pathlib import Path

from lateness import Lateness
from real_run import Launcher, Run

LEAVES = """
sleep 3000 & echo $! > "$EVERSTEP_TEST_DIR-same"
setsid sleep 3000 & echo $! > "$EVERSTEP_TEST_DIR-own"
sleep 0.3
exit $1
"""


def left(run: Run) -> list[int]:
    """The two that were left, as far as they run."""
    pids = [int(Path(f"{run.run_dir}-{name}").read_text()) for name in ("same", "own")]
    return [pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and _state(pid) not in "ZX"]


def _state(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


def start(launcher: Launcher, code: int, *flags: str, run_dir: str = "run") -> Run:
    return launcher.start(*flags, "--no-python", "sh", launcher.script(LEAVES, "leaves.sh"), code, run_dir=run_dir)


def test_after_success_it_goes_on_and_is_named(launcher: Launcher):
    run = start(launcher, 0)
    assert run.wait() == 0, run.story()
    pids = left(run)
    try:
        assert len(pids) == 2, run.story()
        for pid in pids:
            assert f"process {pid} (sleep 3000)" in run.err(), run.err()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


def test_it_is_killed_where_that_is_asked_for(launcher: Launcher):
    run = start(launcher, 0, "--leftovers", "kill")
    assert run.wait() == 0, run.story()
    assert left(run) == []
    assert run.err().count("killed (--leftovers kill)") == 2


def test_it_is_waited_for_where_that_is_asked_for(launcher: Launcher):
    run = start(launcher, 0, "--leftovers", "wait")
    run.until("it is said", lambda: run.err().count("waiting for it") == 2)
    assert run.process.poll() is None
    for pid in left(run):
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with Lateness() as late:
        assert run.wait() == 0, run.story()
    assert time.monotonic() - began < 50 + late.seconds
    assert "it continues, as with torchrun" not in run.err()


def test_a_failed_run_leaves_nothing(launcher: Launcher):
    run = start(launcher, 3, "--max-restarts", "0")
    assert run.wait() != 0
    assert left(run) == []
