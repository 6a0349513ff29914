"""Faults of nodes under a real Slurm: how long until all ranks step again, and what Slurm then says of the node.

    python bench/slurm.py [--nodes 5] [--standby 1] [--silent 1.5] [--faults rank,agent,power-off,...]

munge, slurmctld and one slurmd per node in namespaces of their own (`everstep.testing.slurm`); needs root and Debian's
slurmctld, slurmd, slurm-client and munge. Each fault is one job of its own, submitted by `everstep submit` on the login
host. SlurmdTimeout is Slurm's default of 300 s, so Slurm itself notices nothing in time.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from everstep.journal.runs import find_run
from everstep.testing.hosts import Host
from everstep.testing.slurm import PARTITION, URGENT, SlurmBed

sys.path.insert(0, str(Path(__file__).parent))
from hosts import TRAIN
from measuring.watched import STEP, Watched

AWAY_S = 60.0
"""Of slurmctld."""

FAULTS = ("rank", "agent", "power-off", "freeze", "cut", "drain", "preempt", "two", "ctld")
FIRST = ("first", "first-frozen")
"""The node with the controller and the batch script: powered off, or frozen and woken after `WAKES_S`."""

WAKES_S = 30.0
WAITING_S = 12.0
"""By then the host that would take over has a controller that waits."""


class Job(Watched):
    """One run, as the login host sees it through the shared home."""

    def __init__(self, bed: SlurmBed, nodes: int, standby: int, silent_s: float, more: tuple[str, ...] = ()) -> None:
        self.bed, self.num_ranks = bed, nodes
        shared = bed.folder / "shared"
        (shared / "train.py").write_text(TRAIN)
        (shared / "everstep.toml").write_text(f"[policy]\nnode_silent_s = {silent_s}\nexamine = false\n")
        self.env = {"EVERSTEP_HOME": str(shared / "home")}
        command = ["submit", "--nodes", nodes, "--standby", standby, "--config", shared / "everstep.toml", *more]
        said = self.everstep(*command, shared / "train.py")
        self.id = said.split()[1]
        self.run_dir = shared / "home" / "runs" / f"slurm-{self.id}"
        self.out = self.run_dir.with_suffix(".out")

    def everstep(self, *words: object) -> str:
        return self.bed.run(sys.executable, "-P", "-m", "everstep.cli.main", *words, env=self.env)

    def until(self, what: str, condition: Callable[[], bool], limit_s: float = 150.0) -> None:
        try:
            super().until(what, condition, limit_s)
        except SystemExit as never:
            raise SystemExit(f"{never}\n{self.bed.run('sinfo', '-N')}") from None

    def said(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else "(nothing)"

    def actions(self) -> list[dict[str, object]]:
        lines = (self.run_dir / "journal.jsonl").read_text().splitlines()
        return [action for line in lines for action in json.loads(line).get("actions", ())]

    def acted_at(self) -> float:
        """When a successor had read the journal, and decided for the first time; no rank was started twice."""
        starts = [(each["generation"], each["first_rank"]) for each in self.actions() if "resume_step" in each]
        assert len(starts) == len(set(starts)), f"started twice: {starts}"
        lines = (self.run_dir / "journal.jsonl").read_text().splitlines()
        return next(event["at"] for line in lines if (event := json.loads(line).get("event", {})).get("took_over"))

    def host_of(self, rank: int) -> Host:
        """The machine on which this rank runs now: the node that has an open file of its log."""
        node = [
            str(each["node"]) for each in self.actions() if each.get("first_rank") == rank and "resume_step" in each
        ]
        for host in self.bed.nodes.values():
            for pid in host.pids():
                words = _words(pid)
                if "everstep.agent" in words and words[words.index("--node") + 1] == node[-1]:
                    return host
        raise SystemExit(f"rank {rank} of {node} is on no host")


def _words(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def cause(job: Job, fault: str, host: Host) -> None:
    if fault in ("power-off", "two", "ctld"):
        host.power_off()
    elif fault == "freeze":
        host.freeze()
    elif fault == "cut":
        host.cut()
    elif fault == "drain":
        job.bed.run("scontrol", "update", f"NodeName={host.name}", "State=DRAIN", "Reason=a fan is to be replaced")
    else:
        wanted = "everstep.agent" if fault == "agent" else "train.py"
        found = [pid for pid in host.pids() if any(word.endswith(wanted) for word in _words(pid))]
        ranks = [pid for pid in found if fault == "agent" or _is_rank(pid)]
        os.kill((ranks or found)[0], signal.SIGKILL)


def _is_rank(pid: int) -> bool:
    try:
        return b"\0RANK=" in b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def measure(job: Job, fault: str) -> str:
    rank = job.num_ranks - 1
    job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 40))
    before, host, at = job.generation(), job.host_of(rank), time.time()
    if fault == "ctld":
        job.bed.stop_controller()
    cause(job, fault, host)
    if fault == "two":
        second = job.host_of(rank - 1)
        cause(job, fault, second)
    job.until(
        f"a new generation after {fault}", lambda: job.generation() > before and job.all_stepped(job.generation(), 3)
    )
    after = job.generation()
    took = max(job.steps(after, each)[0][1] for each in range(job.num_ranks)) - at
    first = max(job.steps(after, each)[0][0] for each in range(job.num_ranks))
    printed = min(job.steps(before, each)[-1][0] for each in range(job.num_ranks))
    lost = max(0, printed - first)  # the last one is kept only after it is printed
    if fault == "ctld":
        time.sleep(max(0.0, at + AWAY_S - time.time()))
        job.bed.start_controller()
    return f"{took:6.2f} s  lost {lost}  {_slurm_says(job, fault, host)}"


def _slurm_says(job: Job, fault: str, host: Host) -> str:
    if fault in ("rank", "agent"):
        return ""

    def is_told() -> bool:
        try:
            is_out = job.bed.state_of(host.name).startswith(("down", "drain"))
            return is_out and ("everstep" in job.bed.reason_of(host.name) or fault == "drain")
        except subprocess.CalledProcessError:
            return False

    job.until("our reason in sinfo", is_told, 60)
    return f"{host.name} {job.bed.state_of(host.name)}: {job.bed.reason_of(host.name)}"


def preempted(job: Job) -> str:
    job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 40))
    at = time.time()
    job.bed.run("sbatch", "-p", URGENT, "-N", len(job.bed.nodes), "--wrap", "sleep 1")
    job.until("the end", lambda: (job.run_dir / "exit-code").exists())
    last = min(job.steps(job.generation(), rank)[-1][0] for rank in range(job.num_ranks))
    took = time.time() - at
    code = (job.run_dir / "exit-code").read_text().strip()
    saved = job.everstep("ckpt", "ls", "--dir", job.bed.folder / "shared" / "ckpt")
    return f"{took:6.2f} s until the end, exit code {code}, last step {last}; everstep ckpt ls: {saved.strip()}"


def succeeded(job: Job, fault: str) -> str:
    begun, first, rank = job.run_dir, job.bed.nodes["n0"], 0
    job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 40))
    time.sleep(WAITING_S)
    before = job.generation()
    last = min(job.steps(before, each)[-1][0] for each in range(job.num_ranks))
    at = time.time()
    first.freeze() if fault == "first-frozen" else first.power_off()
    job.until("another controller", lambda: find_run(str(begun)).path != begun)
    job.run_dir = find_run(str(begun)).path
    job.until("all ranks", lambda: job.generation() > before and job.all_stepped(job.generation(), 3))
    after = job.generation()
    steps = [job.steps(after, each)[0] for each in range(job.num_ranks)]
    lost = max(0, last - max(step for step, _ in steps))
    text = f"{max(when for _, when in steps) - at:6.2f} s  acts {job.acted_at() - at:.2f} s  lost {lost}"
    text += f"  {_slurm_says(job, fault, first)}"
    if fault == "first-frozen":
        time.sleep(max(0.0, at + WAKES_S - time.time()))
        first.thaw()
        job.until("the end of its launcher", lambda: not _launchers(first))
        more = len(job.steps(after, rank)) + 40
        job.until("more steps", lambda: job.all_stepped(after, more))
        own = begun.glob("logs/gen-*/rank-*/stdout.log")
        late = [line for path in own for line in path.read_text().splitlines() if _when(line) > at + WAKES_S]
        text += f"; woken after {WAKES_S:g} s: {len(late)} steps of its ranks, generation {job.generation()} goes on"
    said = job.everstep("stop", f"slurm-{job.id}")
    job.until("the end of the job", lambda: not job.bed.run("squeue", "-h", "-o", "%i").strip())
    return f"{text}; {said.strip()}; exit code {(begun / 'exit-code').read_text().strip()}"


def _launchers(host: Host) -> list[int]:
    return [pid for pid in host.pids() if "everstep.cli.main" in _words(pid) and _words(pid)[0] != "srun"]


def _when(line: str) -> float:
    found = STEP.fullmatch(line)
    return float(found[2]) if found else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--standby", type=int, default=1)
    parser.add_argument("--silent", type=float, default=1.5, help="policy node_silent_s")
    parser.add_argument("--faults", default=",".join((*FAULTS, *FIRST)))
    parser.add_argument("--show", action="store_true", help="also what the job said")
    given = parser.parse_args()
    for fault in given.faults.split(","):
        extra = 1 if fault == "two" else 0  # for the pilot job
        with SlurmBed(given.nodes + given.standby + extra) as bed:
            more = ("--checkpoint-dir", str(bed.folder / "shared" / "ckpt")) if fault == "preempt" else ()
            job = Job(bed, given.nodes, given.standby, given.silent, more)
            how = preempted if fault == "preempt" else partial(succeeded if fault in FIRST else measure, fault=fault)
            text = how(job)
            print(f"{fault:<10} {text}  (load {os.getloadavg()[0]:.0f})", flush=True)
            if given.show:
                print(job.said(), flush=True)
            print(bed.run("sinfo", "-p", PARTITION, "-N", "-o", "%N %T %E"), flush=True) if given.show else None


if __name__ == "__main__":
    main()
