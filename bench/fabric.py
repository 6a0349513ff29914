"""The fabric, measured: probes on a real network of namespaces with faults, cycles by brute force, placement of jobs.

    python bench/fabric.py probes [--seeds 5] [--kinds loss-1,loss-5,dead,...] [--seconds 10]
    python bench/fabric.py quiet [--seconds 60]         `everstep fabric watch` beside TCP: false alarms, cost
        [--cable 20mbit]                                 each cable carries so much, and TCP fills those of the leaves
    python bench/fabric.py judged --keep DIR             what `quiet --keep DIR` has kept, judged again
    python bench/fabric.py full [--seeds 5] [--kinds loss-1,...] [--seconds 10]   the same as processes, among cables
                                                     that TCP fills; what the last ten seconds say, each second
    python bench/fabric.py ports [--seconds 60]          what reading the counters of ports costs an agent
    python bench/fabric.py sent [--seconds 60]          gloo rings: bytes of each link, predicted and counted
    python bench/fabric.py cycles                        10,000 random graphs
    python bench/fabric.py placement [--jobs 300]        job sizes of FILE, on topologies of DIR
    python bench/fabric.py published                     the flow model beside published tables

`probes`, `quiet`, `full` and `sent` need root. The probers of `probes` run in this process, with sockets of every host.
"""

import argparse
import itertools
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.observations import Seen, merged
from everstep.fabric.pfc.deadlock import cycles_of
from everstep.fabric.placement.place import place
from everstep.fabric.placement.traffic import ring
from everstep.fabric.probing.coverage import Flow, plan_probes
from everstep.fabric.probing.udp import Prober, Responder
from everstep.fabric.probing.watch import TICK_S, seen_of
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from fabrics.bed import PORT, Clos
from fabrics.faults import KINDS, inject, is_right, names
from fabrics.full import full
from fabrics.judged import judged
from fabrics.ports import ports
from fabrics.published import published
from fabrics.quiet import quiet
from fabrics.sent import sent

SOURCES = range(40_000, 40_004)
RATE = 15.0  # probes of each flow in a second
STRIDE_S = 1.0  # after each, what was seen so far is judged anew


class Fleet:
    """Prober and responder of every host."""

    def __init__(self, bed: Clos) -> None:
        pairs = itertools.permutations(bed.hosts, 2)
        self.there: dict[Flow, tuple[str, ...]] = {
            (one, other, port): bed.path(one, other, port, PORT) for one, other in pairs for port in SOURCES
        }
        self.plan = plan_probes(self.there, least=6, most_per_host=12)
        self.back = {flow: bed.path(flow[1], flow[0], PORT, flow[2]) for flow in self.plan.flows}
        self.responders = [bed.inside(host, lambda host=host: Responder(bed.address[host], PORT)) for host in bed.hosts]
        self.probers: list[tuple[Prober, list[Flow]]] = []
        for host in bed.hosts:
            flows = [flow for flow in self.plan.flows if flow[0] == host]
            ends = self._ports(bed, flows)
            prober = bed.inside(host, lambda host=host, ends=ends: Prober(bed.address[host], ends, PORT))
            self.probers.append((prober, flows))

    @staticmethod
    def _ports(bed: Clos, flows: Sequence[Flow]) -> list[tuple[str, int]]:
        return [(bed.address[other], port) for _, other, port in flows]

    def run(self, seconds: float) -> list[Seen]:
        """Probes for that long; what was seen in the window."""
        turns = [(prober, number) for prober, flows in self.probers for number in range(len(flows))]
        gap = 1 / (RATE * len(turns))
        began = due = time.monotonic()
        turn = 0
        self.late_s, looked = 0.0, began
        while (now := time.monotonic()) < began + seconds:
            self.late_s, looked = max(self.late_s, now - looked - TICK_S), now
            while due <= now:
                prober, number = turns[turn % len(turns)]
                prober.send(number)
                turn += 1
                due += gap
            self._read()
            time.sleep(max(0.0, min(TICK_S, began + seconds - time.monotonic())))
        self._read()
        return self._close_window()

    def _read(self) -> None:
        for responder in self.responders:
            responder.answer()
        for prober, _ in self.probers:
            prober.receive()

    def _close_window(self) -> list[Seen]:
        return [
            seen
            for prober, flows in self.probers
            for flow, window in zip(flows, prober.close_window(), strict=True)
            for seen in seen_of(self.there[flow], self.back[flow], window)
        ]

    def close(self) -> None:
        for prober, _ in self.probers:
            prober.close()
        for responder in self.responders:
            responder.close()


def probes(given: argparse.Namespace) -> None:
    bed = Clos()
    try:
        fleet = Fleet(bed)
        print(f"{len(fleet.plan.flows)} flows, {fleet.plan.num_links} links, thin: {fleet.plan.thin}")
        hosts = frozenset(bed.hosts)
        for kind in given.kinds.split(","):
            right, wrong, times, late_s = 0, list[object](), list[float](), 0.0
            for seed in range(given.seeds):
                fleet.run(0.5)
                wanted, undo = inject(kind, bed, random.Random(f"{kind}{seed}"))
                windows = []
                while len(windows) * STRIDE_S < given.seconds:
                    windows.append(fleet.run(STRIDE_S))
                    late_s = max(late_s, fleet.late_s)
                undo()
                fleet.run(1.0)
                verdicts = [blame(merged(windows[: n + 1]), hosts) for n in range(len(windows))]
                are_right = [is_right(kind, verdict, wanted) for verdict in verdicts]
                right += are_right[-1]
                if are_right[-1]:
                    times.append(STRIDE_S * (len(are_right) - [*are_right[::-1], False].index(False) + 1))
                else:
                    wrong.append((seed, wanted, names(verdicts[-1].faults), "late", names(verdicts[-1].slow)))
            took = f"named after {statistics.median(times):g} s, {max(times):g} at most" if times else "never named"
            line = f"{kind:<10} {right}/{given.seeds} within {given.seconds:g} s, {took}; {late_s:.2f} s late at most"
            print(line, *wrong, sep="\n   ", flush=True)
        fleet.close()
    finally:
        bed.close()


def cycles(_: argparse.Namespace) -> None:
    draw, wrong, began = random.Random(7), 0, time.monotonic()
    for _number in range(10_000):
        size = draw.randint(2, 5)
        pairs = list(itertools.product(range(size), repeat=2))
        edges = set(draw.sample(pairs, draw.randint(1, min(14, len(pairs)))))
        found = sorted(_rotated(cycle) for cycle in cycles_of(edges))
        wrong += found != sorted(_brute_force(edges, size))
    print(f"10,000 graphs, {wrong} wrong, {time.monotonic() - began:.0f} s")


def _rotated(cycle: list[int]) -> tuple[int, ...]:
    start = cycle.index(min(cycle))
    return (*cycle[start:], *cycle[:start])


def _brute_force(edges: set[tuple[int, int]], size: int) -> list[tuple[int, ...]]:
    return [
        order
        for length in range(1, size + 1)
        for order in itertools.permutations(range(size), length)
        if order[0] == min(order) and all(pair in edges for pair in zip(order, (*order[1:], order[0]), strict=True))
    ]


def placement(given: argparse.Namespace) -> None:
    import csv
    import lzma

    with lzma.open(given.mix, "rt") as file:
        sizes = [max(1, -(-int(row["num_gpus"]) // 8)) for row in csv.DictReader(file)]
    for path in sorted(Path(given.topologies).glob("*.yaml")):
        graph = Graph(read_topology(path))
        draw = random.Random(path.name)
        worse = better = optimal = num = 0
        for _ in range(given.jobs):
            size = draw.choice(sizes) if draw.random() < 0.5 else draw.randint(2, graph.num_hosts)
            free = draw.sample(range(graph.num_hosts), draw.randint(min(size, graph.num_hosts), graph.num_hosts))
            if not 2 <= size <= len(free):
                continue
            found = place(graph, ring(size), free)
            num += 1
            worse += found.slurm.is_better_than(found.cost)
            better += found.cost.is_better_than(found.slurm)
            optimal += found.is_optimal
        print(
            f"{path.stem}: {num} jobs: worse than Slurm's tree {worse}, better {better}, known optimal {optimal}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=("probes", "quiet", "judged", "full", "ports", "sent", "cycles", "placement", "published")
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="`full`: the first of them")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--cable", metavar="RATE", help="as tc writes it: 20mbit; default of `quiet`: no limit")
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="`quiet`, `full`: watchers of 22 nodes, on one machine, before all others",
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="`quiet`, `full`: keeps what was seen and counted")
    parser.add_argument("--mix", help="philly_jobs.csv.xz")
    parser.add_argument("--topologies", help="a directory of topograph's models")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces of the bed outlive whoever made them
    whats: dict[str, Callable[[argparse.Namespace], None]] = {
        "probes": probes,
        "quiet": quiet,
        "full": full,
        "judged": judged,
        "ports": ports,
        "sent": sent,
        "cycles": cycles,
        "placement": placement,
        "published": lambda _: published(),
    }
    whats[given.what](given)


if __name__ == "__main__":
    main()
