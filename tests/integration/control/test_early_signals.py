"""A signal at any moment of the start: the run gets an end, and nothing of it stays."""

import signal
import time

import pytest
from real_run import Launcher

from everstep.model.actions import Finish


@pytest.mark.parametrize(
    ("number", "after_s"),
    [(signal.SIGTERM, 0.0), (signal.SIGINT, 0.0), (signal.SIGTERM, 0.1), (signal.SIGINT, 0.3)],
    ids=["term-at-once", "int-at-once", "term-soon", "int-later"],
)
def test_it_stops_the_run_in_order(launcher: Launcher, number: signal.Signals, after_s: float) -> None:
    script = launcher.script("import time; time.sleep(1000)")
    run = launcher.start("--nnodes", 1, "--rdzv-endpoint", "127.0.0.1:0", "--rdzv-backend", "c10d", script)
    run.until("its first file", lambda: (run.run_dir / "spec.json").exists())
    time.sleep(after_s)
    run.process.send_signal(number)
    assert run.wait() == 128 + number, run.story()
    assert f"stopped by {number.name}" in run.err(), run.story()
    assert "failed" not in run.err(), run.story()
    assert not list(run.run_dir.glob("join-token"))
    finished = run.actions(Finish)
    assert not finished or finished[-1].outcome == "stopped"


def test_the_second_one_ends_it_whatever_it_waits_for(launcher: Launcher) -> None:
    run = launcher.start(launcher.script("import time; time.sleep(1000)"))
    run.until("its first file", lambda: (run.run_dir / "spec.json").exists())
    began = time.monotonic()
    while run.process.poll() is None and time.monotonic() < began + 20:
        run.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    assert run.wait() in (-signal.SIGTERM, 128 + signal.SIGTERM), run.story()
