"""Format of a probe and its answer, in network byte order. One size for both, so that nothing is amplified."""

import struct

import msgspec

_PROBE = struct.Struct("!4sIIQ12x")
_ECHO = struct.Struct("!4sIIQII4x")
_MAGIC, _BACK = b"esp1", b"esp2"
SIZE = _PROBE.size
_WRAP = 1 << 32


class Probe(msgspec.Struct, frozen=True):
    flow: int  # drawn when the flow begins: a prober that restarts is a new flow
    number: int  # 1, 2, 3, ...
    sent_us: int


class Echo(msgspec.Struct, frozen=True):
    flow: int
    number: int  # number of the probe that it answers
    answered_us: int
    received: int  # probes of this flow that came, this one included
    late: int  # late ones among them


def pack_probe(probe: Probe) -> bytes:
    return _PROBE.pack(_MAGIC, probe.flow, probe.number % _WRAP, probe.sent_us)


def pack_echo(echo: Echo) -> bytes:
    return _ECHO.pack(_BACK, echo.flow, echo.number, echo.answered_us, echo.received % _WRAP, echo.late % _WRAP)


def read_probe(data: bytes) -> Probe | None:
    """The probe in a packet. None for anything else: packets over UDP are not trusted."""
    if len(data) != SIZE or data[:4] != _MAGIC:
        return None
    return Probe(*_PROBE.unpack(data)[1:])


def read_echo(data: bytes) -> Echo | None:
    if len(data) != SIZE or data[:4] != _BACK:
        return None
    return Echo(*_ECHO.unpack(data)[1:])
