"""Place a job: choose its hosts and their order, so that the fullest link carries as little as possible.

everstep fabric place topology.conf --nodes 12
everstep fabric place topology.conf --tp 8 --dp 16 --pp 4 --free 'n[0-99]' --output hosts
everstep fabric place topology.conf --nodes 12 --output slurm|rankfile|affinity|kueue
everstep fabric place lab.toml --output topology.conf        the network itself; also labels
"""

import argparse
from collections.abc import Callable
from pathlib import Path

from everstep.cli.fabric.reading import add_topology
from everstep.cli.reading import show, show_json
from everstep.fabric.placement import outputs
from everstep.fabric.placement.place import Placement, place
from everstep.fabric.placement.traffic import Groups, Traffic, ring, traffic_of
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.hostlist import expand
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError
from everstep.report.fabric.place import placement_page

OF_NETWORK: dict[str, Callable[[Graph], str]] = {
    "topology.conf": outputs.slurm_topology,
    "labels": outputs.node_labels,
}
OF_PLACEMENT = ("page", "hosts", "slurm", "rankfile", "affinity", "kueue")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topology(parser, is_needed=True)
    parser.add_argument("--nodes", type=int, metavar="N", help="hosts of a job with one ring; or its groups:")
    for name in ("tp", "ep", "dp", "pp"):
        parser.add_argument(f"--{name}", type=int, default=1, metavar="N", help="size of this group; default: 1")
    parser.add_argument("--chips-per-host", type=int, default=8, metavar="N", help="default: 8")
    parser.add_argument("--free", metavar="LIST", help="hosts that may be used; default: all")
    parser.add_argument("--output", choices=(*OF_PLACEMENT, *OF_NETWORK), default="page", help="default: page")


def run(given: argparse.Namespace) -> int:
    graph = Graph(read_topology(Path(given.file)))
    if given.output in OF_NETWORK:
        show(OF_NETWORK[given.output](graph))
        return 0
    traffic = _traffic(given)
    names = expand(given.free, "--free") if given.free else graph.topology.host_names()
    free = list(dict.fromkeys(graph.host(name) for name in names))
    placement = place(graph, traffic, free)
    if given.json:
        show_json(placement)
    else:
        show(_shown(given, graph, placement))
    return 0


def _traffic(given: argparse.Namespace) -> Traffic:
    sizes = {name: getattr(given, name) for name in ("tp", "ep", "dp", "pp")}
    if min(sizes.values()) < 1 or not 1 <= given.chips_per_host <= 1024:
        raise FabricError("--tp, --ep, --dp, --pp and --chips-per-host must be 1 at least")
    if given.nodes is None:
        return traffic_of(Groups(**sizes), given.chips_per_host)
    if given.nodes < 1 or max(sizes.values()) > 1:
        raise FabricError("place: needs either --nodes or groups (--tp, --ep, --dp, --pp), and one host at least")
    return ring(given.nodes)


def _shown(given: argparse.Namespace, graph: Graph, placement: Placement) -> str:
    hosts = placement.hosts
    written: dict[str, Callable[[], str]] = {
        "page": lambda: placement_page(graph.topology.source, placement),
        "hosts": lambda: outputs.host_file(hosts),
        "slurm": lambda: outputs.slurm_flags(hosts),
        "rankfile": lambda: outputs.rank_file(hosts, given.chips_per_host),
        "affinity": lambda: outputs.affinity(hosts),
        "kueue": lambda: outputs.kueue(graph, hosts),
    }
    return written[given.output]()
