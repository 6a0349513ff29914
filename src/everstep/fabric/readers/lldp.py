"""LLDP neighbours of one host: `lldpcli -f json0 show neighbors`. They give the switch and the port of each NIC."""

from collections.abc import Iterator
from typing import Any

from everstep.fabric.readers.text import items, mapping
from everstep.fabric.topology.values import FabricError, Port


def is_lldp(document: Any) -> bool:  # noqa: ANN401
    return isinstance(document, dict) and "lldp" in document


def read_neighbours(document: Any, source: str) -> dict[str, Port]:  # noqa: ANN401
    """NIC -> port of the switch that it hears. A neighbour without usable names is left out. Raises FabricError."""
    found: dict[str, Port] = {}
    for part in _listed(mapping(document, "lldp", source).get("lldp"), source):
        for entry in _listed(part.get("interface"), source):
            for name, body in _named(entry, source):
                switch = _text(body, "chassis", ("name", "id"), source)
                if not name or not switch:
                    continue
                if name in found and found[name].node != switch:
                    raise FabricError(f"{source}: NIC {name} hears two switches: {found[name].node} and {switch}")
                found[name] = Port(node=switch, name=_text(body, "port", ("id", "descr"), source))
    return found


def _named(entry: dict[str, Any], source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """json0 has `name` inside; plain json has it as the key."""
    if isinstance(entry.get("name"), str):
        yield entry["name"], entry
        return
    for name, body in entry.items():
        if isinstance(body, dict):
            yield name, mapping(body, name, source)


def _text(body: dict[str, Any], part: str, keys: tuple[str, ...], source: str) -> str:
    for each in _listed(body.get(part), source):
        inner = (
            each
            if any(key in each for key in keys)
            else next(({"name": name, **value} for name, value in each.items() if isinstance(value, dict)), {})
        )
        for key in keys:
            value = inner.get(key)
            if isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, dict):
                value = value.get("value")
            if isinstance(value, str) and value:
                return value
    return ""


def _listed(value: Any, source: str) -> list[dict[str, Any]]:  # noqa: ANN401
    """json0 always lists; plain json collapses a list of one."""
    if isinstance(value, dict):
        return [mapping(value, "lldp", source)]
    return [each for each in items(value, "lldp", source) if isinstance(each, dict)]
