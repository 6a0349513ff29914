"""Reader of probe flows: a file with one JSON object per line."""

import ipaddress

import msgspec

from everstep.fabric.probing.watch import Planned
from everstep.fabric.topology.values import FabricError

_BROADCAST = ipaddress.IPv4Address("255.255.255.255")


def read_flows(data: bytes, source: str, most: int) -> list[Planned]:
    """All flows of a file, at most `most`. Raises FabricError."""
    flows = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            flow = msgspec.json.decode(line, type=Planned)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FabricError(f"{source}:{number}: not a flow with to, port, there and back: {error}") from None
        check_address(flow.to, f"{source}:{number}")
        if not 1 <= flow.port <= 65535 or min(len(flow.there), len(flow.back)) < 2:
            raise FabricError(f"{source}:{number}: needs a port from 1 to 65535, and two nodes each way at least")
        if (flow.there[0], flow.there[-1]) != (flow.back[-1], flow.back[0]):
            raise FabricError(f"{source}:{number}: the way back does not end where the way there begins")
        flows.append(flow)
        if len(flows) > most:
            raise FabricError(f"{source}: more than {most} flows")
    return flows


def check_address(text: str, where: str) -> None:
    """Raises FabricError if `text` is not the IPv4 address of one host."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        raise FabricError(f"{where}: {text[:60]!r} is not an IPv4 address") from None
    if address.is_unspecified or address.is_multicast or address == _BROADCAST:
        raise FabricError(f"{where}: {text} is not the address of one host")
