"""What each job sends over each link, second by second: predicted from its collectives, beside what the ports counted.

everstep fabric traffic lab.toml --runs runs/a runs/b --counters counted.jsonl
everstep fabric traffic lab.toml --runs runs/a --counters counted.jsonl --live        again every second, until Ctrl-C

FILE needs the speeds of all cables; its hosts have the names of the run's nodes, or of their machines. COUNTERS are
lines of `everstep fabric counters --every 1` of all nodes.
"""

import argparse
import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

from everstep.analyzer.collective.figures import Group, Row, Table
from everstep.cli.fabric.lines import read_lines
from everstep.cli.reading import open_run, show, show_json
from everstep.fabric.locate.observations import Counted
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError
from everstep.fabric.traffic.matrix import Operation, Span
from everstep.journal.beside import collectives

MOST_SECONDS = 600


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a topology in any known format, with speeds")
    parser.add_argument("--runs", nargs="+", default=[], metavar="RUN", help="id or directory of each run")
    parser.add_argument("--counters", metavar="COUNTERS", help="lines of `counters` of all nodes")
    parser.add_argument(
        "--seconds", type=int, default=60, metavar="N", help="the last ones that are known; default: 60"
    )
    parser.add_argument("--link", metavar="NAME", help='second by second: "leaf0 > spine1"')
    parser.add_argument(
        "--tree", action="store_true", help="all-reduces take NCCL's double binary tree; default: rings"
    )
    parser.add_argument("--live", action="store_true", help="again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    if not 1 <= given.seconds <= MOST_SECONDS:
        raise FabricError(f"--seconds must be 1 to {MOST_SECONDS}")
    if not given.runs and not given.counters:
        raise FabricError("traffic needs --runs, --counters or both: nothing is known of the traffic otherwise")
    if given.json and given.link:
        raise FabricError("--link is for the page; --json has every second of every link")
    while True:
        _show(given)
        if not given.live:
            return 0
        time.sleep(1.0)


def _show(given: argparse.Namespace) -> None:
    try:
        from everstep.fabric.flows.network import Network
        from everstep.fabric.traffic.picture import picture
    except ImportError:
        raise FabricError("traffic needs numpy: pip install 'everstep[fabric]'") from None
    from everstep.report.fabric.traffic import traffic_page

    graph = Graph(read_topology(Path(given.file)))
    counted = list[Counted]()
    if given.counters:
        counted = read_lines(given.counters, Counted, "a line of `everstep fabric counters`", is_growing=given.live)
    operations, missing = list[Operation](), list[str]()
    for name in given.runs:
        found, without = _of_run(name, frozenset(graph.topology.host_names()))
        operations += found
        missing += without
    ends = [each.at for each in counted if each.at is not None]
    ends += [span.end for each in operations for span in each.spans]
    if not ends:
        raise FabricError("nothing is known of the traffic (yet): no counters with a time, and no collectives")
    end = math.floor(max(ends))
    seconds = range(end - given.seconds, end)
    shown = picture(Network(graph), operations, counted, seconds, is_tree=given.tree)
    if given.json:
        show_json(shown)
    else:
        show(traffic_page(graph.topology.source, shown, missing, given.link))


def _of_run(name: str, hosts: frozenset[str]) -> tuple[list[Operation], list[str]]:
    """And of what nothing is known. Raises ConfigError, JournalError."""
    opened = open_run(name, None)
    run_name, table = opened.view.run, collectives.load(opened.run_dir.path)
    generation = next((each for each in opened.view.generations if table and each.number == table.generation), None)
    if table is None or generation is None:
        return [], [f"{run_name}: its agents have reported no collectives"]
    machines = {node: view.host for node, view in opened.view.nodes.items()}
    found, missing, looks = list[Operation](), list[str](), _looks_of(table)
    for group in table.groups:
        nodes = [node for rank in group.ranks if (node := generation.node_of.get(rank)) is not None]
        placed = tuple(node if node in hosts else machines.get(node, node) for node in nodes)
        if len(placed) < len(group.ranks):
            missing.append(f"{run_name} {_title(group)}: where some of its ranks are")
            continue
        found += [_operation(run_name, group, row, placed, looks) for row in group.rows]
    missing += [f"{run_name} rank {rank}: {why}" for why, ranks in table.missing.items() for rank in ranks[:1]]
    return found, missing


def _looks_of(table: Table) -> list[float]:
    """When the agents told of collectives, oldest first."""
    return sorted({window.at for group in table.groups for row in group.rows for window in row.history})


def _operation(run_name: str, group: Group, row: Row, hosts: tuple[str, ...], looks: Sequence[float]) -> Operation:
    """What was overwritten before it was seen is as often as its group's is."""
    more = max(1.0, group.num_ops / group.num_seen) if group.num_ops and group.num_seen else 1.0
    counts = {window.at: window.count for window in row.history}
    spans = [Span(begin, end, more * counts.get(end, 0) / (end - begin)) for begin, end in itertools.pairwise(looks)]
    return Operation(
        job=run_name, group=_title(group), op=row.op, num_bytes=row.num_bytes, hosts=hosts, spans=tuple(spans)
    )


def _title(group: Group) -> str:
    return group.title if group.title and group.title != "undefined" else f"group {group.name}"
