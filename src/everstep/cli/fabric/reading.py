"""Arguments that select the topology of a command: a file, or this host."""

import argparse
from pathlib import Path

from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.here import read_host
from everstep.fabric.topology.values import Topology


def add_topology(parser: argparse.ArgumentParser, *, is_needed: bool = False) -> None:
    text = "a topology in any known format" + ("" if is_needed else "; default: this host")
    parser.add_argument("file", nargs=None if is_needed else "?", metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def topology_of(given: argparse.Namespace) -> Topology:
    """The topology of the file, or of this host if there is none. Raises FabricError."""
    return read_host() if given.file is None else read_topology(Path(given.file))
