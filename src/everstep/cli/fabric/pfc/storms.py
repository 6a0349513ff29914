"""Find pause storms in recorded counters of switches. The exit code is 1 if there is one.

everstep fabric storms counters.jsonl
everstep fabric storms counters.jsonl --topology lab.toml     also names where the pauses come from

One JSON object a line: at, switch, port, priority, tx_packets, rx_pause, queue_bytes, pause_us, or SONiC's names.
"""

import argparse
from pathlib import Path

from everstep.cli.reading import show, show_json
from everstep.fabric.pfc.counters import read_samples
from everstep.fabric.pfc.storms import roots, watch_storms
from everstep.fabric.readers.find import read_topology
from everstep.fabric.readers.text import read_bytes, text_of
from everstep.fabric.topology.values import FabricError, Topology
from everstep.report.fabric.pfc import storms_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("counters", metavar="COUNTERS", help="a file, one sample of one port and priority a line")
    parser.add_argument("--topology", metavar="FILE", help="says what is behind a port")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/fabric.md")


def run(given: argparse.Namespace) -> int:
    samples = read_samples(
        text_of(read_bytes(Path(given.counters), "counters"), given.counters, "counters"), given.counters
    )
    if not samples:
        raise FabricError(f"{given.counters}: no sample in it: nothing is known of pauses, and that is not healthy")
    watch = watch_storms(samples)
    if not watch.num_judged:
        raise FabricError(
            f"{given.counters}: {len(samples)} samples, and none can be compared with the one before it of its port: "
            "each needs tx_packets, queue_bytes, and rx_pause or pause_us; nothing is known of pauses"
        )
    storms = watch.storms
    found: dict[str, str] = {}
    if given.topology:
        topology = read_topology(Path(given.topology))
        found = roots(storms, _peers(topology), frozenset(topology.host_names()))
    if given.json:
        unknown = {"num_judged": watch.num_judged, "num_unknown": watch.num_unknown, "never_judged": watch.never_judged}
        show_json({"storms": storms, "roots": found, "num_samples": len(samples), **unknown})
    else:
        show(storms_page(given.counters, watch, found, len(samples)))
    return 1 if storms else 0


def _peers(topology: Topology) -> dict[tuple[str, str], str]:
    ends = [(cable.one, cable.other) for cable in topology.cables] + [
        (cable.other, cable.one) for cable in topology.cables
    ]
    return {(near.node, near.name): far.node for near, far in ends if near.name}
