"""Print what the ports of this machine counted, as JSON lines for `blame`, until Ctrl-C. Needs no rights.

everstep fabric counters >> counters.jsonl                on each host, and on switches that run Linux
everstep fabric blame probes.jsonl --counters counters.jsonl --topology lab.toml

A line for each port and window: what it sent and received in its fullest second (tx_bps, rx_bps), what it can carry
(capacity_bps), the growth of each counter, and the counters with an unknown growth.
"""

import argparse
import itertools
import math
import socket
import sys
import time
from collections.abc import Iterator

import msgspec

from everstep.fabric.locate.observations import Counted
from everstep.fabric.probing.counting import READ_S, Counting
from everstep.fabric.topology.values import FabricError
from everstep.linux.nics import Speeds, read_nics
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
    """Windows of `every_s` seconds, plus or minus half of the time between two readings."""
    period_s, speeds = every_s / math.ceil(every_s / READ_S), Speeds()
    _sleep_to_multiple(period_s)
    began = time.monotonic()
    counting = Counting(node, began, read_nics(speeds=speeds))
    while True:
        _sleep_to_multiple(period_s)
        now = time.monotonic()
        counting.add(now, read_nics(speeds=speeds))
        if now >= began + every_s - period_s / 2:
            yield counting.close(time.time() - time.monotonic())
            began = now


def _sleep_to_multiple(period_s: float) -> None:
    """Sleep to a multiple on the wall clock: other nodes wake up at the same time."""
    left_s = period_s - time.time() % period_s
    time.sleep(left_s if left_s > 0.1 * period_s else left_s + period_s)  # clocks differ: it may have woken up early
