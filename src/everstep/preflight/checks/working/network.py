"""Network: round trips and bandwidth over loopback, and to each peer that runs `everstep check --serve`, both ways."""

import fcntl
import os
import socket
import statistics
import struct
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from everstep.preflight.peer import (
    GREETING,
    MESSAGE_BYTES,
    Taken,
    give,
    listen,
    proof,
    read_exactly,
    read_line,
    serve,
    take,
)
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Failed, run_forked
from everstep.preflight.settings import Settings, Sizes
from everstep.preflight.sources import text_of

_CONNECT_S = 5.0
_LOOPBACK_S = 10.0  # takes two; more than this is a finding of its own
_SIOCGIFADDR = 0x8915
_TCP_INFO_RETRANSMITS = 100  # offset of tcpi_total_retrans
_ROUND_TRIPS_S = 3.0  # a slow peer is asked fewer times


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="round trips and bandwidth over loopback")
    yield from _loopback(settings.sizes)
    if not settings.peers:
        yield unsupported("network.peer", "no peer was given (--peers host:port of nodes that run check --serve)")
    for peer in settings.peers:
        yield Doing(what=f"round trips and bandwidth to {peer}")
        yield from _peer(peer, settings)


def _loopback(sizes: Sizes) -> Iterator[Result]:
    """The other side is a process of its own: two threads of one Python would wait for each other."""
    with listen("127.0.0.1", 0) as listener:
        listener.settimeout(_CONNECT_S)
        address = listener.getsockname()

        def answer() -> dict[str, Any]:
            serve(listener, "", requests=3)
            return {}

        seconds = min(sizes.network_s, 1.0)
        _, found = run_forked([answer, lambda: _measured(address, "", sizes, seconds)], limit_s=_LOOPBACK_S)
    if isinstance(found, Failed):
        yield Result(
            name="network.loopback", value="failed", verdict=Judgement.BAD, device="lo", how="TCP over 127.0.0.1",
            why=f"two processes of this node cannot talk over loopback: {found.why}",
        )  # fmt: skip
    else:
        yield from _results("network.loopback", found, "lo")


def _peer(peer: str, settings: Settings) -> Iterator[Result]:
    name, how = f"network.peer.{peer}", "TCP connection"
    host, colon, port = peer.rpartition(":")
    host = host.strip("[]")
    if not colon or not port.isdigit():
        yield unsupported(f"{name}.reachable", f"{peer!r} is not of the form host:port")
        return
    try:
        found = _measured((host, int(port)), settings.token, settings.sizes, settings.sizes.network_s)
    except (OSError, ValueError, msgspec.DecodeError) as error:
        yield Result(
            name=f"{name}.reachable", value=False, verdict=Judgement.BAD, how=how, device=peer,
            why=f"{peer}: {getattr(error, 'strerror', None) or error}",
        )  # fmt: skip
        return
    yield Result(name=f"{name}.reachable", value=True, verdict=Judgement.OK, how=how, device=peer)
    yield from _results(name, found, peer)
    yield from _share(name, found, peer, settings.root)


def _measured(address: tuple[str, int], token: str, sizes: Sizes, seconds: float) -> dict[str, Any]:
    """Raises OSError, ValueError."""
    begun = time.perf_counter()
    with _asked(address, token, "echo", sizes.round_trips) as link:
        connect_s = time.perf_counter() - begun
        trips = _round_trips(link, sizes.round_trips)
        local = str(link.getsockname()[0])
    with _asked(address, token, "take", seconds) as link:
        give(link, seconds)
        sent = msgspec.json.decode(read_line(link), type=Taken)
        again = _retransmits(link)
    with _asked(address, token, "give", seconds) as link:
        received = take(link, seconds)
    return {
        "connect_s": connect_s, "trips": trips, "local": local, "retransmits": again,
        "sent": sent.num_bytes / max(sent.took_s, 1e-9), "sent_bytes": sent.num_bytes,
        "received": received.num_bytes / max(received.took_s, 1e-9), "received_bytes": received.num_bytes,
    }  # fmt: skip


def _asked(address: tuple[str, int], token: str, what: str, number: float) -> socket.socket:
    """A connection on which this was asked for and granted. Raises OSError, ValueError."""
    link = socket.create_connection(address, timeout=_CONNECT_S)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greeting = read_line(link)
        if not greeting.startswith(GREETING):
            raise ValueError("what listens there is not everstep check --serve")
        link.sendall(f"{proof(token, greeting.removeprefix(GREETING))} {what} {number:g}\n".encode())
        answer = read_line(link)
        if answer != b"ok":
            raise ValueError(f"it refused: {answer.decode(errors='replace')} (EVERSTEP_CHECK_TOKEN)")
    except BaseException:
        link.close()
        raise
    return link


def _round_trips(link: socket.socket, count: int) -> list[float]:
    message = b"x" * MESSAGE_BYTES
    times: list[float] = []
    begun = time.perf_counter()
    while len(times) < count and time.perf_counter() - begun < _ROUND_TRIPS_S:
        last = time.perf_counter()
        link.sendall(message)
        read_exactly(link, MESSAGE_BYTES)
        times.append(time.perf_counter() - last)
    return sorted(times)


def _retransmits(link: socket.socket) -> int | None:
    data = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    end = _TCP_INFO_RETRANSMITS + 4
    return int(struct.unpack_from("=I", data, _TCP_INFO_RETRANSMITS)[0]) if len(data) >= end else None


def _results(name: str, found: dict[str, Any], device: str) -> Iterator[Result]:
    trips: list[float] = found["trips"]
    how = f"{len(trips)} round trips of {MESSAGE_BYTES} bytes over TCP"
    for title, value, tolerance in (
        ("rtt_p50_s", statistics.median(trips), 1.0), ("rtt_p99_s", trips[int(0.99 * (len(trips) - 1))], 3.0),
        ("rtt_slowest_s", trips[-1], 10.0),
    ):  # fmt: skip
        yield measured(f"{name}.{title}", value, "s", how=how, better=Better.LOWER, tolerance=tolerance, device=device)
    yield measured(
        f"{name}.connect_s", found["connect_s"], "s", how="connect, and first answer", better=Better.LOWER,
        tolerance=3.0, device=device,
    )  # fmt: skip
    for title, key, way in (("send_bandwidth", "sent", "to"), ("receive_bandwidth", "received", "from")):
        how = f"one TCP stream {way} it, {found[f'{key}_bytes'] >> 20} MiB, counted by the receiver"
        yield measured(
            f"{name}.{title}", found[key], "bytes/s", how=how, better=Better.HIGHER, tolerance=0.4, device=device
        )  # fmt: skip
    if found["retransmits"] is None:
        yield unsupported(f"{name}.retransmits", "this kernel's TCP_INFO is shorter", "segments", device=device)
    else:
        how = "TCP_INFO of the sending connection"
        yield measured(f"{name}.retransmits", found["retransmits"], "segments", how=how, device=device)


def _share(name: str, found: dict[str, Any], device: str, root: str) -> Iterator[Result]:
    """Bandwidth by what the link of the interface promises; virtual interfaces promise what they like."""
    interface = _interface_of(found["local"])
    speed = text_of(root, f"/sys/class/net/{interface}/speed") if interface else None
    has_device = bool(interface) and os.path.exists(f"/sys/class/net/{interface}/device")  # noqa: PTH110
    full = f"{name}.share_of_link"
    if not has_device or not speed or not speed.isdigit() or not int(speed):
        why = f"the interface {interface or 'of this connection'} does not say how fast its link is"
        yield unsupported(full, why, "ratio", device=device)
        return
    share = min(found["sent"], found["received"]) * 8 / (int(speed) * 1e6)
    how = f"slower direction by the {speed} Mbit/s of {interface}"
    yield measured(full, share, "ratio", how=how, better=Better.HIGHER, device=device)


def _interface_of(address: str) -> str:
    """Name of the interface that has this IPv4 address; empty when there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        for _, name in socket.if_nameindex():
            try:
                row = fcntl.ioctl(asker.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:
                continue
            if socket.inet_ntoa(row[20:24]) == address:
                return name
    return ""
