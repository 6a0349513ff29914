"""Contests of launchers, and how they are started, with real processes: they restart, give up, or hang."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[3] / "bench"

# A launcher of two ranks in sessions of their own. It restarts both when one ends, or does what MODE says.
LAUNCHER = """
import os, subprocess, sys, time
RANK = '''
import os, sys, time
restart, rank = sys.argv[1:]
with open(os.environ["EVERSTEP_BENCH_DIR"] + f"/rank-{rank}.log", "a", buffering=1) as log:
    for step in range(100000):
        time.sleep(0.005)
        log.write(f"{restart} {rank} {step} {time.monotonic():.6f} {os.getpid()}\\\\n")
'''
mode = os.environ["MODE"]
if mode == "broken":
    sys.exit("no such script")
for restart in range(10):
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK, str(restart), str(rank)], start_new_session=True)
        for rank in range(2)
    ]
    while all(rank.poll() is None for rank in ranks):
        time.sleep(0.005)
    if mode == "orphans":
        sys.exit(3)
    for rank in ranks:
        rank.kill()
        rank.wait()
    if mode == "hangs":
        time.sleep(1000)
"""

# The driver runs in a process of its own: it becomes a subreaper, which the test's process must not.
DRIVER = """
import json, os, sys
from pathlib import Path
from contests.contest import NeverTrainedError, Plan, as_json, measure
from measuring.launched import adopt_orphans, descendants, end_on_sigterm
from contests.peers import Contender

adopt_orphans()
end_on_sigterm()
folder = Path(sys.argv[1])
plan = Plan(num_ranks=2, kills=2, min_steps=5, settle_s=0.02, recovery_timeout_s=float(sys.argv[2]))
contender = Contender(name="toy", title="toy", command=(sys.executable, str(folder / "launcher.py")))
try:
    found = measure(contender, plan, round_=1, seed=7, folder=folder / "launch", say=lambda what: None)
    print(json.dumps({"found": [as_json(one) for one in found], "left": descendants(os.getpid())}))
except NeverTrainedError as error:
    print(json.dumps({"failed": str(error), "left": descendants(os.getpid())}))
"""


def driver(tmp_path: Path, mode: str, recovery_timeout_s: float) -> subprocess.Popen:
    (tmp_path / "launcher.py").write_text(textwrap.dedent(LAUNCHER))
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), str(recovery_timeout_s)],
        env={**os.environ, "PYTHONPATH": str(BENCH), "MODE": mode},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def drive(tmp_path: Path, mode: str, recovery_timeout_s: float = 60) -> dict:
    with driver(tmp_path, mode, recovery_timeout_s) as process:
        output, errors = process.communicate(timeout=150)
    assert process.returncode == 0, errors
    return json.loads(output)


def test_two_kills_of_a_launcher_that_restarts_are_two_measurements(tmp_path: Path):
    result = drive(tmp_path, "restarts")
    assert [one["kill"] for one in result["found"]] == [1, 2]
    assert all(0 < one["recovered_s"] < 60 for one in result["found"])
    assert result["left"] == []


def test_a_launcher_that_hangs_never_recovers_and_is_ended(tmp_path: Path):
    result = drive(tmp_path, "hangs", recovery_timeout_s=0.5)
    assert [one["recovered_s"] for one in result["found"]] == [None]
    assert "no step of a new attempt within 0.5 s" in result["found"][0]["why"]
    assert result["left"] == []


def test_a_launcher_that_gives_up_says_its_exit_code_and_its_orphans_are_ended(tmp_path: Path):
    result = drive(tmp_path, "orphans")
    assert [one["recovered_s"] for one in result["found"]] == [None]
    assert "launcher ended with 3" in result["found"][0]["why"]
    assert result["left"] == []


def test_a_launch_that_never_trains_is_a_failure_with_its_last_words(tmp_path: Path):
    result = drive(tmp_path, "broken")
    assert result["failed"] == "launcher ended with 1: no such script"
    assert result["left"] == []


def rank_pids(tmp_path: Path) -> set[int]:
    logs = (tmp_path / "launch" / "steps").glob("rank-*.log")
    return {int(line.split()[4]) for log in logs for line in log.read_text().splitlines()[:3]}


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ending_the_benchmark_ends_the_ranks(tmp_path: Path, how: signal.Signals):
    with driver(tmp_path, "hangs", 60) as process:
        deadline = time.monotonic() + 60
        while len(rank_pids(tmp_path)) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(how)
        process.communicate(timeout=60)
    assert process.returncode != 0
    assert not [pid for pid in rank_pids(tmp_path) if Path(f"/proc/{pid}").exists()]
