"""Print what the ports of this machine counted, as JSON lines for `blame`, until Ctrl-C. Needs no rights.

everstep fabric counters >> counters.jsonl                on each host, and on switches that run Linux
everstep fabric blame probes.jsonl --counters counters.jsonl --topology lab.toml

A line for each port and window: what it sent and received in its fullest second (tx_bps, rx_bps), what it can carry
(capacity_bps), by how much each counter grew, and those of which that is not known.
"""

import argparse
import itertools
import socket
import sys
import time
from collections.abc import Iterator

import msgspec

from everstep.fabric.locate.observations import Counted
from everstep.fabric.probing.counting import READ_S, Counting
from everstep.fabric.topology.values import FabricError
from everstep.linux.nics import read_nics
from everstep.report.parts.ansi import safe_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--node", metavar="NAME", help="of this machine in the topology; default: its host name")
    parser.add_argument("--every", type=float, default=10.0, metavar="S", help="seconds of a window; default: 10")
    parser.add_argument("--windows", type=int, metavar="N", help="ends after so many; default: never")


def run(given: argparse.Namespace) -> int:
    if given.windows is not None and given.windows < 1:
        raise FabricError(f"--windows {given.windows}: must be 1 at least; without it, until Ctrl-C")
    if not 0.1 <= given.every <= 3600:
        raise FabricError("--every must be 0.1 to 3600")
    windows = _windows(given.node or socket.gethostname(), given.every)
    for counted in itertools.islice(windows, given.windows):
        sys.stdout.write("".join(safe_json(msgspec.json.encode(each).decode()) + "\n" for each in counted))
        sys.stdout.flush()
    return 0


def _windows(node: str, every_s: float) -> Iterator[list[Counted]]:
    began = time.monotonic()
    counting, close_at = Counting(node, began, read_nics()), began + every_s
    while True:
        time.sleep(max(0.0, min(READ_S, close_at - time.monotonic())))
        now = time.monotonic()
        counting.add(now, read_nics())
        if now >= close_at:
            yield counting.close(time.time())
            close_at = now + every_s
