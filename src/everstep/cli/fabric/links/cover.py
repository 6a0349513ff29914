"""Choose the probes that cross every link often enough, and write each host's part for `watch`.

everstep fabric cover candidates.jsonl --out flows       flows/n0.jsonl, flows/n1.jsonl, ...

CANDIDATES has one possible flow a line, of any host, as `watch` reads them. The exit code is 1 if the chosen flows
cross a link too rarely; its name is shown.
"""

import argparse
from pathlib import Path

import msgspec

from everstep.cli.fabric.links.flows import read_flows
from everstep.cli.reading import show, show_json
from everstep.fabric.probing.coverage import Flow, plan_probes
from everstep.fabric.probing.watch import Planned
from everstep.fabric.readers.text import read_bytes
from everstep.fabric.topology.values import FabricError
from everstep.report.fabric.cover import cover_page

MOST_CANDIDATES = 200_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("candidates", metavar="CANDIDATES", help="a file, one flow a line")
    parser.add_argument("--out", required=True, metavar="DIR", help="gets a file for each sending host")
    parser.add_argument("--least", type=int, default=6, metavar="N", help="flows over each link; default: 6")
    parser.add_argument("--most", type=int, default=12, metavar="N", help="flows of a host; default: 12")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    if min(given.least, given.most) < 1:
        raise FabricError("--least and --most must be 1 at least")
    flows = read_flows(read_bytes(Path(given.candidates), "candidates"), given.candidates, MOST_CANDIDATES)
    if not flows:
        raise FabricError(f"{given.candidates}: no flow in it: no link can be covered")
    known = {(flow.there[0], flow.to, flow.port): flow for flow in flows}
    found = plan_probes({key: flow.there for key, flow in known.items()}, least=given.least, most_per_host=given.most)
    _write(Path(given.out), known, found.flows)
    if given.json:
        show_json(found)
    else:
        show(cover_page(given.candidates, found, len(known), given.least, given.out))
    return 1 if found.thin else 0


def _write(folder: Path, known: dict[Flow, Planned], chosen: tuple[Flow, ...]) -> None:
    lines: dict[str, list[bytes]] = {key[0]: [] for key in known}
    for key in chosen:
        lines[key[0]].append(msgspec.json.encode(known[key]) + b"\n")
    for host in lines:
        if "/" in host or host.startswith("."):
            raise FabricError(f"cover: {host[:60]!r} cannot be the name of a file")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for host, its in lines.items():
            (folder / f"{host}.jsonl").write_bytes(b"".join(its))
    except OSError as error:
        raise FabricError(f"{folder}: {error.strerror}") from None
