"""Writes a placement or a topology in the existing formats of other programs."""

import json
from collections.abc import Sequence

from everstep.fabric.readers.hostlist import compress
from everstep.fabric.topology.graph import Graph

_TIER = "fabric.topograph.run/tier-"


def host_file(hosts: Sequence[str]) -> str:
    """One name per line, in the order of the nodes: for `torchrun` loops and for SLURM_HOSTFILE."""
    return "".join(f"{host}\n" for host in hosts)


def slurm_flags(hosts: Sequence[str]) -> str:
    """Flags for Slurm. It sorts `--nodelist`; SLURM_HOSTFILE with `--distribution=arbitrary` keeps the order."""
    return f"--nodes={len(hosts)} --nodelist={compress(list(hosts))}\n"


def rank_file(hosts: Sequence[str], chips: int) -> str:
    """Rank file of Open MPI, for `mpirun --rankfile`."""
    lines = [
        f"rank {place * chips + slot}={host} slot={slot}\n" for place, host in enumerate(hosts) for slot in range(chips)
    ]
    return "".join(lines)


def slurm_topology(graph: Graph) -> str:
    """topology.conf: the groups as a tree. A switch has one parent in Slurm's tree, so spines above the same leaves
    become one switch."""
    lines: list[str] = []
    levels = [level for level, name in enumerate(graph.level_names) if name.startswith("joined")]
    for place, level in enumerate(levels):
        members: dict[int, list[int]] = {}
        for host, path in enumerate(graph.levels):
            members.setdefault(path[level], []).append(host)
        for group, hosts in members.items():
            name = f"t{place + 1}g{group}"
            if place == 0:
                lines.append(f"SwitchName={name} Nodes={compress([graph.names[host] for host in hosts])}\n")
            else:
                below = dict.fromkeys(f"t{place}g{graph.levels[host][levels[place - 1]]}" for host in hosts)
                lines.append(f"SwitchName={name} Switches={compress(list(below))}\n")
    return "".join(lines)


def node_labels(graph: Graph) -> str:
    """`kubectl label` commands with the keys that topograph writes; tier 0 is the closest."""
    levels = [level for level, name in enumerate(graph.level_names) if name.startswith("joined")]
    lines = []
    for host, path in enumerate(graph.levels):
        labels = " ".join(f"{_TIER}{place}=g{path[level]}" for place, level in enumerate(levels))
        lines.append(f"kubectl label node {graph.names[host]} --overwrite {labels}\n")
    return "".join(lines)


def affinity(hosts: Sequence[str]) -> str:
    """The part of a pod's spec that allows only these nodes."""
    match = {"key": "kubernetes.io/hostname", "operator": "In", "values": list(hosts)}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [match]}]}
    node = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return json.dumps({"affinity": node}, indent=2) + "\n"


def kueue(graph: Graph, hosts: Sequence[str]) -> str:
    """Kueue's Topology, coarsest level first, and the annotation that asks for the closest level that holds the job."""
    levels = [level for level, name in enumerate(graph.level_names) if name.startswith("joined")]
    keys = [f"{_TIER}{place}" for place in range(len(levels))]
    numbers = [graph.host(name) for name in hosts]
    fitting = [place for place, level in enumerate(levels) if len({graph.levels[n][level] for n in numbers}) == 1]
    wanted = keys[fitting[0]] if fitting else keys[-1]
    kind = "required" if fitting else "preferred"
    spec = {"levels": [{"nodeLabel": key} for key in [*reversed(keys), "kubernetes.io/hostname"]]}
    topology = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Topology",
        "metadata": {"name": "everstep"},
        "spec": spec,
    }
    annotation = {f"kueue.x-k8s.io/podset-{kind}-topology": wanted}
    return json.dumps(topology, indent=2) + "\n" + json.dumps({"annotations": annotation}, indent=2) + "\n"
