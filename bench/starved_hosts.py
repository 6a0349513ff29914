"""Healthy hosts that starve: does anything end them, and does one that really is powered off cost little meanwhile?

    python bench/starved_hosts.py [--loads 0,5,10,20] [--runs 10] [--seconds 40] [--power-off] [--one-cpu]

Each run has hosts of its own (`everstep.testing.hosts`; needs root), with a home each and nothing warm: `--nnodes 3
--standby 1`, one rank each, the same command on all, on two cores that a number of busy processes share with them. Per
run: nodes lost, first step, the longest silence of an agent to its launcher and to the controller. `--power-off`: one
host is powered off after ten steps. `--one-cpu`: instead one launcher with four ranks, all in a cgroup of one CPU.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from everstep.testing.hosts import Bed
from hosts import TRAIN, Job

LIMIT_S = 240.0
CGROUP = Path("/sys/fs/cgroup/cpu/everstep-starved")


@contextlib.contextmanager
def busy(number: int) -> Iterator[None]:
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(number)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def records(run_dir: Path) -> list[dict]:
    path = run_dir / "journal.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = []
    for line in lines:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def told(run_dir: Path) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for record in records(run_dir):
        event = record.get("event", {})
        found.setdefault(event.get("kind", event.get("event", event.get("type", ""))), []).append(event)
    return found


def summary(run_dir: Path) -> str:
    found = told(run_dir)
    names = ("NodeSilent", "NodeSpared", "NodeInDoubt", "NodeLost")
    return "  ".join(f"{name} {len(found.get(name, ()))}" for name in names)


def longest(logs: list[Path]) -> str:
    """Of each agent to its launcher, seconds."""
    found = [line.split() for path in logs for line in path.read_text(errors="replace").splitlines()]
    return ", ".join(sorted(words[-2] for words in found if "said nothing for at most" in " ".join(words)))


def steps_of(run_dir: Path, ranks: int) -> int:
    """The newest step that all have printed, over all generations; -1: none."""
    newest = []
    for rank in range(ranks):
        texts = [path.read_text(errors="replace") for path in run_dir.glob(f"logs/gen-*/rank-{rank}/stdout.log")]
        steps = [int(line.split()[1]) for text in texts for line in text.splitlines() if line.startswith("step ")]
        newest.append(max(steps, default=-1))
    return min(newest)


def until_step(run_dir: Path, ranks: int, step: int, limit_s: float) -> float | None:
    began = time.monotonic()
    while steps_of(run_dir, ranks) < step:
        if time.monotonic() - began > limit_s:
            return None
        time.sleep(0.05)
    return time.monotonic() - began


def seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f} s"


def on_hosts(load: int, length_s: float, has_loss: bool) -> str:
    with tempfile.TemporaryDirectory() as folder, Bed() as bed, busy(load):
        job = Job(bed, Path(folder), 3, 1, 0.0)
        try:
            first = until_step(job.run_dir, 3, 0, LIMIT_S)
            text = f"load {load}: first step {seconds(first)}"
            if has_loss and first is not None:
                until_step(job.run_dir, 3, 10, LIMIT_S)
                rank, before = 2, steps_of(job.run_dir, 3)
                at = time.time()
                job.host_of(rank).power_off()
                again = until_recovered(job, at, LIMIT_S)
                return f"{text}, powered off at step {before}: next step after {seconds(again)}  {summary(job.run_dir)}"
            time.sleep(length_s)
            text = f"{text}, {steps_of(job.run_dir, 3)} steps  {summary(job.run_dir)}"
            job.processes[0].terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.processes[0].wait(30)
            logs = [path for host in job.hosts for path in host.folder.glob("home/**/launcher.log")]
            return f"{text}  longest silences {longest(logs)}"
        finally:
            for host in job.hosts:
                host.close()


def until_recovered(job: Job, at: float, limit_s: float) -> float | None:
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        generation = job.generation()
        firsts = [steps[0][1] for rank in range(3) if (steps := job.steps(generation, rank))]
        if len(firsts) == 3 and min(firsts) > at:
            return max(firsts) - at
        time.sleep(0.05)
    return None


def in_one_cpu(length_s: float) -> str:
    CGROUP.mkdir(exist_ok=True)
    (CGROUP / "cpu.cfs_quota_us").write_text("100000")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        command = [sys.executable, "-m", "everstep.cli.main", "run", "--nproc-per-node", "4", "train.py"]
        enter = ["sh", "-c", f'echo $$ > {CGROUP}/cgroup.procs; exec "$@"', "sh"]
        with (folder / "err").open("wb") as err:
            run = subprocess.Popen(
                [*enter, *command],
                cwd=folder,
                env={**os.environ, "EVERSTEP_HOME": str(folder / "home")},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=err,
            )
        try:
            run_dir = folder / "home" / "runs" / "latest"
            first = until_step(run_dir, 4, 0, LIMIT_S)
            time.sleep(length_s)
            return f"one CPU: first step {seconds(first)}, {steps_of(run_dir, 4)} steps  {summary(run_dir)}"
        finally:
            run.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(60)
            run.kill()
            run.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="0,5,10,20")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=40.0, help="after the first step")
    parser.add_argument("--power-off", action="store_true")
    parser.add_argument("--one-cpu", action="store_true")
    options = parser.parse_args()
    for number in range(options.runs):
        if options.one_cpu:
            print(number, in_one_cpu(options.seconds), flush=True)
            continue
        for load in map(int, options.loads.split(",")):
            print(number, on_hosts(load, options.seconds, options.power_off), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
