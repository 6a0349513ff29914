"""Arguments for a planned network, shared by `plan` and `simulate`."""

import argparse

from everstep.cli.fabric.check import ratio_of
from everstep.fabric.plan.clos import Wanted
from everstep.fabric.readers.own import speed_of


def add_plan_arguments(parser: argparse.ArgumentParser, *, is_needed: bool) -> None:
    parser.add_argument("--chips", type=int, required=is_needed, metavar="N", help="accelerators")
    parser.add_argument("--rails", type=int, default=8, metavar="N", help="NICs of a host; default: 8")
    parser.add_argument("--chips-per-host", type=int, metavar="N", help="default: one per NIC")
    parser.add_argument("--radix", type=int, default=64, metavar="N", help="ports of a switch; default: 64")
    parser.add_argument("--speed", default="400G", metavar="S", help="of a port; default: 400G")
    parser.add_argument("--oversubscription", default="1:1", metavar="N:1", help="at the leaves; default: 1:1")


def wanted_of(given: argparse.Namespace) -> Wanted:
    """The wanted network. Raises FabricError for a bad speed or ratio."""
    return Wanted(
        chips=given.chips,
        rails=given.rails,
        chips_per_host=given.chips_per_host,
        radix=given.radix,
        bps=speed_of(given.speed, "--speed"),
        oversubscription=ratio_of(given.oversubscription),
    )
