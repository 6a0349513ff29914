"""The network between machines: see it, check it, plan it, place jobs by it.

everstep fabric show topology.conf                what a file says, or this host where none is given
everstep fabric check lab.toml                    settings that differ, wrong cables, oversubscription
everstep fabric check found.json --against plan.json
everstep fabric plan --chips 16384 --rails 8 --oversubscription 1:1
everstep fabric simulate --chips 16384 --rails 8 --connections 4 --fail spine0-0-3
everstep fabric place topology.conf --nodes 12 --output slurm
everstep fabric deadlock routes.txt
everstep fabric storms counters.jsonl
everstep fabric cover candidates.jsonl --out flows
everstep fabric watch flows.jsonl --address 10.20.0.1
everstep fabric counters
everstep fabric traffic lab.toml --runs RUN --counters counters.jsonl
everstep fabric blame probes.jsonl --topology lab.toml --counters counters.jsonl

FILE is Slurm's topology.conf or topology.yaml, NCCL's XML, a model or graph of topograph, `kubectl get nodes -o json`,
`lldpcli -f json0 show neighbors`, or Everstep's own TOML (docs/fabric.md).
"""

import argparse
import importlib

_HERE = "everstep.cli.fabric."
WHAT: dict[str, tuple[str, str]] = {
    "show": ("show", "hosts, switches, speeds and groups of a topology"),
    "plan": ("plans.plan", "switches, ports, cables and bisection for a number of chips"),
    "simulate": (
        "plans.simulate",
        "how long a collective takes on a network, and which links it shares",
    ),
    "place": ("plans.place", "which hosts a job should get, and in which order"),
    "deadlock": ("pfc.deadlock", "cycles of PFC buffers that routes make; exit code 1 if any"),
    "storms": ("pfc.storms", "pause storms in recorded counters; exit code 1 if any"),
    "blame": ("links.blame", "which link or host loses the packets of probes; exit code 1 if any"),
    "cover": ("links.cover", "which probes cross every link; exit code 1 if a link has too few"),
    "watch": ("links.watch", "send probes of this host, answer those of others"),
    "counters": ("links.counters", "what the ports of this machine count, for blame"),
    "traffic": ("traffic", "what jobs send over each link: predicted, measured, and hot links"),
    "check": ("check", "what is wrong with a topology; exit code 1 if anything"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    for name, (module, text) in WHAT.items():
        found = importlib.import_module(_HERE + module)
        raw = argparse.RawDescriptionHelpFormatter
        found.add_arguments(verbs.add_parser(name, help=text, description=found.__doc__, formatter_class=raw))


def run(given: argparse.Namespace) -> int:
    return int(importlib.import_module(_HERE + WHAT[given.what][0]).run(given))
