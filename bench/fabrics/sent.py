"""Is what collectives send over each link what is predicted? Real gloo rings beside `everstep fabric counters`.

Sixteen hosts, four leaves and one spine, so that each path is known; cables carry 20 Mbit/s. Two jobs reduce at the
same time, again and again. Headers and acknowledgements are in what is counted only.
"""

import argparse
import math
import statistics
import tempfile
import time
from pathlib import Path

from everstep.fabric.flows.network import Network
from everstep.fabric.topology.graph import Graph
from everstep.fabric.traffic.matrix import Operation, Span
from everstep.fabric.traffic.picture import picture
from fabrics.bed import Clos
from fabrics.quiet import Counters
from fabrics.rings import Fleet

CABLE = "20mbit"
JOBS = {"run-a": ["n0", "n1", "n4", "n5", "n8"], "run-b": ["n2", "n6", "n10"]}
NUMBERS = 1_000_000  # of four bytes


def sent(given: argparse.Namespace) -> None:
    bed = Clos(spines=1)
    try:
        with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
            counters = Counters(bed, Path(name), CABLE)
            fleet = Fleet(bed, Path(name))
            try:
                _compare(counters, *_reduce(fleet, given.seconds))
            finally:
                fleet.close()
                counters.close()
    finally:
        bed.close()


def _reduce(fleet: Fleet, seconds: float) -> tuple[list[Operation], range]:
    """What was done, and the whole seconds in which it was."""
    fleet.reduce("first", list(JOBS.values()), 1)
    time.sleep(5)
    spans, began = list[Span](), time.time()
    while time.time() < began + seconds:
        begin = time.time()
        fleet.reduce(f"turn{len(spans)}", list(JOBS.values()), NUMBERS)
        spans.append(Span(begin, time.time(), 1 / (time.time() - begin)))
    time.sleep(3)
    operations = [
        Operation(job=job, group="dp", op="all_reduce", num_bytes=4 * NUMBERS, hosts=tuple(hosts), spans=tuple(spans))
        for job, hosts in JOBS.items()
    ]
    return operations, range(math.floor(began), math.ceil(spans[-1].end))


def _compare(counters: Counters, operations: list[Operation], seconds: range) -> None:
    counted = counters.counted()
    shown = picture(Network(Graph(counters.topology)), operations, counted, seconds, is_tree=False)
    ratios = list[float]()
    for each in shown.links:
        if not each.predicted_bps or each.measured_bps is None:
            print(f"{each.link}: predicted {each.predicted_bps}, measured {each.measured_bps}")
            continue
        ratios.append(each.measured_bps / each.predicted_bps)
        jobs = ", ".join(share.job for share in each.jobs)
        print(f"{each.link}: predicted {each.predicted_bps / 1e6:.2f}, measured {each.measured_bps / 1e6:.2f} Mbit/s; "
              f"{'hot' if each.is_hot else ''} {jobs}")  # fmt: skip
    spread = f"{statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    print(f"{len(ratios)} links with traffic: measured by predicted {spread}; "
          f"{len(seconds)} s, {len(operations[0].spans)} operations of each job")  # fmt: skip
