"""Labels of Kubernetes nodes, as `kubectl get nodes -o json` prints them, and Kueue's `Topology`.

A Kueue Topology in the same file names the labels that are levels, else known names do, closest first.
"""

import re
from typing import Any

from everstep.fabric.readers.text import items, mapping
from everstep.fabric.topology.tree import MAX_LEVELS, tree_of
from everstep.fabric.topology.values import FabricError, Topology

KNOWN = (
    (
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/spine",
        "network.topology.nvidia.com/core",
    ),
    (
        "topology.k8s.aws/network-node-layer-3",
        "topology.k8s.aws/network-node-layer-2",
        "topology.k8s.aws/network-node-layer-1",
    ),
    ("cloud.google.com/gce-topology-subblock", "cloud.google.com/gce-topology-block"),
    ("oci.oraclecloud.com/host.rack_id", "oci.oraclecloud.com/host.network_block_id"),
)
DOMAINS = (
    "accelerator.topograph.run/domain",
    "network.topology.nvidia.com/accelerator",
    "nvidia.com/gpu.clique",
)
_HOSTNAME = "kubernetes.io/hostname"
_TIER = re.compile(r"fabric\.topograph\.run/tier-(\d{1,3})$")


def is_nodes(documents: list[Any]) -> bool:
    return any(isinstance(each, dict) and each.get("kind") in ("List", "NodeList", "Node") for each in documents)


def read_nodes(documents: list[Any], source: str) -> Topology:
    """Raises FabricError."""
    found = [mapping(each, "document", source) for each in documents]
    objects: list[dict[str, Any]] = []
    for each in found:
        parts = items(each.get("items"), "items", source) if each.get("kind") in ("List", "NodeList") else (each,)
        objects += [mapping(part, "items", source) for part in parts]
    nodes = _nodes([each for each in objects if each.get("kind", "Node") == "Node"], source)
    levels = _levels_of_kueue([each for each in objects if each.get("kind") == "Topology"], source) or _levels(nodes)
    if not levels:
        raise FabricError(f"{source}: no node has a label that says where it is in the network")
    if len(levels) > MAX_LEVELS:
        raise FabricError(f"{source}: more than {MAX_LEVELS} levels")
    paths = {name: _path(labels, levels) for name, labels in nodes.items()}
    domains = {
        name: next(labels[key] for key in DOMAINS if labels.get(key))
        for name, labels in nodes.items()
        if any(labels.get(key) for key in DOMAINS)
    }
    return tree_of(source, paths, domains).topology()


def _nodes(objects: list[dict[str, Any]], source: str) -> dict[str, dict[str, str]]:
    nodes: dict[str, dict[str, str]] = {}
    for each in objects:
        meta = mapping(each.get("metadata"), "metadata", source)
        name = str(meta.get("name", ""))
        if not name or name in nodes:
            raise FabricError(f"{source}: {'duplicate name: ' + name if name else 'a node without a name'}")
        nodes[name] = {key: str(value) for key, value in mapping(meta.get("labels"), name, source).items()}
    return nodes


def _path(labels: dict[str, str], levels: list[str]) -> tuple[str, ...]:
    """Groups of a node, closest first. Below a label that it lacks it has none, so only the upper groups count."""
    path: list[str] = []
    for key in reversed(levels):
        if not labels.get(key):
            break
        path.insert(0, labels[key])
    return tuple(path)


def _levels_of_kueue(objects: list[dict[str, Any]], source: str) -> list[str]:
    """Labels of the levels, closest first. Kueue lists the coarsest first, and the host name last."""
    if not objects:
        return []
    spec = mapping(objects[0].get("spec"), "spec", source)
    levels = [mapping(each, "levels", source) for each in items(spec.get("levels"), "levels", source)]
    keys = [str(level.get("nodeLabel", "")) for level in levels]
    return [key for key in reversed(keys) if key and key != _HOSTNAME]


def _levels(nodes: dict[str, dict[str, str]]) -> list[str]:
    """Labels of the levels, closest first: any number of topograph's tiers, else those of a cloud."""
    present = {key for labels in nodes.values() for key in labels}
    tiers = sorted((int(match[1]), key) for key in present if (match := _TIER.match(key)))
    if tiers:
        return [key for _, key in tiers]
    return next(([key for key in keys if key in present] for keys in KNOWN if present & set(keys)), [])
