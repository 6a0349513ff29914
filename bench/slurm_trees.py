"""Is placement never worse than what a real Slurm picks? Its topology/tree plugin is asked, by `sbatch --test-only`.

    python bench/slurm_trees.py [--trees 3] [--jobs 60] [--seed 1]

slurmctld with cloud nodes, which need no slurmd, on random trees of leaves and pods. A job of a random size may use a
random part of the hosts. Compared are the costs of one ring over the hosts in Slurm's order and over ours; beside it,
how often `everstep.fabric.placement.slurm_tree` picks what Slurm picks. Needs root and Debian's Slurm and munge.
"""

import argparse
import random
import re
from pathlib import Path

from everstep.fabric.placement import slurm_tree
from everstep.fabric.placement.cost import Costs
from everstep.fabric.placement.place import place
from everstep.fabric.placement.traffic import ring
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.hostlist import compress, expand
from everstep.fabric.topology.graph import Graph
from everstep.testing.slurm import SlurmBed

PARTITION = "trees"


class TreeBed(SlurmBed):
    """With the nodes of a topology.conf in a partition of their own."""

    def __init__(self, text: str, hosts: list[str]) -> None:
        self._text = text
        nodes = compress(hosts)
        extra = [
            "TopologyPlugin=topology/tree",
            "SuspendProgram=/bin/true",
            "ResumeProgram=/bin/true",
            "SuspendTime=100000",
            f"NodeName={nodes} CPUs=4 RealMemory=4000 State=CLOUD",
            f"PartitionName={PARTITION} Nodes={nodes} State=UP",
        ]
        super().__init__(1, extra="\n".join(extra))

    def _configure(self, slurmd_timeout_s: int, grace_s: int, extra: str) -> None:
        super()._configure(slurmd_timeout_s, grace_s, extra)
        (self.folder / "etc" / "topology.conf").write_text(self._text + "SwitchName=alone Nodes=n0\n")

    def pick(self, num: int, busy: list[str]) -> list[str]:
        words = ["sbatch", "--test-only", "-p", PARTITION, "-N", num, "--exclusive", "--wrap", "true"]
        said = self.run(*words, *(["-x", compress(busy)] if busy else []))
        found = re.search(r"on nodes (\S+)", said)
        if found is None:
            raise SystemExit(f"Slurm said: {said}")
        return expand(found[1], "Slurm")


def tree(draw: random.Random) -> tuple[str, list[str]]:
    lines, hosts, pods = [], list[str](), []
    for pod in range(draw.randint(2, 3)):
        leaves = []
        for leaf in range(draw.randint(2, 4)):
            own = [f"c{len(hosts) + number}" for number in range(draw.randint(2, 9))]
            hosts += own
            leaves.append(f"leaf{pod}x{leaf}")
            lines.append(f"SwitchName={leaves[-1]} Nodes={compress(own)}")
        pods.append(f"pod{pod}")
        lines.append(f"SwitchName={pods[-1]} Switches={','.join(leaves)}")
    lines.append(f"SwitchName=core Switches={','.join(pods)}")
    return "\n".join(lines) + "\n", hosts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=60, help="on each tree")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    totals = dict.fromkeys(("jobs", "worse", "better", "same pick", "same cost"), 0)
    for _ in range(given.trees):
        text, hosts = tree(draw)
        with TreeBed(text, hosts) as bed:
            path = Path(bed.folder) / "place.conf"
            path.write_text(text)
            compare(bed, Graph(read_topology(path)), draw, given.jobs, totals)
    print(", ".join(f"{name} {number}" for name, number in totals.items()))


def compare(bed: TreeBed, graph: Graph, draw: random.Random, jobs: int, totals: dict[str, int]) -> None:
    costs = Costs(graph)
    for _ in range(jobs):
        free = sorted(draw.sample(range(graph.num_hosts), draw.randint(2, graph.num_hosts)))
        num = draw.randint(2, len(free))
        busy = [graph.names[host] for host in range(graph.num_hosts) if host not in free]
        picked = sorted(graph.host(name) for name in bed.pick(num, busy))
        theirs = costs.of(ring(num), picked)
        ours = place(graph, ring(num), free).cost
        modelled = slurm_tree.pick(graph, free, num)
        totals["jobs"] += 1
        totals["worse"] += theirs.is_better_than(ours)
        totals["better"] += ours.is_better_than(theirs)
        totals["same pick"] += modelled == picked
        totals["same cost"] += costs.of(ring(num), modelled) == theirs
        if theirs.is_better_than(ours):
            print(
                "worse", num, [graph.names[host] for host in free], [graph.names[host] for host in picked], flush=True
            )


if __name__ == "__main__":
    main()
