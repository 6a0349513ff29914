"""Everstep's own small file, in TOML, and its full value, in JSON (`everstep fabric show --json`).

[[switches]]
names = "leaf[0-3]"
tier = 1
[[hosts]]
names = "n[0-15]"
nics = 1
[[cables]]
from = "n[0-3]"      # one host each, or several
to = "leaf0"         # all pairs are joined
speed = "100G"
mtu = 9000
"""

import itertools
import math
import re
import tomllib
from typing import Any

import msgspec
from msgspec.structs import replace

from everstep.fabric.readers.hostlist import MAX_NAMES, expand
from everstep.fabric.readers.text import items, mapping
from everstep.fabric.topology.values import Cable, FabricError, Host, Port, Switch, Topology, check_whole

MAX_CABLES = 2_000_000
_SLOWEST = 1e3
"""Bit/s. A user who writes 400 means gigabits."""
_UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_SPEED = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([KMGT]?)(?:bit/s|bps)?", re.IGNORECASE)


def speed_of(value: object, where: str) -> float:
    """Bit/s of "100G", "25Gbit/s" or a number. Raises FabricError."""
    match = _SPEED.fullmatch(str(value).strip())
    bps = float(match[1]) * _UNITS[match[2].upper()] if match and not isinstance(value, bool) else math.nan
    if not 0 < bps < 1e15:
        raise FabricError(f"{where}: speed {str(value)[:40]!r}: must be like 100G or 25Gbit/s")
    if bps < _SLOWEST:
        raise FabricError(f"{where}: speed {str(value)[:40]!r} is {bps:g} bit/s: a unit is missing, as in 100G")
    return bps


def read_json(data: bytes, source: str) -> Topology:
    """Raises FabricError."""
    try:
        return check_whole(msgspec.structs.replace(msgspec.json.decode(data, type=Topology), source=source))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FabricError(f"{source}: not a topology: {error}") from None


def read_toml(text: str, source: str) -> Topology:
    """Raises FabricError."""
    try:
        whole = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise FabricError(f"{source}: not TOML: {error}") from None
    _only(whole, ("hosts", "switches", "cables", "fates"), source)
    hosts: list[Host] = []
    for each in items(whole.get("hosts"), "hosts", source):
        hosts += _hosts(each, source)
        _bound(len(hosts), "hosts", source)
    switches: list[Switch] = []
    for each in items(whole.get("switches"), "switches", source):
        switches += _switches(each, source)
        _bound(len(switches), "switches", source)
    cables: list[Cable] = []
    for each in items(whole.get("cables"), "cables", source):
        cables += _cables(each, source)
        if len(cables) > MAX_CABLES:
            raise FabricError(f"{source}: more than {MAX_CABLES} cables")
    fates = {
        name: tuple(expand(str(members), source))
        for name, members in mapping(whole.get("fates"), "fates", source).items()
    }
    return check_whole(
        Topology(source=source, hosts=tuple(hosts), switches=tuple(switches), cables=tuple(cables), fates=fates)
    )


def _bound(number: int, what: str, source: str) -> None:
    if number > MAX_NAMES:
        raise FabricError(f"{source}: more than {MAX_NAMES} {what}")


def _only(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in given:
        if key not in known:
            raise FabricError(f"{where}: unknown key {key[:40]!r}: there are {', '.join(known)}")


def _hosts(value: Any, source: str) -> list[Host]:  # noqa: ANN401
    given = mapping(value, "hosts", source)
    _only(given, ("names", "nics", "chips", "domain"), f"{source}: hosts")
    nics, chips = _count(given, "nics", source), _count(given, "chips", source)
    names = expand(str(given.get("names", "")), source)
    _bound(len(names) * (nics or 0), "NICs", source)
    return [
        Host(
            name=name,
            nics=tuple(Port(node=name, name=f"nic{rail}", rail=rail) for rail in range(nics or 0)),
            chips=chips,
            domain=None if given.get("domain") is None else str(given["domain"]),
        )
        for name in names
    ]


def _switches(value: Any, source: str) -> list[Switch]:  # noqa: ANN401
    given = mapping(value, "switches", source)
    _only(given, ("names", "tier", "rail"), f"{source}: switches")
    tier, rail = _count(given, "tier", source), _count(given, "rail", source)
    return [Switch(name=name, tier=tier, rail=rail) for name in expand(str(given.get("names", "")), source)]


def _cables(value: Any, source: str) -> list[Cable]:  # noqa: ANN401
    given = mapping(value, "cables", source)
    _only(given, ("from", "to", "nic", "port", "speed", "mtu", "rail", "count", "lossless", "ecn"), f"{source}: cables")
    where = f"{source}: cable from {given.get('from')} to {given.get('to')}"
    bps = None if given.get("speed") is None else speed_of(given["speed"], where)
    count = _count(given, "count", source)
    pairs = itertools.product(expand(str(given.get("from", "")), source), expand(str(given.get("to", "")), source))
    shared = Port(
        node="",
        bps=bps,
        mtu=_count(given, "mtu", source),
        rail=_count(given, "rail", source),
        lossless=_priorities(given, "lossless", where),
        ecn=_priorities(given, "ecn", where),
    )
    nic, port = str(given.get("nic", "")), str(given.get("port", ""))
    found = []
    for one, other in pairs:
        for _ in range(1 if count is None else count):
            ends = replace(shared, node=one, name=nic), replace(shared, node=other, name=port)
            found.append(Cable(one=ends[0], other=ends[1]))
            if len(found) > MAX_CABLES:
                raise FabricError(f"{source}: more than {MAX_CABLES} cables")
    return found


def _count(given: dict[str, Any], key: str, source: str) -> int | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100_000:
        raise FabricError(f"{source}: {key} = {str(value)[:40]!r}: must be a whole number, at most 100000")
    return value


def _priorities(given: dict[str, Any], key: str, where: str) -> tuple[int, ...] | None:
    value = given.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(each, int) and 0 <= each <= 7 for each in value):
        raise FabricError(f"{where}: {key}: must be priorities from 0 to 7")
    return tuple(sorted(value))
