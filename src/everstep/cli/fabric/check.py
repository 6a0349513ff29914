"""Check a topology: settings that differ, wrong cables, oversubscription. The exit code is 1 if anything is wrong."""

import argparse
from pathlib import Path

from everstep.cli.fabric.reading import add_topology, topology_of
from everstep.cli.reading import show, show_json
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.check import check_topology, compare
from everstep.fabric.topology.values import FabricError
from everstep.report.fabric.topology import checked_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_topology(parser)
    parser.add_argument("--against", metavar="FILE", help="the blueprint: cables that are elsewhere are faults")
    parser.add_argument("--oversubscription", default="1:1", metavar="N:1", help="allowed below the top; default: 1:1")


def run(given: argparse.Namespace) -> int:
    topology = topology_of(given)
    checked = check_topology(topology, oversubscription=ratio_of(given.oversubscription))
    extra = compare(topology, read_topology(Path(given.against))) if given.against else []
    if given.json:
        findings = [*extra, *checked.findings]
        show_json({"findings": findings, "unknown": checked.unknown, "num_cables": checked.num_cables})
    else:
        show(checked_page(topology.source, checked, extra))
    return 0 if checked.is_fit and not extra else 1


def ratio_of(text: str) -> float:
    """The ratio in a text: 3.0 for "3:1" or "3". Raises FabricError."""
    down, _, up = text.partition(":")
    try:
        ratio = float(down) / float(up or "1")
    except (ValueError, ZeroDivisionError):
        ratio = -1.0
    if not 0 < ratio <= 1000:
        raise FabricError(f"--oversubscription {text!r}: must be like 1:1 or 3:1")
    return ratio
