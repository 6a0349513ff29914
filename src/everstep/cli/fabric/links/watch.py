"""Answer probes of other hosts, and send those of this one, until Ctrl-C. Prints losses as JSON lines for `blame`.

everstep fabric watch flows.jsonl --address 10.20.0.1 >> probes.jsonl       on each host
everstep fabric blame probes.jsonl                                          on the lines of all of them

flows.jsonl has one flow a line: {"to": "10.20.1.5", "port": 40000, "there": ["n0", "leaf0", "spine1", "leaf1", "n4"],
"back": ["n4", "leaf1", "spine0", "leaf0", "n0"]}. The switches decide which path a source port takes.
"""

import argparse
import errno
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.cli.fabric.links.flows import check_address, read_flows
from everstep.fabric.locate.observations import Seen
from everstep.fabric.probing.watch import MOST_LATE_S, Planned, watch
from everstep.fabric.readers.text import read_bytes
from everstep.fabric.topology.values import FabricError
from everstep.report.parts.ansi import safe_json

PORT = 28_700
MOST_FLOWS = 4096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("flows", nargs="?", metavar="FLOWS", help="a file; without one this host only answers")
    parser.add_argument("--address", required=True, metavar="IP", help="of this host, from which it sends and answers")
    parser.add_argument(
        "--port", type=int, default=PORT, metavar="N", help=f"that all hosts answer at; default: {PORT}"
    )
    parser.add_argument(
        "--rate", type=float, default=15.0, metavar="N", help="probes of a flow per second; default: 15"
    )
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds of a window; default: 10")
    parser.add_argument("--windows", type=int, metavar="N", help="ends after so many; default: never")


def run(given: argparse.Namespace) -> int:
    if given.windows is not None and given.windows < 1:
        raise FabricError(f"--windows {given.windows}: must be 1 at least; without it, until Ctrl-C")
    if not 1 <= given.port <= 65535 or not 0.01 <= given.rate <= 1000 or not 0.1 <= given.every <= 3600:
        raise FabricError("--port must be 1 to 65535, --rate 0.01 to 1000, --every 0.1 to 3600")
    flows = [] if given.flows is None else read_flows(read_bytes(Path(given.flows), "flows"), given.flows, MOST_FLOWS)
    check_address(given.address, "--address")
    if any(flow.port == given.port for flow in flows):
        raise FabricError(f"{given.flows}: source port {given.port} is the one at which this host answers: see --port")
    try:
        windows = watch(given.address, given.port, flows, rate=given.rate, every_s=given.every)
        for seen, late_s, dropped in itertools.islice(windows, given.windows):
            if late_s > MOST_LATE_S or dropped:
                why = (
                    f"{dropped} packets came faster than it reads"
                    if dropped
                    else f"this process was {late_s:.2f} s late"
                )
                sys.stderr.write(f"everstep: watch: a window is left out: {why}\n")
                seen = _stall(flows, given.every + late_s)
            sys.stdout.write("".join(safe_json(msgspec.json.encode(each).decode()) + "\n" for each in seen))
            sys.stdout.flush()
    except OSError as error:
        raise FabricError(f"watch: {given.address}: {error.strerror}{_remedy(error, given.port)}") from error
    return 0


def _remedy(error: OSError, port: int) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        return ". No interface of this host has that address: `ip -brief address` lists them"
    if error.errno == errno.EADDRINUSE:
        return f". Another process has UDP port {port}, or a source port of the flows: end it, or choose others"
    if error.errno == errno.EACCES:
        return f". Ports below 1024 need rights: choose another --port, the same on all hosts (now {port})"
    return ""


def _stall(flows: Sequence[Planned], seconds: float) -> list[Seen]:
    """A line that marks a window without evidence: losses of other hosts on the way to this one then count for
    nothing."""
    at = round(time.time(), 3)
    return [Seen(nodes=flow.there[:1], sent=0, bad=0, at=at, seconds=round(seconds, 3)) for flow in flows[:1]]
