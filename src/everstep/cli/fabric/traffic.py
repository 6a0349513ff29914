"""Traffic of each job on each link, second by second: predicted from its collectives, beside what the ports counted.

everstep fabric traffic lab.toml --runs runs/a runs/b --counters counted.jsonl
everstep fabric traffic lab.toml --runs runs/a --counters n*.jsonl --live        again every second, until Ctrl-C
everstep fabric traffic --runs runs/a         topology and counters from runs/a/fabric/, as the page of a run has them

FILE needs the speeds of all cables; its hosts have the names of the run's nodes, or of their machines. COUNTERS are
lines of `everstep fabric counters --every 1` of all nodes.
"""

import argparse
import itertools
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from everstep.analyzer.collective.figures import Group, Row, Table
from everstep.cli.fabric.lines import read_lines, read_newest_lines
from everstep.cli.reading import Opened, open_run, show, show_json
from everstep.errors import EverstepError
from everstep.fabric.locate.observations import Counted
from everstep.fabric.locate.ports import impossible, strangers
from everstep.fabric.readers.find import read_topology
from everstep.fabric.topology.graph import Graph
from everstep.fabric.topology.values import FabricError, Topology
from everstep.fabric.traffic.matrix import Operation, Span
from everstep.fabric.traffic.window import Teller, newest
from everstep.journal.beside import collectives
from everstep.journal.networks import counters_beside, jobs_beside, topology_beside
from everstep.linux.parent import die_with_parent

MOST_SECONDS = 600
MOST_BYTES = 64 << 20
"""Limit for all files of counters together: ten minutes of some hundred ports."""
_LEAST_BYTES = 1 << 20
_LINE = "a line of `everstep fabric counters`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "a topology in any known format, with speeds; default: fabric/topology.* of the first run"
    parser.add_argument("file", nargs="?", metavar="FILE", help=text)
    parser.add_argument("--runs", nargs="+", default=[], metavar="RUN", help="id or directory of each run")
    parser.add_argument(
        "--beside", action="store_true", help="and the runs of the same directory that tell of the same time"
    )
    text = "lines of `counters` of all nodes, in one file or several; default: the *.jsonl beside that topology"
    parser.add_argument("--counters", nargs="+", default=[], metavar="COUNTERS", help=text)
    parser.add_argument(
        "--seconds", type=int, default=60, metavar="N", help="the last ones that are known; default: 60"
    )
    parser.add_argument("--link", metavar="NAME", help='second by second: "leaf0 > spine1"')
    parser.add_argument("--most", type=int, metavar="N", help="with --json: the N fullest links; default: all")
    parser.add_argument(
        "--tree", action="store_true", help="all-reduces take NCCL's double binary tree; default: rings"
    )
    parser.add_argument("--live", action="store_true", help="again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)  # process that this one dies with (web.traffic)


def run(given: argparse.Namespace) -> int:
    if given.parent is not None and not die_with_parent(given.parent):
        return 1
    if not 1 <= given.seconds <= MOST_SECONDS:
        raise FabricError(f"--seconds must be 1 to {MOST_SECONDS}")
    if not given.runs and not given.counters:
        raise FabricError("traffic needs --runs, --counters or both: nothing is known of the traffic otherwise")
    if given.file is None and not given.runs:
        raise FabricError("traffic needs FILE, a topology, or --runs of which the first has one in its fabric/")
    if given.json and given.link:
        raise FabricError("--link is for the page; --json has every second of every link")
    if given.most is not None and not (given.json and given.most > 0):
        raise FabricError("--most needs --json, and must be 1 at least")
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
    from everstep.report.fabric.traffic import told_of, traffic_page

    runs, missing = _asked(given)
    path = topology_beside([each.run_dir.path for each in runs]) if given.file is None else Path(given.file)
    topology = read_topology(path)
    counted, unread = _counted(given, path)
    missing += [*unread, *strangers(counted, topology), *impossible(counted, topology)]
    operations, tellers = list[Operation](), _of_nodes(counted)
    for each in runs:
        found, without = _of_run(each, topology)
        operations += found
        missing += without
        tellers += _of_job(found)
    window = newest(tellers, given.seconds)
    if window is None:
        why = f": {missing[0]}" if missing else ": no counters with a time, and no collectives"
        raise FabricError(f"nothing is known of the traffic (yet){why}")
    seconds, out_of_time = window
    missing += out_of_time
    shown = picture(Network(Graph(topology)), operations, counted, seconds, is_tree=given.tree)
    if given.json:
        show_json(told_of(topology.source, shown, missing, seconds, given.most))
    else:
        show(traffic_page(topology.source, shown, missing, given.link))


def _counted(given: argparse.Namespace, topology: Path) -> tuple[list[Counted], list[str]]:
    """Read the counters. A file that the user named has to be right; one that is only found is left out, with a
    warning."""
    named = [Path(each) for each in given.counters]
    paths = named or (counters_beside(topology) if given.file is None else [])
    most = max(_LEAST_BYTES, MOST_BYTES // max(1, len(paths)))
    counted, missing = list[Counted](), list[str]()
    for path in paths:
        try:
            if named and not path.is_file():  # a pipe of the user's shell
                counted += read_lines(str(path), Counted, _LINE, is_growing=True)
            else:
                counted += read_newest_lines(path, Counted, _LINE, most)
        except FabricError as error:
            if named:
                raise
            missing.append(str(error))
    return counted, missing


def _asked(given: argparse.Namespace) -> tuple[list[Opened], list[str]]:
    """The named runs, and with --beside the others of their directory. One of these others that cannot be read is left
    out, with a warning. Raises ConfigError, JournalError."""
    runs, missing = [open_run(name, None) for name in given.runs], list[str]()
    for path in jobs_beside(runs[0].run_dir.path) if given.beside and runs else ():
        try:
            runs.append(open_run(str(path), None))
        except EverstepError as error:
            missing.append(str(error))
    return runs, missing


def _of_nodes(counted: Iterable[Counted]) -> list[Teller]:
    """The time of each node's last line, not its latest time: a clock may have been ahead for a while."""
    last = {each.node: each.at for each in counted if each.at is not None}
    return [Teller(name=node, at=at) for node, at in last.items()]


def _of_job(operations: Sequence[Operation]) -> list[Teller]:
    ends = {each.job: max(span.end for span in each.spans) for each in operations if each.spans}
    return [Teller(name=job, at=at) for job, at in ends.items()]


def _of_run(opened: Opened, topology: Topology) -> tuple[list[Operation], list[str]]:
    """Operations of a run, and messages about groups and ranks without data. Raises JournalError."""
    hosts = frozenset(topology.host_names())
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
        if strange := [each for each in dict.fromkeys(placed) if each not in hosts]:
            missing.append(f"{run_name} {_title(group)}: its ranks on {', '.join(strange[:4])}: {topology.source} has "
                           f"no host of that name")  # fmt: skip
            continue
        found += [_operation(run_name, group, row, placed, looks) for row in group.rows]
    missing += [f"{run_name} rank {rank}: {why}" for why, ranks in table.missing.items() for rank in ranks[:1]]
    return found, missing


def _looks_of(table: Table) -> list[float]:
    """Times at which the agents reported collectives, oldest first."""
    return sorted({window.at for group in table.groups for row in group.rows for window in row.history})


def _operation(run_name: str, group: Group, row: Row, hosts: tuple[str, ...], looks: Sequence[float]) -> Operation:
    """One row as an operation. Entries that were overwritten before an agent read them are assumed to be as frequent as
    in the whole group."""
    more = max(1.0, group.num_ops / group.num_seen) if group.num_ops and group.num_seen else 1.0
    counts = {window.at: window.count for window in row.history}
    spans = [Span(begin, end, more * counts.get(end, 0) / (end - begin)) for begin, end in itertools.pairwise(looks)]
    return Operation(
        job=run_name, group=_title(group), op=row.op, num_bytes=row.num_bytes, hosts=hosts, spans=tuple(spans)
    )


def _title(group: Group) -> str:
    return group.title if group.title and group.title != "undefined" else f"group {group.name}"
