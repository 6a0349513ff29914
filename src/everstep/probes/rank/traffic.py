"""Bytes over the network: of a process's own TCP sockets, and of the node's interfaces.

One netlink dump returns the sockets for all ranks (sock_diag: the kernel's own byte counters, 0.5 ms for some tens of
sockets); /proc/PID/fd gives their owners. Called only while a rank is quiet, or for evidence. Other transports (RDMA,
shared memory, UDP) are not included: `infiniband` has the ports of the node. An unreadable value is unknown: it raises
`TrafficError` with the reason and never returns 0.
"""

import ipaddress
import os
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

LIVE_BYTES_S = 64 << 10
"""Less is no sign of life: heartbeats of stores and trackers send some hundred bytes a second, also in a hang. A slower
download counts as a wait."""

MAX_DUMP_S = 0.25
"""Limit in CPU seconds. On a node with a hundred thousand sockets the dump is given up, so that the agent does not
spend its time counting. Not wall-clock time: on busy CPUs, any dump may be interrupted for this long."""

_ANSWER_S = 1.0
"""The kernel has its answer ready when the request is sent."""

_SOCK_DIAG_BY_FAMILY = 20
_REQUEST_DUMP = 0x301
_ERROR, _DONE = 2, 3
_INET_DIAG_INFO = 2
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_INODE_AT, _OWN_AT, _PEER_AT = 68, 8, 24  # in inet_diag_msg, which is 72 bytes long
_MESSAGE_BYTES = 72
_RETRANSMITS_AT = 100  # in tcp_info: tcpi_total_retrans
_BYTES_AT = 120  # tcpi_bytes_acked, tcpi_bytes_received (Linux 4.1)
_SEGMENTS_AT = 156  # tcpi_data_segs_out (Linux 4.6)
_BUSY_AT = 168  # tcpi_busy_time, tcpi_rwnd_limited, in microseconds (Linux 4.10)
_DOUBLES_AT = 216  # tcpi_dsack_dups (Linux 4.19)


class TrafficError(Exception):
    """The bytes are unknown. The text is the reason, for users."""


class Connection(NamedTuple):
    """Kernel counters of one TCP socket since it was opened."""

    inode: int
    acked: int  # bytes that the receiver has acknowledged
    received: int  # bytes
    peer: str  # address
    retransmits: int  # lost segments: without those that the receiver reports as duplicates
    busy_s: float | None  # time with data on its way and room at the receiver; None: an old kernel
    segments: int  # segments with data sent; 0 from an old kernel
    full_s: float | None  # time without room at the receiver; None: an old kernel
    is_local: bool  # both ends are on this machine: there is no link


def sockets_of(pids: Iterable[int]) -> dict[int, set[int]]:
    """Inodes of the sockets that each process has open. Raises TrafficError if a process is not readable, or is in
    another network namespace; a process that is gone is left out."""
    own = _namespace("self")
    found: dict[int, set[int]] = {}
    for pid in pids:
        try:
            if _namespace(str(pid)) != own:
                raise TrafficError(f"process {pid} lives in another network namespace")
            found[pid] = set(_socket_inodes(pid))
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError as error:
            raise TrafficError(f"descriptors of process {pid}: {error.strerror or error}") from None
    return found


def connections() -> dict[int, Connection]:
    """All TCP sockets of this network namespace, by inode. Raises TrafficError."""
    until = time.thread_time() + MAX_DUMP_S
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as link:
            link.settimeout(_ANSWER_S)
            link.bind((0, 0))
            families = (socket.AF_INET, socket.AF_INET6)
            return {each.inode: each for family in families for each in _dump(link, int(family), until)}
    except (OSError, struct.error) as error:
        raise TrafficError(f"sock_diag: {error}") from None


def bytes_of(pids: Iterable[int]) -> dict[int, dict[int, int]]:
    """Bytes so far by process and socket; one dump for all processes. Raises TrafficError."""
    owned = sockets_of(pids)
    counted = {inode: each.acked + each.received for inode, each in connections().items()}
    return {pid: {inode: counted[inode] for inode in inodes if inode in counted} for pid, inodes in owned.items()}


def grown(before: Mapping[int, int], after: Mapping[int, int]) -> int:
    """Bytes between two looks. A socket that was opened in between counts completely; the last bytes of one that was
    closed are unknown."""
    return sum(max(0, value - before.get(inode, 0)) for inode, value in after.items())


class TrafficProbe:
    """Whether one rank's sockets, while it is quiet, move data at more than a heartbeat's rate."""

    def __init__(self) -> None:
        self._before: dict[int, int] | None = None
        self._counted_at = 0.0
        self._moved_at: float | None = None

    def take(self, counted: Mapping[int, int] | None, at: float) -> None:
        """Add the bytes by socket at this time; None: they could not be counted."""
        if counted is None:
            self.forget()
            return
        if self._before is not None and at > self._counted_at:
            rate = grown(self._before, counted) / (at - self._counted_at)
            self._moved_at = at if rate >= LIVE_BYTES_S else self._moved_at
        self._before, self._counted_at = dict(counted), at

    def look(self, now: float) -> float | None:
        """Seconds since data moved; None also if none moved so far: two looks at a quiet rank do not date that."""
        return None if self._moved_at is None else max(0.0, now - self._moved_at)

    def forget(self) -> None:
        """The rank moved, or is not readable: forget the counts so far."""
        self._before = self._moved_at = None


def interface_bytes(root: Path = Path("/")) -> dict[str, int]:
    """Received and sent so far by network interface, without the loopback. Raises TrafficError."""
    try:
        lines = (root / "proc/net/dev").read_text().splitlines()[2:]
        counted = {}
        for line in lines:
            name, _, rest = line.partition(":")
            fields = rest.split()
            counted[name.strip()] = int(fields[0]) + int(fields[8])
    except (OSError, ValueError, IndexError) as error:
        raise TrafficError(f"interfaces: {error}") from None
    counted.pop("lo", None)
    return counted


def _dump(link: socket.socket, family: int, until: float) -> Iterator[Connection]:
    """Every TCP socket of one address family."""
    body = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 1 << (_INET_DIAG_INFO - 1), 0, 0xFFFFFFFF) + bytes(48)
    link.send(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _REQUEST_DUMP, family, 0) + body)
    while True:
        if time.thread_time() > until:
            raise TrafficError(f"sock_diag took more than {MAX_DUMP_S} s of a CPU")
        data = link.recv(1 << 18)
        at = 0
        while at + _HEADER.size <= len(data):
            length, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            if length < _HEADER.size:
                raise TrafficError("sock_diag: a message without a length")
            if sequence != family:
                at += (length + 3) & ~3
                continue  # the end of an earlier answer
            if kind == _DONE:
                return
            if kind == _ERROR:
                number = -int.from_bytes(data[at + 16 : at + 20], "little", signed=True)
                raise TrafficError(f"sock_diag: {os.strerror(number)}")
            counted = _counted(data[at + _HEADER.size : at + length])
            if counted is not None:
                yield counted
            at += (length + 3) & ~3


def _counted(message: bytes) -> Connection | None:
    """The counters in a message; None for a socket without them: one that listens, or waits to be forgotten."""
    at = _MESSAGE_BYTES
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return None
        if kind == _INET_DIAG_INFO and length >= _ATTRIBUTE.size + _BYTES_AT + 16:
            return _connection(message, at + _ATTRIBUTE.size, length - _ATTRIBUTE.size)
        at += (length + 3) & ~3
    return None


def _connection(message: bytes, info_at: int, info_bytes: int) -> Connection:
    acked, received = struct.unpack_from("=QQ", message, info_at + _BYTES_AT)
    busy_s, full_s, segments = None, None, 0
    if info_bytes >= _BUSY_AT + 16:
        busy_us, no_room_us = struct.unpack_from("=QQ", message, info_at + _BUSY_AT)
        busy_s, full_s = max(0, busy_us - no_room_us) / 1e6, no_room_us / 1e6
        segments = _number(message, info_at + _SEGMENTS_AT)
    doubles = _number(message, info_at + _DOUBLES_AT) if info_bytes >= _DOUBLES_AT + 4 else 0
    size = 4 if message[0] == socket.AF_INET else 16
    own, peer = (_address(message[at : at + size]) for at in (_OWN_AT, _PEER_AT))
    return Connection(
        inode=_number(message, _INODE_AT),
        acked=acked,
        received=received,
        peer=str(peer),
        retransmits=max(0, _number(message, info_at + _RETRANSMITS_AT) - doubles),
        busy_s=busy_s,
        segments=segments,
        full_s=full_s,
        is_local=peer.is_loopback or own == peer,
    )


def _address(packed: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    address = ipaddress.ip_address(packed)
    return getattr(address, "ipv4_mapped", None) or address


def _number(message: bytes, at: int) -> int:
    return int.from_bytes(message[at : at + 4], sys.byteorder)


def _socket_inodes(pid: int) -> Iterator[int]:
    folder = f"/proc/{pid}/fd"
    for name in os.listdir(folder):  # noqa: PTH208 - hundreds of names, several times a second
        try:
            target = os.readlink(f"{folder}/{name}")  # noqa: PTH115
        except (FileNotFoundError, ProcessLookupError):
            continue
        if target.startswith("socket:["):
            yield int(target[8:-1])


def _namespace(pid: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")  # noqa: PTH115


_NETLINK_SOCK_DIAG = 4
