"""Lists that the kernel gives over netlink, of the network namespace of this thread. Reads only; needs no rights."""

import socket
import struct
from collections.abc import Iterator

_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_ATTRIBUTE = struct.Struct("=HH")
_DONE, _ERROR = 3, 2
_REQUEST_DUMP = 0x301
_LIMIT_S = 1.0
_MOST_BYTES = 1 << 16  # the kernel puts 32 KiB at most into one answer to a dump


def listed(request: int, body: bytes, family: int = socket.NETLINK_ROUTE) -> Iterator[bytes]:
    """Bodies of the messages that answer a dump. Raises OSError, struct.error."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, family) as link:
        link.settimeout(_LIMIT_S)
        link.send(_HEADER.pack(_HEADER.size + len(body), request, _REQUEST_DUMP, 1, 0) + body)
        while True:
            data, at = link.recv(_MOST_BYTES), 0
            while at + _HEADER.size <= len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind in (_DONE, _ERROR) or length < _HEADER.size:
                    return
                yield data[at + _HEADER.size : at + length]
                at += (length + 3) & ~3
            if not at:
                return


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and value of each, up to one that cannot be."""
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3
