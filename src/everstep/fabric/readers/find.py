"""Reads a topology file; its content decides the format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.fabric.readers import kubernetes, lldp, nccl, own, slurm, topograph
from everstep.fabric.readers.text import read_bytes, text_of, xml_of, yaml_of
from everstep.fabric.topology.values import Cable, FabricError, Host, Port, Switch, Topology, check_whole

FORMATS = (
    "Slurm topology.conf or topology.yaml, NCCL XML, topograph, kubectl get nodes -o json, lldpcli -f json0, own TOML"
)


def read_topology(path: Path) -> Topology:
    """The topology in a file of any known format. Raises FabricError."""
    try:
        return _read(path)
    except (RecursionError, ValueError, OverflowError) as error:  # numbers of thousands of digits, lists in lists
        raise FabricError(f"topology: {path}: nothing that can be used: {type(error).__name__}") from None


def _read(path: Path) -> Topology:
    data = read_bytes(path)
    source = str(path)
    start = data[:4096].lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start:
        raise FabricError(f"topology: {source}: empty")
    if start.startswith(b"<"):
        return nccl.read_system(xml_of(data, source), source, path.stem)
    text = text_of(data, source)
    if slurm.is_conf(text):
        return slurm.read_conf(text, source)
    if start[:1] in b"{[" and path.suffix != ".toml":
        return _of_documents([_json(data, source)], data, path)
    if path.suffix == ".toml":
        return own.read_toml(text, source)
    return _of_documents(yaml_of(text, source), data, path)


def _json(data: bytes, source: str) -> Any:  # noqa: ANN401
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FabricError(f"topology: {source}: not JSON: {str(error)[:100]}") from None


def _of_documents(documents: list[Any], data: bytes, path: Path) -> Topology:
    source = str(path)
    if kubernetes.is_nodes(documents):
        return kubernetes.read_nodes(documents, source)
    first = documents[0] if documents else None
    readers: list[tuple[Callable[[Any], bool], Callable[[Any], Topology]]] = [
        (slurm.is_yaml, lambda found: slurm.read_yaml(found, source)),
        (topograph.is_graph, lambda found: topograph.read_graph(found, source)),
        (_is_own, lambda _: own.read_json(data, source)),
        (topograph.is_model, lambda found: topograph.read_model(found, source)),
        (lldp.is_lldp, lambda found: with_neighbours(path.stem, lldp.read_neighbours(found, source), source)),
    ]
    for is_it, read in readers:
        if is_it(first):
            return read(first)
    raise FabricError(f"topology: {source}: none of the known formats: {FORMATS}")


def _is_own(document: Any) -> bool:  # noqa: ANN401
    return isinstance(document, dict) and "cables" in document and "hosts" in document


def with_neighbours(host: str, neighbours: dict[str, Port], source: str, nics: tuple[Port, ...] = ()) -> Topology:
    """A topology of one host and the switches that it hears. Raises FabricError."""
    known = {nic.name: nic for nic in nics}
    for name in neighbours:
        known.setdefault(name, Port(node=host, name=name))
    cables = tuple(Cable(one=known[name], other=far) for name, far in neighbours.items())
    switches = tuple(Switch(name=name, tier=1) for name in dict.fromkeys(far.node for far in neighbours.values()))
    whole = Host(name=host, nics=tuple(known.values()))
    return check_whole(Topology(source=source, hosts=(whole,), switches=switches, cables=cables))
