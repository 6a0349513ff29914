"""Find cycles of buffers that could wait for each other for ever, from routes. The exit code is 1 if there is one.

everstep fabric deadlock routes.txt
everstep fabric deadlock routes.txt --topology lab.toml      also shows routes that go down and up again

A route is a line: `n0 leaf0 spine1 leaf2 n5`, with `@3` at its end if only priority 3 takes it.
"""

import argparse
from pathlib import Path

from everstep.cli.reading import show, show_json
from everstep.fabric.pfc.deadlock import find_deadlocks
from everstep.fabric.pfc.routes import read_routes
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.text import read_bytes, text_of
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError
from everstep.report.fabric.pfc import deadlock_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("routes", metavar="ROUTES", help="a file, one route a line")
    parser.add_argument("--topology", metavar="FILE", help="says which tier a switch is of")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    routes = read_routes(text_of(read_bytes(Path(given.routes), "routes"), given.routes, "routes"), given.routes)
    if not routes:
        raise FabricError(f"{given.routes}: no route in it: nothing is known of cycles, and that is not healthy")
    tiers = {}
    if given.topology:
        graph = Graph(read_topology(Path(given.topology)))
        tiers = dict(zip(graph.names, graph.tiers, strict=True))
    found = find_deadlocks(routes, tiers)
    if given.json:
        show_json(found)
    else:
        show(deadlock_page(given.routes, found))
    return 1 if found.cycles else 0
