"""Hosts, switches and the cables between them. Unknown is None: never zero, never the default of a vendor.

A cable has two ends, each with its own settings, because that is where cables go wrong: one end at 9000 bytes, the
other at 1500. Each direction of a cable is a link of its own, because packets are lost one way.
"""

from collections.abc import Mapping

import msgspec

from everstep.errors import ConfigError


class FabricError(ConfigError):
    """A topology, a file or a request that cannot be used. One line, with the object."""


class Port(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One end of a cable, or a NIC whose cable is not known."""

    node: str
    name: str = ""
    rail: int | None = None  # index of the NIC on its host, or the rail that a leaf serves
    bps: float | None = None  # what it sends, bit/s
    mtu: int | None = None
    duplex: str | None = None  # "full", "half"
    lossless: tuple[int, ...] | None = None  # priorities with PFC
    ecn: tuple[int, ...] | None = None  # priorities that are marked
    is_up: bool | None = None

    @property
    def label(self) -> str:
        return f"{self.node}:{self.name}" if self.name else self.node


class Cable(msgspec.Struct, frozen=True, kw_only=True):
    one: Port
    other: Port

    @property
    def bps(self) -> float | None:
        """What it can carry each way: the slower end decides; None if either is unknown."""
        if self.one.bps is None or self.other.bps is None:
            return None
        return min(self.one.bps, self.other.bps)

    @property
    def is_up(self) -> bool:
        """Unless an end is known to be down."""
        return self.one.is_up is not False and self.other.is_up is not False

    @property
    def label(self) -> str:
        return f"{self.one.label} - {self.other.label}"


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    nics: tuple[Port, ...] = ()  # empty: not known
    chips: int | None = None
    domain: str | None = None  # of accelerators: an NVLink domain, the closest group there is
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Switch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    tier: int | None = None  # 1: a leaf. None: as far as it is from the nearest host
    rail: int | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    hosts: tuple[Host, ...] = ()
    switches: tuple[Switch, ...] = ()
    cables: tuple[Cable, ...] = ()
    fates: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """What fails together besides a switch and what hangs on it: a power feed, a line card, a rack."""

    def host_names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)


MAX_TIER = 64
"""Groups are formed for each tier: a number from a file may not make any number of them."""


def check_whole(topology: Topology) -> Topology:
    """The same value. Raises FabricError for what no network can be: duplicate names, a cable to nowhere."""
    kinds: dict[str, str] = {}
    for kind, names in (("host", topology.host_names()), ("switch", [each.name for each in topology.switches])):
        for name in names:
            if not name:
                raise FabricError(f"{topology.source}: a {kind} without a name")
            if name in kinds:
                raise FabricError(f"{topology.source}: duplicate name: {name}: a {kinds[name]} and a {kind}")
            kinds[name] = kind
    for switch in topology.switches:
        if switch.tier is not None and not 0 <= switch.tier <= MAX_TIER:
            raise FabricError(f"{topology.source}: {switch.name}: tier {switch.tier}: must be 0 to {MAX_TIER}")
    _check_nics(topology)
    _check_cables(topology, kinds)
    for group, members in topology.fates.items():
        for member in members:
            if member not in kinds:
                raise FabricError(f"{topology.source}: fate-sharing group {group}: unknown node: {member}")
    return topology


def _check_nics(topology: Topology) -> None:
    for host in topology.hosts:
        seen: set[str] = set()
        for nic in host.nics:
            if nic.name in seen:
                raise FabricError(f"{topology.source}: duplicate NIC: {host.name}:{nic.name}")
            seen.add(nic.name)


def _check_cables(topology: Topology, kinds: Mapping[str, str]) -> None:
    nics = {host.name: {nic.name for nic in host.nics} for host in topology.hosts}
    seen: dict[tuple[str, str], Cable] = {}
    for cable in topology.cables:
        for end in (cable.one, cable.other):
            _check_end(topology.source, end, kinds, nics)
            if end.name and (end.node, end.name) in seen:
                first = seen[end.node, end.name].label
                raise FabricError(f"{topology.source}: port {end.label} has two cables: {first}, and {cable.label}")
            seen[end.node, end.name] = cable
        if cable.one.node == cable.other.node:
            raise FabricError(f"{topology.source}: cable {cable.label}: both ends are on one node")


def _check_end(source: str, end: Port, kinds: Mapping[str, str], nics: Mapping[str, set[str]]) -> None:
    if end.node not in kinds:
        raise FabricError(f"{source}: a cable ends at {end.label}: no host or switch has that name")
    if nics.get(end.node) and end.name not in nics[end.node]:
        known = ", ".join(sorted(nics[end.node])[:8])
        raise FabricError(f"{source}: unknown NIC: {end.label}: the host has {known}")
    if end.bps is not None and not 0 < end.bps < 1e15:
        raise FabricError(f"{source}: speed of {end.label}: {end.bps:g} bit/s cannot be")
