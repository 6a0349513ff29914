"""The fabric, measured: probes on a real network of namespaces with faults, cycles by brute force, placement of jobs.

    python bench/fabric.py probes [--seeds 5] [--kinds loss-1,loss-5,dead,...] [--seconds 10]
    python bench/fabric.py quiet [--seconds 60]         `everstep fabric watch` beside TCP: false alarms, cost
        [--cable 20mbit]                                 each cable carries so much, and TCP fills those of the leaves
    python bench/fabric.py full [--seeds 5] [--kinds loss-5,loss-1,two] [--seconds 60]   cables that lose 5 % or 1 %, or
                                                     two of them, among cables that TCP fills
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
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from everstep.fabric.locate.blame import Fault, Verdict, blame
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
from fabrics.full import full
from fabrics.ports import ports
from fabrics.published import published
from fabrics.quiet import across, end, quiet
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


def _draw_cable(bed: Clos, draw: random.Random, *, of_host: bool = False) -> tuple[str, str]:
    cable = draw.choice([c for c in bed.cables if (c[0] in bed.leaf_of) == of_host])
    return cable if draw.random() < 0.5 else (cable[1], cable[0])


def _lossy(bed: Clos, ways: list[tuple[str, str]], percent: float) -> Callable[[], None]:
    for one, other in ways:
        bed.lose(one, other, percent)
    return lambda: [bed.unlose(one, other) for one, other in ways] and None


def _flapping(bed: Clos, ways: list[tuple[str, str]]) -> Callable[[], None]:
    """Both ways gone for 0.7 s, back for 0.7 s, again and again."""
    over = threading.Event()

    def flap() -> None:
        while not over.wait(0.7):
            undo = _lossy(bed, ways, 100)
            over.wait(0.7)
            undo()

    thread = threading.Thread(target=flap)
    thread.start()

    def end() -> None:
        over.set()
        thread.join()

    return end


def _slow(bed: Clos, way: tuple[str, str], rate: str, *, is_busy: bool) -> Callable[[], None]:
    bed.slow(*way, rate)
    load = across(bed, way, mbit=1.0) if is_busy else []

    def undo() -> None:
        end(load)
        bed.unslow(*way)

    return undo


def inject(kind: str, bed: Clos, draw: random.Random) -> tuple[list[set[str]], Callable[[], None]]:
    """What has to be named: one name of each set. And what undoes it."""
    way = _draw_cable(bed, draw)
    back = (way[1], way[0])
    cable = {f"{min(way)} - {max(way)}"}
    if kind in ("loss-1", "loss-5"):
        return [cable], _lossy(bed, [way, back], {"loss-1": 1, "loss-5": 5}[kind])
    if kind == "flapping":
        return [cable], _flapping(bed, [way, back])
    if kind == "dead":
        return [cable], _lossy(bed, [way, back], 100)
    if kind == "one-way":
        return [{f"{way[0]} > {way[1]}"}], _lossy(bed, [way], 5)
    if kind == "blackhole":
        return [{f"{way[0]} > {way[1]}"}], _lossy(bed, [way], 100)
    if kind in ("slow", "choked"):
        rate = {"slow": "1mbit", "choked": "60kbit"}[kind]  # the probes alone fill a choked one
        return [{f"{way[0]} > {way[1]}"}], _slow(bed, way, rate, is_busy=kind == "slow")
    near = _draw_cable(bed, draw, of_host=True)
    host = near[0] if near[0] in bed.leaf_of else near[1]
    if kind == "nic":
        return [{host, f"{min(near)} - {max(near)}"}], _lossy(bed, [near, (near[1], near[0])], 5)
    other = _draw_cable(bed, draw)
    while {*other} == {*way}:
        other = _draw_cable(bed, draw)
    return [{f"{a} > {b}"} for a, b in (way, other)], _lossy(bed, [way, other], 5)


KINDS = ("loss-1", "loss-5", "dead", "slow", "choked", "nic", "one-way", "flapping", "blackhole", "two")


def _is_right(kind: str, verdict: Verdict, wanted: list[set[str]]) -> bool:
    """Nothing else may be named beside, as lossy or as slow. A slow link may be called either: its full queue loses
    packets, and where the queue is long, probes have timed out before they come."""
    lossy, slow = verdict.faults, verdict.slow
    is_either = kind in ("slow", "choked") and not _are(lossy, wanted)
    asked, beside = (slow, lossy) if is_either else (lossy, slow)
    named = [{suspect.name for suspect in fault.suspects} for fault in beside]
    return _are(asked, wanted) and all(any(names & each for each in wanted) for names in named)


def _names(faults: Sequence[Fault]) -> list[list[object]]:
    return [[*(suspect.name for suspect in fault.suspects), round(fault.rate, 3)] for fault in faults]


def _are(faults: Sequence[Fault], wanted: list[set[str]]) -> bool:
    found = [{suspect.name for suspect in fault.suspects} for fault in faults]
    return len(found) == len(wanted) and all(any(names & each for each in found) for names in wanted)


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
                is_right = [_is_right(kind, verdict, wanted) for verdict in verdicts]
                right += is_right[-1]
                if is_right[-1]:
                    times.append(STRIDE_S * (len(is_right) - [*is_right[::-1], False].index(False) + 1))
                else:
                    wrong.append((seed, wanted, _names(verdicts[-1].faults), "late", _names(verdicts[-1].slow)))
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
        "what", choices=("probes", "quiet", "full", "ports", "sent", "cycles", "placement", "published")
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--cable", metavar="RATE", help="as tc writes it: 20mbit; default of `quiet`: no limit")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="`quiet`, `full`: keeps what was seen and counted")
    parser.add_argument("--mix", help="philly_jobs.csv.xz")
    parser.add_argument("--topologies", help="a directory of topograph's models")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces of the bed outlive whoever made them
    whats: dict[str, Callable[[argparse.Namespace], None]] = {
        "probes": probes,
        "quiet": quiet,
        "full": full,
        "ports": ports,
        "sent": sent,
        "cycles": cycles,
        "placement": placement,
        "published": lambda _: published(),
    }
    whats[given.what](given)


if __name__ == "__main__":
    main()
