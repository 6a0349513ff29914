"""Hosts of one run that fail: how long until all ranks step again, and what is lost.

    python bench/hosts.py [--hosts 6] [--standby 3] [--silent 1.5] [--rounds 3] [--faults rank,agent,power-off,...]
    python bench/hosts.py --hosts 2 --standby 1 --faults controller-host,controller-frozen

Each host is a network, process, name and mount namespace with an address of its own, started by a command of its own
(`everstep.testing.hosts`); needs root. The time is from the fault to the first step that every rank has done in a newer
generation, detection included. `lost`: steps that every rank had completed before the fault and had to do again.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from everstep.testing.hosts import Bed, Host
from measuring.watched import STEP, Watched

TRAIN = """
import time
import torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(1_000_000):
    model(torch.ones(2, 64)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, f"{time.time():.3f}", flush=True)
    time.sleep(0.05)
"""
DISK_MIB = 64
FAULTS = ("rank", "agent", "power-off", "freeze", "cut", "deaf", "mute")
CONTROLLER = ("controller-host", "controller-frozen", "controller-recovering")
"""The first host's end, where two others keep the journal: powered off, frozen and woken after `AWAY_S`, or powered off
within half a second after a rank of another host was killed."""

AWAY_S = 30.0
WAITING_S = 12.0
"""By then the host that would take over has a controller that waits."""

LASTING = ("loss", "disk")
"""Nothing need be replaced: the run goes on, with what it has."""


class Job(Watched):
    """A run on the hosts of a bed, watched through the first host's run directory."""

    def __init__(self, bed: Bed, folder: Path, num_hosts: int, num_standby: int, silent_s: float) -> None:
        """`silent_s`: 0 leaves everything as it is without a policy."""
        self._env = {"EVERSTEP_JOIN_TOKEN": "the token of this benchmark"}
        self.folder, self.num_ranks = folder, num_hosts
        program, policy = folder / "train.py", folder / "everstep.toml"
        program.write_text(TRAIN)
        policy.write_text(f"[policy]\nnode_silent_s = {silent_s}\nexamine = false\n" if silent_s else "")
        self.hosts = [bed.add(f"h{number}", disk_mib=DISK_MIB) for number in range(num_hosts + num_standby)]
        self._bed, self._num_spare = bed, 0
        self._command = [sys.executable, "-m", "everstep.cli.main", "run", "--nnodes", str(num_hosts)]
        self._command += ["--standby", str(num_standby), "--config", str(policy), "--max-restarts", "1000"]
        self._command += ["--rdzv-endpoint", f"{self.hosts[0].address}:29400", str(program)]
        self.processes: list[subprocess.Popen[bytes]] = [self._start(host) for host in self.hosts]
        self.run_dir = self.hosts[0].folder / "home" / "runs" / "latest"

    def _start(self, host: Host) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{host.name}.err").open("wb") as err:
            return host.start(self._command, env=self._env, err=err)

    def add_standby(self) -> None:
        """In the place of one that was used."""
        self._num_spare += 1
        self.hosts.append(self._bed.add(f"spare{self._num_spare}", disk_mib=DISK_MIB))
        self.processes.append(self._start(self.hosts[-1]))

    def last_step(self) -> int:
        """That the first host's rank has printed: it is there whatever becomes of the link of another one."""
        generation = self.generation()
        return max(
            (steps[-1][0] for rank in range(self.num_ranks) if (steps := self.steps(generation, rank))), default=0
        )

    def said(self) -> str:
        return (self.folder / "h0.err").read_text()

    def is_warm(self) -> bool:
        """The newest node of each host has a process that has imported what ranks import."""
        for host in self.hosts:
            logs = sorted(host.folder.glob("home/*/*/nodes/*/agent.log"), key=lambda path: int(path.parent.name[1:]))
            own = [path for path in logs if host is not self.hosts[0] or (path.parent / "credentials.json").exists()]
            if not own or "has imported ahead" not in own[-1].read_text(errors="replace"):
                return False
        return True

    def successor(self) -> tuple[Path, float] | None:
        """Its run directory, and when it first acted."""
        for host in self.hosts[1:]:
            for path in host.folder.glob("home/hosts/*/journal.jsonl"):
                for line in path.read_text().splitlines():
                    event = json.loads(line).get("event", {})
                    if event.get("took_over") and (path.parent / "controller.log").exists():
                        return path.parent, event["at"]
        return None

    def started_after(self, at: float) -> bool:
        """The newest generation was decided on after that; none was started twice."""
        started: dict[tuple[int, int], float] = {}
        for line in (self.run_dir / "journal.jsonl").read_text().splitlines():
            record = json.loads(line)
            for action in record.get("actions", ()):
                if "resume_step" in action and "first_rank" in action:
                    key = action["generation"], action["first_rank"]
                    assert key not in started, f"started twice: {key}"
                    started[key] = record["at"]
        return started[max(started)] > at

    def node_of(self, rank: int) -> str:
        found = ""
        for line in (self.run_dir / "journal.jsonl").read_text().splitlines():
            for action in json.loads(line).get("actions", ()):
                if action.get("first_rank") == rank and "resume_step" in action:
                    found = action["node"]
        return found

    def pid_of(self, rank: int) -> int:
        found = 0
        for line in (self.run_dir / "journal.jsonl").read_text().splitlines():
            for started in json.loads(line).get("event", {}).get("started", ()):
                found = started["pid"] if started["rank"] == rank else found
        return int(found)

    def host_of(self, rank: int) -> Host:
        node = self.node_of(rank)
        return next(host for host in self.hosts if list(host.folder.glob(f"home/hosts/*/nodes/{node}")))


def cause(fault: str, host: Host, inner_pid: int) -> None:
    """`inner_pid`: of the rank, as its own host numbers it."""
    if fault == "power-off":
        host.power_off()
    elif fault == "freeze":
        host.freeze()
    elif fault == "cut":
        host.cut()
    elif fault == "deaf":
        host.deafen()
    elif fault == "mute":
        host.mute()
    elif fault == "agent":
        found = (pid for pid in host.pids() if b"everstep.agent" in Path(f"/proc/{pid}/cmdline").read_bytes())
        os.kill(next(found), signal.SIGKILL)
    else:
        inner = re.compile(rf"^NSpid:.*\t{inner_pid}$", re.MULTILINE)
        found = (pid for pid in host.pids() if inner.search(Path(f"/proc/{pid}/status").read_text()))
        os.kill(next(found), signal.SIGKILL)


def measure(job: Job, fault: str) -> tuple[float, int]:
    """Seconds until all step again, and steps lost."""
    before, rank = job.generation(), job.num_ranks - 1
    job.until("steps", lambda: job.all_stepped(before, 20))
    host = job.host_of(rank)
    at = time.time()
    cause(fault, host, job.pid_of(rank))
    job.until(f"a generation after {fault}", lambda: job.generation() > before and job.all_stepped(job.generation()))
    after = job.generation()
    first = [job.steps(after, each)[0] for each in range(job.num_ranks)]
    last = min(job.steps(before, each)[-1][0] for each in range(job.num_ranks))
    if fault not in ("rank", "agent", "power-off"):
        host.close()
    if fault not in ("rank", "agent"):
        job.hosts.remove(host)
        job.add_standby()
    job.until("warm spares everywhere", job.is_warm)
    return max(when for _, when in first) - at, max(0, last - max(step for step, _ in first))


def succeed(job: Job, fault: str) -> tuple[float, float, int]:
    """Seconds until another host acts, and until all step again; steps lost."""
    before, first = job.generation(), job.hosts[0]
    job.until("steps", lambda: job.all_stepped(before, 20))
    time.sleep(WAITING_S)
    last = min(job.steps(before, each)[-1][0] for each in range(job.num_ranks))
    if fault == "controller-recovering":
        cause("rank", job.host_of(job.num_ranks - 1), job.pid_of(job.num_ranks - 1))
        time.sleep(random.uniform(0.0, 0.5))
    at = time.time()
    first.freeze() if fault == "controller-frozen" else first.power_off()
    job.until("a successor", lambda: job.successor() is not None)
    found = job.successor()
    assert found is not None
    job.run_dir, acted_at = found
    job.until("a generation", lambda: job.generation() > before and job.all_stepped(job.generation()))
    if fault == "controller-recovering":  # the generation that was being formed may have stepped without its first rank
        job.until(
            "a generation of the successor", lambda: job.started_after(acted_at) and job.all_stepped(job.generation())
        )
    after = job.generation()
    steps = [job.steps(after, each)[0] for each in range(job.num_ranks)]
    if fault == "controller-frozen":
        time.sleep(max(0.0, at + AWAY_S - time.time()))
        first.thaw()
        job.until("the end of the first host's run", lambda: job.processes[0].poll() is not None)
        own = first.folder.glob("home/runs/*/logs/gen-*/rank-*/stdout.log")
        late = [line for path in own for line in path.read_text().splitlines() if _when(line) > at + AWAY_S]
        print(f"  woken: exit code {job.processes[0].poll()}, {len(late)} steps of its ranks after that", flush=True)
    return acted_at - at, max(when for _, when in steps) - at, max(0, last - max(step for step, _ in steps))


def _when(line: str) -> float:
    found = STEP.fullmatch(line)
    return float(found[2]) if found else 0.0


def measure_successors(given: argparse.Namespace, faults: list[str]) -> None:
    """A bed for each: who is first can be lost once."""
    for fault in faults:
        took = []
        for _ in range(given.rounds):
            with Bed() as bed, tempfile.TemporaryDirectory() as folder:
                job = Job(bed, Path(folder), given.hosts, given.standby, given.silent)
                job.until("training", lambda job=job: job.generation() >= 0 and job.all_stepped(job.generation(), 20))
                job.until("warm spares everywhere", job.is_warm)
                acts, steps, lost = succeed(job, fault)
                print(f"  {fault:<18} acts {acts:5.2f} s  steps {steps:5.2f} s  lost {lost}  {_load()}", flush=True)
                took.append((acts, steps, lost))
        acts, steps = (statistics.median(each) for each in list(zip(*took, strict=True))[:2])
        lost = sum(each for _, _, each in took)
        print(f"{fault:<18} median: acts {acts:5.2f} s  steps {steps:5.2f} s  lost {lost} in {len(took)}", flush=True)


def _load() -> str:
    return f"load {os.getloadavg()[0]:.0f}"


def endure(job: Job, fault: str, seconds: float = 20.0) -> str:
    """Steps per second before and under a fault that lasts, and how often the run was restarted meanwhile."""
    before, rank = job.generation(), job.num_ranks - 1
    job.until("steps", lambda: job.all_stepped(before, 20))
    host = job.host_of(rank)
    rates = []
    for is_under in (False, True):
        if is_under and fault == "loss":
            host.drop(5)
        elif is_under:
            host.fill_disk()
        first, began = job.last_step(), time.monotonic()
        time.sleep(seconds)
        rates.append((job.last_step() - first) / (time.monotonic() - began))
    restarts = job.generation() - before
    host.heal() if fault == "loss" else (host.folder / "home" / "filler").unlink()
    return f"{rates[0]:.1f} steps/s before, {rates[1]:.1f} under it, {restarts} restarts in {seconds:g} s"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--hosts", type=int, default=6)
    parser.add_argument("--standby", type=int, default=2)
    parser.add_argument("--silent", type=float, default=1.5, help="policy node_silent_s")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--faults", default=",".join(FAULTS))
    given = parser.parse_args()
    faults = given.faults.split(",")
    measure_successors(given, [each for each in faults if each in CONTROLLER])
    faults = [each for each in faults if each not in CONTROLLER]
    if not faults:
        return
    took: dict[str, list[float]] = {}
    lost: dict[str, int] = {}
    with Bed() as bed, tempfile.TemporaryDirectory() as folder:
        job = Job(bed, Path(folder), given.hosts, given.standby, given.silent)
        job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 20))
        job.until("warm spares everywhere", job.is_warm)
        for _ in range(given.rounds):
            for fault in faults:
                if fault in LASTING:
                    print(f"  {fault:<10} {endure(job, fault)}", flush=True)
                    continue
                seconds, num_lost = measure(job, fault)
                took.setdefault(fault, []).append(seconds)
                lost[fault] = lost.get(fault, 0) + num_lost
                print(f"  {fault:<10} {seconds:6.2f} s  lost {num_lost}", flush=True)
    print(
        f"\n{given.hosts} hosts, {given.standby} standby, node_silent_s {given.silent:g}, load {os.getloadavg()[0]:.0f}"
    )
    print("fault       median      max   steps lost")
    for fault, seconds_of in took.items():
        print(f"{fault:<10} {statistics.median(seconds_of):6.2f} s {max(seconds_of):6.2f} s   {lost[fault]}")


if __name__ == "__main__":
    main()
