"""Is the speed-up that placement promises the one that is measured? Real gloo all-reduces on a rate-limited network.

    python bench/placed_rings.py [--rounds 5] [--seconds 4] [--rate 20] [--seed 1]

16 hosts on four leaves and one spine, in namespaces; each leaf sends upwards no faster than one host (4:1). A job of
twelve hosts has four rings of three (its data-parallel groups), which reduce at the same time. Its hosts and their
order are those of `everstep fabric place`, of Slurm's tree, and random ones, in turn. What is promised is the ratio of
the fullest links (NICs included); what is measured is the time of the slowest ring. Needs root and tbf.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from everstep.fabric.placement import slurm_tree
from everstep.fabric.placement.cost import Costs
from everstep.fabric.placement.place import place
from everstep.fabric.placement.traffic import Groups, Traffic, ring, traffic_of
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from fabrics.bed import Clos

RANK = """
import datetime, json, sys, time
import torch
import torch.distributed as dist
torch.set_num_threads(1)
address, master, is_master, size = sys.argv[1], sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
store = dist.TCPStore(master, 29500, size, is_master, timeout=datetime.timedelta(seconds=300))
for line in sys.stdin:
    asked = json.loads(line)
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = datetime.timedelta(seconds=300)
    mine = dist.PrefixStore(asked["name"], store)
    group = dist.ProcessGroupGloo(mine, asked["rank"], asked["size"], options)
    values = torch.zeros(asked["numbers"])
    group.allreduce([torch.zeros(1)]).wait()
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.monotonic()
    group.allreduce([values]).wait()
    print(time.monotonic() - began, flush=True)
"""
TOPOLOGY = """
[[hosts]]
names = "n[0-15]"
[[switches]]
names = "leaf[0-3],spine0"
"""


class Fleet:
    """One process on each host, for all rounds."""

    def __init__(self, bed: Clos, folder: Path) -> None:
        program = folder / "rank.py"
        program.write_text(RANK)
        self._processes = {}
        for host in bed.hosts:
            argv = [bed.address[host], bed.address[bed.hosts[0]], str(int(host == bed.hosts[0])), str(len(bed.hosts))]
            self._processes[host] = subprocess.Popen(
                ["ip", "netns", "exec", bed.ns(host), sys.executable, str(program), *argv],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip

    def reduce(self, name: str, rings: Sequence[Sequence[str]], numbers: int) -> float:
        """Seconds of the slowest ring, all at once."""
        hosts = [host for ring_ in rings for host in ring_]
        for number, ring_ in enumerate(rings):
            for rank, host in enumerate(ring_):
                asked = {"name": f"{name}-{number}", "rank": rank, "size": len(ring_), "numbers": numbers}
                self._tell(host, json.dumps(asked))
        for host in hosts:
            assert self._read(host) == "ready"
        for host in hosts:
            self._tell(host, "go")
        return max(float(self._read(host)) for host in hosts)

    def _tell(self, host: str, line: str) -> None:
        pipe = self._processes[host].stdin
        assert pipe is not None
        pipe.write(line + "\n")
        pipe.flush()

    def _read(self, host: str) -> str:
        pipe = self._processes[host].stdout
        assert pipe is not None
        return pipe.readline().strip()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.communicate()


def network(folder: Path, rate: float) -> Graph:
    text = TOPOLOGY
    for leaf in range(4):
        text += f'[[cables]]\nfrom = "n[{4 * leaf}-{4 * leaf + 3}]"\nto = "leaf{leaf}"\nspeed = "{rate:g}M"\n'
    text += f'[[cables]]\nfrom = "leaf[0-3]"\nto = "spine0"\nspeed = "{rate:g}M"\n'
    path = folder / "bed.toml"
    path.write_text(text)
    return Graph(read_topology(path))


def limit(bed: Clos, rate: float) -> None:
    for one, other in bed.cables:
        bed.slow(one, other, f"{rate:g}mbit")
        bed.slow(other, one, f"{rate:g}mbit")


JOBS: dict[str, tuple[Traffic, int, int]] = {  # traffic, rings, hosts of each
    "four rings of three": (traffic_of(Groups(dp=3, pp=4, dp_amount=1.0, pp_amount=1e-9), 1), 4, 3),
    "one ring of sixteen": (ring(16), 1, 16),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0, help="that the best placement takes")
    parser.add_argument("--rate", type=float, default=20.0, help="Mbit/s of each cable")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    bed = Clos(spines=1)
    try:
        with tempfile.TemporaryDirectory() as name:
            graph = network(Path(name), given.rate)
            limit(bed, given.rate)
            fleet = Fleet(bed, Path(name))
            try:
                for job, (traffic, num, size) in JOBS.items():
                    measure(job, graph, traffic, (num, size), fleet, draw, given)
            finally:
                fleet.close()
    finally:
        bed.close()


def measure(
    job: str,
    graph: Graph,
    traffic: Traffic,
    shape: tuple[int, int],
    fleet: Fleet,
    draw: random.Random,
    given: argparse.Namespace,
) -> None:
    costs, free = Costs(graph), list(range(graph.num_hosts))
    ours = [graph.host(host) for host in place(graph, traffic, free).hosts]
    slurm = slurm_tree.pick(graph, free, traffic.num)
    took: dict[str, list[float]] = {"ours": [], "slurm": [], "random": []}
    promised: dict[str, list[float]] = {"slurm": [], "random": []}
    part = 2 * (shape[1] - 1) / shape[1] * 32e-6  # Mbit of a number
    numbers = int(given.seconds * given.rate / part)
    for number in range(given.rounds):
        placements = {"ours": ours, "slurm": slurm, "random": draw.sample(free, traffic.num)}
        for name, hosts in placements.items():
            names = [graph.names[host] for host in hosts]
            rings = [names[shape[1] * ring_ : shape[1] * (ring_ + 1)] for ring_ in range(shape[0])]
            took[name].append(fleet.reduce(f"{job}{number}{name}", rings, numbers))
            if name != "ours":
                promised[name].append((costs.busy(traffic, hosts) or 0.0) / (costs.busy(traffic, ours) or 1.0))
    best = statistics.median(took["ours"])
    print(f"{job}: ours {best:.2f} s ({min(took['ours']):.2f} to {max(took['ours']):.2f})")
    for name, ratios in promised.items():
        for ratio, seconds in zip(ratios, took[name], strict=True):
            found = seconds / best
            said = f"promised {ratio:.2f}, measured {found:.2f}: off {found / ratio - 1:+.1%}"
            print(f"  against {name:<6} {said}", flush=True)


if __name__ == "__main__":
    main()
