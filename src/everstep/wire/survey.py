"""Messages that hosts exchange before a run, over the connections of `wire.joining`, so that all know what is wrong.

host -> head    Facts, ClockTold, Reached
head -> host    ClockAsked, Peers, Findings
"""

from typing import TypeAlias

import msgspec


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag=True):
    pass


class Facts(_Message, frozen=True, kw_only=True):
    """About one host. What could not be found out is empty or None."""

    host: str
    address: str  # at which others should reach it
    port: int  # where it answers for as long as this takes
    everstep: str
    torch: str
    python: str
    named: tuple[str, ...]  # the addresses that its own name leads to, there
    interface: str = ""  # that has the address
    mtu: int | None = None  # of it


class ClockAsked(_Message, frozen=True, kw_only=True):
    pass


class ClockTold(_Message, frozen=True, kw_only=True):
    at: float


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    address: str
    port: int


class Peers(_Message, frozen=True, kw_only=True):
    peers: tuple[Peer, ...]


class Reached(_Message, frozen=True, kw_only=True):
    """For each peer, in their order: empty, or why it is not reached."""

    whys: tuple[str, ...]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    what: str  # "name", "port", "clock", "version", "mtu", "missing"
    hosts: tuple[str, ...]
    text: str


class Findings(_Message, frozen=True, kw_only=True):
    hosts: tuple[Facts, ...]
    offsets: tuple[float, ...]  # of their clocks, in seconds, against the first one's
    findings: tuple[Finding, ...]


FromSurveyed: TypeAlias = Facts | ClockTold | Reached
ToSurveyed: TypeAlias = ClockAsked | Peers | Findings
