"""`everstep trace` of a real run: one file on one time axis, and errors that say what is wrong."""

import json
import os
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from real_run import Launcher

PROGRAM = """
import sys, time
import uncompiled
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
told = open(f"{sys.argv[1]}/{rank}", "w", buffering=1)
def waits_on_purpose():
    told.write(f"{time.time()}\\n")
    time.sleep(0.3)
def works():
    until = time.time() + 0.2
    while time.time() < until:
        sum(range(1000))
for step in range(100_000):
    waits_on_purpose()
    works()
    model(torch.ones(8, 64)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step}", flush=True)
"""


def trace(*args, env=None):
    command = [sys.executable, "-m", "everstep", "trace", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=180, env=env)


@pytest.fixture
def run(launcher: Launcher, tmp_path):
    """Of two ranks that wait for 0.3 s, compute for 0.2 s and exchange gradients."""
    started = launcher.start("--nproc-per-node", 2, launcher.script(PROGRAM), tmp_path)
    started.until_step(2)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGINT)
        started.wait()


def nested(slices):
    """Whether slices of one lane contain each other or are apart; in the file's order."""
    open_ = []
    for each in slices:
        begin, end = each["ts"], each["ts"] + each["dur"]
        while open_ and open_[-1] <= begin:
            open_.pop()
        if open_ and end > open_[-1]:
            return False
        open_.append(end)
    return True


def test_a_rank_is_traced_on_one_time_axis(run, tmp_path):
    said = trace("rank", 1, "--run-dir", run.run_dir, "--for", "3s", "--json")
    assert said.returncode == 0, said.stderr
    told = json.loads(said.stdout)
    made = json.loads(Path(told["path"]).read_text())
    events = made["traceEvents"]
    assert told["tracks"] == made["otherData"]["tracks"]
    is_measured = {each["track"]: each["is"] for each in told["tracks"]}
    assert is_measured == {
        "steps": "measured",
        "collectives": "measured",
        "waits for a CPU": "measured",
        "off CPU": "unknown",
        "stacks": "measured",
    }, told
    length = (told["end"] - told["begin"]) * 1e6
    assert all(0 <= each["ts"] <= length for each in events if each["ph"] != "M")
    lanes = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    of_lane = {tid: [e for e in events if e["ph"] == "X" and e["tid"] == tid] for tid in lanes}
    assert all(nested(slices) for slices in of_lane.values())
    named = {name: of_lane[tid] for tid, name in lanes.items()}
    steps = named["steps"]
    assert len(steps) >= 3
    reduced = [e for name, slices in named.items() if name.startswith("collectives") for e in slices]
    assert {e["name"] for e in reduced} == {"all_reduce"}
    assert {e["args"]["bytes"] for e in reduced} == {4 * 64 * 64, 4 * 64}
    # Each stands in a step; the first and the last step may be cut.
    inside = [any(s["ts"] <= e["ts"] <= s["ts"] + s["dur"] for s in steps) for e in reduced]
    assert sum(inside) >= len(inside) - 4
    stacks = [e for name, slices in named.items() if name.startswith("stacks") for e in slices]
    waits = [told["begin"] + e["ts"] / 1e6 for e in stacks if e["name"].startswith("waits_on_purpose")]
    assert len(waits) >= 3
    truth = [float(line) for line in (tmp_path / "1").read_text().split()[:-1]]
    apart = [min(abs(at - true) for true in truth) for at in waits]
    # By chance it would be 0.13 s. A sampler that waits for a CPU says what it is exact to.
    exact_s = int(told["tracks"][4]["why"].split()[-2]) / 1000
    assert statistics.median(apart) < 0.05 + exact_s, (apart, exact_s)


def test_what_cannot_be_traced_is_said(run):
    for args, words in (
        (("rank", 7, "--run-dir", run.run_dir), "ranks 0 to 1"),
        (("rank", 0, "--run-dir", run.run_dir, "--for", "never"), "such as 10s"),
        (("rank", 0, "--run-dir", run.run_dir, "--for", "0.2s", "--out", "/nowhere/x.json"), "cannot write"),
    ):
        said = trace(*args)
        assert said.returncode == 2, said
        assert words in said.stderr
    run.process.send_signal(signal.SIGINT)
    run.wait()
    said = trace("rank", 0, "--run-dir", run.run_dir)
    assert said.returncode == 2
    assert "is over" in said.stderr


def test_without_py_spy_the_other_tracks_are_there(run):

    said = trace(
        "rank", 0, "--run-dir", run.run_dir, "--for", "1s", "--json", env={**os.environ, "EVERSTEP_PY_SPY": "off"}
    )
    told = {each["track"]: each for each in json.loads(said.stdout)["tracks"]}
    assert told["stacks"]["is"] == "unknown"
    assert "switched off" in told["stacks"]["why"]
    assert told["collectives"]["is"] == "measured"
