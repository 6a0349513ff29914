"""Show hosts, switches, speeds and groups of a topology."""

import argparse

from everstep.cli.fabric.reading import add_topology, topology_of
from everstep.cli.reading import show, show_json
from everstep.fabric.topology.graph import Graph
from everstep.report.fabric.topology import topology_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topology(parser)


def run(given: argparse.Namespace) -> int:
    topology = topology_of(given)
    if given.json:
        show_json(topology)
    else:
        show(topology_page(Graph(topology)))
    return 0
