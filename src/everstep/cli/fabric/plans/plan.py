"""Plan a Clos network: tiers, switches, ports, cables, bisection, and what one broken leaf or spine costs.

everstep fabric plan --chips 16384 --rails 8 --oversubscription 1:1
everstep fabric plan --chips 16384 --price switch=30000 --price cable=400 --price nic=1500
everstep fabric plan --chips 1024 --draw > plan.json      the network itself, for show, check and simulate
"""

import argparse

import msgspec

from everstep.cli.fabric.plans.planned import add_plan_arguments, wanted_of
from everstep.cli.reading import show, show_json
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import plan_clos
from everstep.fabric.topology.values import FabricError
from everstep.report.fabric.plan import cost_of, plan_page, plan_rows

PRICED = ("switch", "cable", "nic")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_plan_arguments(parser, is_needed=True)
    text = "what one costs; switch, cable and nic. Without all three no cost is shown"
    parser.add_argument("--price", action="append", default=[], metavar="KEY=N", help=text)
    parser.add_argument("--draw", action="store_true", help="print the topology as JSON")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    plan = plan_clos(wanted_of(given))
    prices = _prices(given.price)
    if given.draw:
        show_json(build(plan))
    elif given.json:
        show_json({"plan": msgspec.to_builtins(plan), **plan_rows(plan), "cost": cost_of(plan, prices)})
    else:
        show(plan_page(plan, prices))
    return 0


def _prices(texts: list[str]) -> dict[str, float]:
    prices = {}
    for text in texts:
        key, _, value = text.partition("=")
        try:
            prices[key] = float(value)
        except ValueError:
            prices[key] = -1.0
        if key not in PRICED or not 0 <= prices[key] < 1e12:
            raise FabricError(f"--price {text!r}: must be like switch=30000; there are {', '.join(PRICED)}")
    return prices
