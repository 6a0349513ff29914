"""Is the speed-up that placement promises the one that is measured? Real gloo all-reduces on a rate-limited network.

    python bench/placed_rings.py [--rounds 5] [--seconds 4] [--rate 20] [--seed 1]

16 hosts on four leaves and one spine, in namespaces; each leaf sends upwards no faster than one host (4:1). A job of
twelve hosts has four rings of three (its data-parallel groups), which reduce at the same time. Its hosts and their
order are those of `everstep fabric place`, of Slurm's tree, and random ones, in turn. What is promised is the ratio of
the fullest links (NICs included); what is measured is the time of the slowest ring. Needs root and tbf.
"""

import argparse
import random
import statistics
import tempfile
from pathlib import Path

from everstep.fabric.placement import slurm_tree
from everstep.fabric.placement.cost import Costs
from everstep.fabric.placement.place import place
from everstep.fabric.placement.traffic import Groups, Traffic, ring, traffic_of
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from fabrics.bed import Clos
from fabrics.rings import Fleet

TOPOLOGY = """
[[hosts]]
names = "n[0-15]"
[[switches]]
names = "leaf[0-3],spine0"
"""


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
