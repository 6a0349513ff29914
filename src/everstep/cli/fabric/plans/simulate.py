"""Simulate one collective on a network: the time it takes, the bandwidth of each pair, the links that are shared.

everstep fabric simulate --chips 16384 --rails 8                          a network that is planned
everstep fabric simulate lab.toml --connections 4 --order random          a network that is described
everstep fabric simulate --chips 1024 --radix 128 --rails 1 --pattern permutation --routing spray
everstep fabric simulate --chips 16384 --fail leaf3-0 --fail spine1-0-7   with something broken

Flows share links max-min fairly. No packets are modelled, and no PFC.
"""

import argparse
import time
from pathlib import Path
from random import Random

import msgspec

from everstep.cli.fabric.plans.planned import add_plan_arguments, wanted_of
from everstep.cli.reading import show, show_json
from everstep.fabric.plan.build import build
from everstep.fabric.plan.clos import plan_clos
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.hostlist import expand
from everstep.fabric.topology.cut import without
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError, Topology
from everstep.report.fabric.simulate import simulation_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", nargs="?", metavar="FILE", help="a topology with speeds; or --chips")
    add_plan_arguments(parser, is_needed=False)
    parser.add_argument("--hosts", metavar="LIST", help="that take part, in the order of the ring; default: all")
    parser.add_argument("--order", choices=("given", "random"), default="given", help="default: given")
    parser.add_argument("--pattern", choices=("all-reduce", "permutation", "all-to-all"), default="all-reduce")
    parser.add_argument("--routing", choices=("ecmp", "adaptive", "spray"), default="ecmp", help="default: ecmp")
    parser.add_argument("--connections", type=int, default=1, metavar="N", help="of each pair of NICs; default: 1")
    parser.add_argument("--split", action="store_true", help="each message in equal parts over the connections")
    parser.add_argument("--same-hash", action="store_true", help="all switches hash alike (polarisation)")
    parser.add_argument("--bytes", type=float, default=1e9, metavar="N", help="of each host; default: 1e9")
    parser.add_argument("--latency-s", type=float, default=0.0, metavar="S", help="of each step; default: 0")
    parser.add_argument("--fail", action="append", default=[], metavar="NAME", help="a switch, host, port or cable")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    began = time.monotonic()
    try:
        from everstep.fabric.flows.network import Network
        from everstep.fabric.flows.simulate import Request, simulate
    except ImportError as error:
        raise FabricError(f"simulate: {error}: pip install 'everstep[fabric]'") from None
    _check(given)
    graph = Graph(without(_topology(given), given.fail))
    request = Request(
        pattern=given.pattern,
        routing=given.routing,
        connections=given.connections,
        is_split=given.split,
        num_bytes=given.bytes,
        latency_s=given.latency_s,
        seed=given.seed,
        same_hash=given.same_hash,
    )
    outcome = simulate(Network(graph), _order(given, graph), request)
    outcome = msgspec.structs.replace(outcome, took_s=time.monotonic() - began)
    if given.json:
        show_json(outcome)
    else:
        show(simulation_page(outcome))
    return 0


def _check(given: argparse.Namespace) -> None:
    if not 1 <= given.connections <= 1024 or not 0 < given.bytes < 1e18 or not 0 <= given.latency_s < 60:
        raise FabricError("--connections must be 1 to 1024, --bytes above 0, --latency-s from 0 to 60")
    if given.seed < 0:
        raise FabricError(f"--seed {given.seed}: must not be negative")


def _topology(given: argparse.Namespace) -> Topology:
    if (given.file is None) == (given.chips is None):
        raise FabricError("simulate: needs either a FILE or --chips")
    return build(plan_clos(wanted_of(given))) if given.file is None else read_topology(Path(given.file))


def _order(given: argparse.Namespace, graph: Graph) -> list[int]:
    names = expand(given.hosts, "--hosts") if given.hosts else list(graph.topology.host_names())
    order = list(dict.fromkeys(graph.host(name) for name in names))
    if given.order == "random":
        Random(given.seed).shuffle(order)
    return order
