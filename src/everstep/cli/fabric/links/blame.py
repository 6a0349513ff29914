"""Find the link, cable, switch or host that loses packets or makes them late, from probes on known paths. The exit code
is 1 if any does.

everstep fabric blame probes.jsonl --topology lab.toml

One JSON object a line and path: {"nodes": ["n0", "leaf0", "spine1", "leaf2", "n9"], "sent": 600, "bad": 7, "late": 0}.
Each line is one way; if the direction of a loss is unknown, the line is a round trip, there and back. With the lines of
`everstep fabric counters` of the same time, a link that is full of its own traffic is shown as full and not blamed.
Links on which a loss up to that of a full queue would not be seen are listed as not judged.
"""

import argparse
from pathlib import Path

from everstep.cli.fabric.lines import read_lines
from everstep.cli.reading import show, show_json
from everstep.fabric.locate.blame import blame
from everstep.fabric.locate.loads import Load, loads_of
from everstep.fabric.locate.observations import Counted, Link, Seen
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError, Topology
from everstep.report.fabric.blame import blame_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("probes", metavar="PROBES", help="a file, one path a line")
    parser.add_argument("--topology", metavar="FILE", help="says which nodes are hosts; else the ends of paths are")
    parser.add_argument("--counters", metavar="FILE", help="lines of `counters`; needs --topology with speeds")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    seen = read_lines(given.probes, Seen, "a path with nodes, sent and bad")
    for number, each in enumerate(seen, 1):
        if not each.nodes or (len(each.nodes) < 2 and each.sent):
            raise FabricError(f"{given.probes}: path {number}: a path needs two nodes at least")
        if twice := next((one for one, other in each.links if one == other), None):
            raise FabricError(
                f"{given.probes}: path {number}: {twice} follows itself: no cable leads from a node to itself"
            )
    if not seen:
        raise FabricError(f"{given.probes}: no path in it: nothing is known of the network, and that is not healthy")
    if given.counters and not given.topology:
        raise FabricError("--counters needs --topology: which cable a port has, and what it can carry")
    loads, links = dict[Link, Load](), list[Link]()
    if given.topology:
        topology = read_topology(Path(given.topology))
        hosts = frozenset(topology.host_names())
        _check_paths(seen, topology, given.probes)
        ends = [(cable.one.node, cable.other.node) for cable in topology.cables]
        links = [way for one, other in ends for way in ((one, other), (other, one))]
        if given.counters:
            loads = loads_of(read_lines(given.counters, Counted, "a line of `everstep fabric counters`"), topology)
    else:
        hosts = frozenset(node for each in seen for node in (each.nodes[0], each.nodes[-1]))
    verdict = blame(seen, hosts, loads, links)
    if given.json:
        show_json(verdict)
    else:
        show(blame_page(given.probes, verdict, sum(max(0, each.sent) for each in seen)))
    return 1 if verdict.faults or verdict.slow else 0


def _check_paths(seen: list[Seen], topology: Topology, source: str) -> None:
    """A path over a cable that is not in the topology was computed for another network: raise FabricError."""
    graph = Graph(topology)
    joined = {frozenset((cable.one.node, cable.other.node)) for cable in topology.cables}
    for link in dict.fromkeys(link for each in seen for link in each.links):
        for node in link:
            if node not in graph.index:
                raise FabricError(f"{source}: unknown node: {node}: not in {topology.source}")
        if frozenset(link) not in joined:
            raise FabricError(f"{source}: no cable joins {link[0]} and {link[1]} in {topology.source}")
