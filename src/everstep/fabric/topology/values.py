"""Hosts, switches and the cables between them. An unknown value is None, never zero and never a vendor's default.

Each end of a cable has its own settings, because faults often are a difference between the ends: one at MTU 9000, the
other at 1500. Each direction of a cable is a separate link, because a cable can lose packets in one direction only.
"""

from collections.abc import Mapping

import msgspec

from everstep.errors import ConfigError


class FabricError(ConfigError):
    """A topology, file or request that cannot be used. The message is one line and names the object."""


class Port(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One end of a cable, or a NIC without a known cable."""

    node: str
    name: str = ""
    rail: int | None = None  # index of the NIC on its host, or the rail that a leaf serves
    bps: float | None = None  # sending speed, bit/s
    mtu: int | None = None
    duplex: str | None = None  # "full", "half"
    lossless: tuple[int, ...] | None = None  # priorities with PFC
    ecn: tuple[int, ...] | None = None  # priorities with ECN marking
    is_up: bool | None = None

    @property
    def label(self) -> str:
        return f"{self.node}:{self.name}" if self.name else self.node


class Cable(msgspec.Struct, frozen=True, kw_only=True):
    one: Port
    other: Port

    @property
    def bps(self) -> float | None:
        """Bit/s in each direction: the speed of the slower end; None if either is unknown."""
        if self.one.bps is None or self.other.bps is None:
            return None
        return min(self.one.bps, self.other.bps)

    @property
    def is_up(self) -> bool:
        """False only if an end is known to be down."""
        return self.one.is_up is not False and self.other.is_up is not False

    @property
    def label(self) -> str:
        return f"{self.one.label} - {self.other.label}"


class Host(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    nics: tuple[Port, ...] = ()  # empty: unknown
    chips: int | None = None
    domain: str | None = None  # accelerator domain (NVLink): the closest group of hosts
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Switch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    tier: int | None = None  # 1: a leaf. None: the distance from the nearest host
    rail: int | None = None
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)


class Topology(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    hosts: tuple[Host, ...] = ()
    switches: tuple[Switch, ...] = ()
    cables: tuple[Cable, ...] = ()
    fates: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Further groups of nodes that fail together: on one power feed, line card or rack."""

    def host_names(self) -> tuple[str, ...]:
        return tuple(host.name for host in self.hosts)


MAX_TIER = 64
"""Each tier costs memory for its groups, so a file must not ask for any number of tiers."""


def check_whole(topology: Topology) -> Topology:
    """Return the topology. Raises FabricError for an impossible one: duplicate names, a cable to an unknown node."""
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
