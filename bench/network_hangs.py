"""Hangs of a real all-reduce over gloo: told apart whether the network or a rank is the cause, and left alone.

    python bench/network_hangs.py [--rounds 10] [--faults cut,there,back,isolated,sleep,heal] [--seed 1]

Three hosts, each a network namespace with an address of its own (`everstep.testing.hosts`); needs root and nftables. A
round of `cut`: no packet passes between two hosts, whose links to the controller stay up; `there` and `back`: one way;
`isolated`: one host hears nobody, but for the controller. A round of `sleep`: a rank sleeps before it calls, at a line
of its own each time. Right is: the network is blamed with the pair or host that was cut; or that rank is named, the
network is not blamed. Then it is healed, and the same generation has to go on. `heal`: a cut of five seconds.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from everstep.testing.hosts import Bed, Host
from measuring.watched import Watched

SLEEPS = 120
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
import everstep
dist.init_process_group("gloo")
rank = dist.get_rank()
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
state = everstep.State(model=model, optimizer=optimizer)
ORDER = sys.argv[1]
def ordered():
    try:
        return open(ORDER).read().split()
    except OSError:
        return []
SLEEPS
done = ""
for step in state.steps(1_000_000):
    order = ordered()
    if len(order) == 3 and order[0] != done and int(order[1]) == rank:
        done = order[0]
        globals()["sleep" + done](float(order[2]))
    model(torch.ones(2, 256)).sum().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, f"{time.time():.3f}", flush=True)
    time.sleep(0.01)
""".replace("SLEEPS", "\n".join(f"def sleep{k}(s):\n    time.sleep(s)" for k in range(SLEEPS)))
PORT = 29400
NETWORK = ("cut", "there", "back", "isolated")
HEAL_S = 5.0
LIMIT_S = 25.0
FORGET_S, FORGET_STEPS = 12.0, 300


class Job(Watched):
    def __init__(self, bed: Bed, folder: Path) -> None:
        self.folder, self.num_ranks = folder, 3
        self.order = folder / "order"
        program, policy = folder / "train.py", folder / "everstep.toml"
        program.write_text(TRAIN)
        policy.write_text("[policy]\nexamine = false\nwatch_slowness = false\nnode_silent_s = 30\n")
        self.hosts = [bed.add(f"h{number}") for number in range(3)]
        command = [sys.executable, "-m", "everstep.cli.main", "run", "--nnodes", "3", "--config", str(policy)]
        command += ["--rdzv-endpoint", f"{self.hosts[0].address}:{PORT}", str(program), str(self.order)]
        self.processes: list[subprocess.Popen[bytes]] = []
        for number, host in enumerate(self.hosts):
            env = {"EVERSTEP_JOIN_TOKEN": "the token of this benchmark", "OMP_NUM_THREADS": "1"}
            with (folder / f"h{number}.err").open("wb") as err:
                self.processes.append(
                    host.start([*command[:6], "--node-rank", str(number), *command[6:]], env=env, err=err)
                )
        self.run_dir = self.hosts[0].folder / "home" / "runs" / "latest"

    def said(self) -> str:
        return (self.folder / "h0.err").read_text()

    def records(self) -> list[dict[str, Any]]:
        lines = (self.run_dir / "journal.jsonl").read_text().splitlines()[1:]
        return [json.loads(line) for line in lines]

    def verdicts(self) -> list[dict[str, Any]]:
        return [
            action["verdict"]
            for record in self.records()
            for action in record.get("actions", ())
            if action["type"] == "Concluded" and action.get("verdict")
        ]

    def rules(self) -> str:
        """What the hang rule last said."""
        lines = (self.run_dir / "controller.log").read_text().splitlines()
        return "; ".join([line for line in lines if "hang rule" in line][-3:])

    def node_of(self, rank: int) -> str:
        found = ""
        for record in self.records():
            for action in record.get("actions", ()):
                if action["type"] == "StartWorkers" and action["first_rank"] == rank:
                    found = action["node"]
        return found

    def host_of(self, rank: int) -> Host:
        node = self.node_of(rank)
        return next(host for host in self.hosts if list(host.folder.glob(f"home/hosts/*/nodes/{node}")))

    def controller_port(self) -> int:
        return int(json.loads((self.run_dir / "controller.json").read_bytes())["port"])

    def last_steps(self) -> list[int]:
        return [steps[-1][0] if (steps := self.steps(self.generation(), rank)) else -1 for rank in range(3)]


def cause(job: Job, fault: str, number: int, victim: int) -> None:
    one, other = job.hosts[1], job.hosts[2]
    if fault in ("cut", "there", "heal"):
        other.deafen(one)
    if fault in ("cut", "back", "heal"):
        one.deafen(other)
    if fault == "isolated":
        job.host_of(victim).deafen(but_ports=(PORT, job.controller_port()))
    if fault == "sleep":
        part = job.order.with_suffix(".part")
        part.write_text(f"{number} {victim} {LIMIT_S - 10}")
        part.replace(job.order)


def is_right(job: Job, fault: str, victim: int, verdict: dict[str, Any]) -> bool:
    if fault == "sleep":
        return verdict["blame"] != "network" and verdict["ranks"] == [victim]
    if verdict["blame"] != "network" or verdict["ranks"]:
        return False
    says = verdict["sentence"]
    nodes = [job.node_of(rank) for rank in (1, 2)]
    wanted = {
        "there": f"from {nodes[0]} to {nodes[1]} ",
        "back": f"from {nodes[1]} to {nodes[0]} ",
        "cut": "between " + " and ".join(sorted(nodes, key=lambda node: (len(node), node))),
        "isolated": f"between {job.node_of(victim)} and the other nodes",
    }
    return fault == "isolated" or wanted[fault] in says


def heal(job: Job) -> None:
    for host in job.hosts:
        host.heal()


def one_round(job: Job, fault: str, number: int, chance: random.Random) -> bool:
    before, generation = len(job.verdicts()), job.generation()
    victim = chance.choice((1, 2)) if fault == "isolated" else chance.randrange(3)
    job.until("steps", lambda: job.all_stepped(generation, 25))
    at = time.time()
    cause(job, fault, number, victim)
    ends_at = time.monotonic() + (HEAL_S if fault == "heal" else LIMIT_S)
    while time.monotonic() < ends_at and (fault == "heal" or len(job.verdicts()) == before):
        time.sleep(0.1)
    took = time.time() - at
    heal(job)
    found = job.verdicts()[before:]
    last = job.last_steps()
    job.until("the job goes on", lambda: min(job.last_steps()) > max(last) + 3 or job.generation() > generation, 120.0)
    stood = time.time() - at
    again = job.generation() - generation
    right = again == 0 and (fault == "heal" or (bool(found) and is_right(job, fault, victim, found[0])))
    says = found[0]["sentence"] if found else f"no verdict; {job.rules()}"
    code = f"{found[0]['code']} {found[0]['blame']} {found[0]['ranks']}" if found else ""
    print(
        f"  {number:3} {fault:<9} {'right' if right else 'WRONG'} verdict {took:5.2f} s, stood {stood:5.1f} s, "
        f"{again} restarts, load {os.getloadavg()[0]:.0f}: {code} {says}",
        flush=True,
    )
    return right


def train(job: Job) -> None:
    """Until the times of the newest steps are all that the hang rule knows: one round must not be usual in the next."""
    first, ends_at = min(job.last_steps()), time.monotonic() + FORGET_S
    job.until("steps", lambda: min(job.last_steps()) > first + FORGET_STEPS and time.monotonic() > ends_at)


def cpu_s(host: Host) -> float:
    """Of its agent."""
    for pid in host.pids():
        if b"everstep.agent" in Path(f"/proc/{pid}/cmdline").read_bytes():
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--faults", default="cut,there,back,isolated,sleep,heal")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    chance = random.Random(given.seed)
    faults = given.faults.split(",")
    right: dict[str, list[bool]] = {}
    with Bed() as bed, tempfile.TemporaryDirectory() as folder:
        job = Job(bed, Path(folder))
        job.until("training", lambda: job.generation() >= 0 and job.all_stepped(job.generation(), 40))
        train(job)
        for number in range(given.rounds):
            fault = faults[number % len(faults)]
            right.setdefault(fault, []).append(one_round(job, fault, number, chance))
            train(job)
    for fault, each in right.items():
        print(f"  {fault:<9} {sum(each)} of {len(each)}")


if __name__ == "__main__":
    main()
