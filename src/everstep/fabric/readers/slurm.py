"""Slurm's `topology.conf` (tree and block) and, from 25.05, `topology.yaml`."""

import re
from typing import Any

from everstep.fabric.readers.hostlist import expand
from everstep.fabric.readers.text import items, mapping
from everstep.fabric.topology.tree import Tree
from everstep.fabric.topology.values import FabricError, Topology

_KEYS = ("switchname", "nodes", "switches", "linkspeed", "blockname", "blocksizes")


def read_conf(text: str, source: str) -> Topology:
    """Raises FabricError."""
    tree = Tree(source=source)
    for number, line in _lines(text):
        given = _settings(line, number, source)
        name = given.get("switchname") or given.get("blockname")
        if name is None:
            if "blocksizes" in given:
                continue
            raise FabricError(f"{source}:{number}: neither SwitchName nor BlockName: {line[:60]!r}")
        nodes = expand(given.get("nodes", ""), f"{source}:{number}")
        below = expand(given.get("switches", ""), f"{source}:{number}")
        for each in expand(name, f"{source}:{number}"):
            tree.add(each, children=below, hosts=nodes)
    if not tree.children:
        raise FabricError(f"{source}: no SwitchName and no BlockName in it")
    return tree.topology()


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines without comments; a backslash at the end continues a line."""
    found: list[tuple[int, str]] = []
    held, start = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.split("#", 1)[0].rstrip()
        start = start if held else number
        if plain.endswith("\\"):
            held += plain[:-1] + " "
            continue
        whole, held = (held + plain).strip(), ""
        if whole:
            found.append((start, whole))
    if held.strip():
        found.append((start, held.strip()))
    return found


def _settings(line: str, number: int, source: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for word in line.split():
        key, equals, value = word.partition("=")
        if not equals or key.lower() not in _KEYS:
            raise FabricError(f"{source}:{number}: {word[:40]!r}: not a key of topology.conf")
        given[key.lower()] = value.strip("\"'")
    return given


def is_conf(text: str) -> bool:
    return re.search(r"^[ \t]*(SwitchName|BlockName)[ \t]*=", text, re.MULTILINE | re.IGNORECASE) is not None


def is_yaml(document: Any) -> bool:  # noqa: ANN401
    return isinstance(document, list) and any(isinstance(each, dict) and "topology" in each for each in document)


def read_yaml(document: list[Any], source: str) -> Topology:
    """The default topology of the file, else its first tree or block. Raises FabricError."""
    plans = [mapping(each, "topology", source) for each in document]
    usable = [plan for plan in plans if "tree" in plan or "block" in plan]
    if not usable:
        raise FabricError(f"{source}: no tree and no block in it")
    plan = next((each for each in usable if each.get("cluster_default")), usable[0])
    tree = Tree(source=source)
    kind = "tree" if "tree" in plan else "block"
    body = mapping(plan[kind], kind, source)
    for each in items(body.get("switches" if kind == "tree" else "blocks"), kind, source):
        entry = mapping(each, kind, source)
        name = entry.get("switch" if kind == "tree" else "block")
        if not isinstance(name, str | int):
            raise FabricError(f"{source}: {kind}: an entry without a name")
        below = expand(str(entry.get("children") or ""), source)
        tree.add(str(name), children=below, hosts=expand(str(entry.get("nodes") or ""), source))
    return tree.topology()
