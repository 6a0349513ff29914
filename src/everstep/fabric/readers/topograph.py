"""NVIDIA topograph's model files (`switches:`, `blocks:`) and its graph (`{"instances": [...]}`)."""

from typing import Any

from everstep.fabric.readers.hostlist import expand
from everstep.fabric.readers.text import items, mapping, names
from everstep.fabric.topology.tree import Tree, tree_of
from everstep.fabric.topology.values import FabricError, Topology


def is_model(document: Any) -> bool:  # noqa: ANN401
    return isinstance(document, dict) and "switches" in document and "hosts" not in document


def is_graph(document: Any) -> bool:  # noqa: ANN401
    return isinstance(document, dict) and "instances" in document


def read_model(document: Any, source: str) -> Topology:  # noqa: ANN401
    """Raises FabricError."""
    whole = mapping(document, "model", source)
    tree = Tree(source=source)
    for name, each in mapping(whole.get("switches"), "switches", source).items():
        entry = mapping(each, name, source)
        tree.add(name, children=names(entry.get("switches"), name, source), hosts=[])
        tree.labels[name] = {key: str(value) for key, value in mapping(entry.get("labels"), name, source).items()}
    for each in items(whole.get("blocks"), "blocks", source):
        _add_block(tree, mapping(each, "blocks", source), source)
    for name in [child for below in tree.children.values() for child in below if child not in tree.children]:
        tree.add(name, children=[], hosts=[])  # a leaf that only its block describes, or without nodes
    return tree.topology()


def _add_block(tree: Tree, block: dict[str, Any], source: str) -> None:
    switch = str(block.get("switch", ""))
    if not switch:
        raise FabricError(f"{source}: a block without a switch")
    hosts = [name for text in names(block.get("nodes"), "nodes", source) for name in expand(text, source)]
    if switch not in tree.children:
        tree.add(switch, children=[], hosts=[])
    tree.hosts[switch] += hosts
    for key, value in mapping(block.get("annotations"), "annotations", source).items():
        if key.endswith("/domain"):
            tree.domains.update(dict.fromkeys(hosts, str(value)))


def read_graph(document: Any, source: str) -> Topology:  # noqa: ANN401
    """Raises FabricError."""
    paths: dict[str, tuple[str, ...]] = {}
    for each in items(document["instances"], "instances", source):
        entry = mapping(each, "instances", source)
        name = str(entry.get("id", ""))
        if name in paths:
            raise FabricError(f"{source}: duplicate name: {name}: two instances")
        paths[name] = tuple(names(entry.get("network_layers"), name, source))
    return tree_of(source, paths).topology()
