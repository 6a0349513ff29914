"""The server's end of WebSocket (RFC 6455), as far as the link needs it: a request, bytes to messages, and back. Pure.

A controller has 12,500 links and a few dozen microseconds for each message, so the bytes of a link are cut here and not
by a web framework. Text messages, extensions and compression are no part of the link.
"""

import base64
import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from everstep.errors import WireError

try:  # compiled, and a tenth of the time
    from aiohttp._websocket.helpers import websocket_mask as _unmask
except ImportError:  # an aiohttp that has it elsewhere

    def _unmask(mask: bytes, data: bytearray) -> None:
        size = len(data)
        key = int.from_bytes(mask * (size // 4) + mask[: size % 4], "little")
        data[:] = (int.from_bytes(data, "little") ^ key).to_bytes(size, "little")


TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10
_CONTINUATION = 0
_FINAL, _MASKED, _RESERVED, _OPCODE, _LENGTH = 0x80, 0x80, 0x70, 0x0F, 0x7F
_MOST_IN_CONTROL = 125

MOST_FRAGMENTS = 256
"""Fragments of one message. Our clients send one; a peer is charged by the message, and empty fragments would cost it
nothing."""

NORMAL_CLOSURE, PROTOCOL_ERROR, TOO_BIG = 1000, 1002, 1009

_GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"

Message: TypeAlias = tuple[int, bytearray]
"""(opcode, payload), whole."""


class BrokenError(WireError):
    """Data that is not WebSocket, or is too long; nothing after it can be understood. `code`: why, for the peer."""

    def __init__(self, why: str, code: int = PROTOCOL_ERROR) -> None:
        super().__init__(why)
        self.code = code


class Incoming:
    """Cuts what a client sends into messages. Feed it what arrived; after BrokenError, nothing more."""

    __slots__ = ("_most", "_num_parts", "_parts", "_rest", "_type", "_wanted")

    def __init__(self, most: int) -> None:
        """`most`: bytes of a message."""
        self._most = most
        self._rest = bytearray()  # of a frame that has not come to its end
        self._parts = bytearray()  # of a message that has not
        self._num_parts = 0
        self._type = 0
        self._wanted = 0  # bytes of the frame that has not come to its end, as far as that is known

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """The messages that are whole now. Raises BrokenError."""
        whole: bytes | bytearray | memoryview = data
        if self._rest:
            self._rest += data
            if len(self._rest) < self._wanted:
                return []
            whole, self._rest = self._rest, bytearray()
        found: list[Message] = []
        self._wanted = 0
        at, size = 0, len(whole)
        while size - at >= 2:
            first, begin, length = whole[at], at + 6, whole[at + 1] & _LENGTH
            if first & _RESERVED or whole[at + 1] < _MASKED:
                raise BrokenError("a frame with reserved bits, or without a mask")
            if length >= 126:
                begin += 2 if length == 126 else 8
                if size < begin:
                    break
                length = int.from_bytes(whole[at + 2 : begin - 4], "big")
            if length > self._most:
                raise BrokenError(f"a frame of {length} bytes; at most {self._most}", TOO_BIG)
            end = begin + length
            if size < end:
                self._wanted = end - at  # a long frame is not looked at again with each piece
                break
            payload = bytearray(whole[begin:end])
            _unmask(bytes(whole[begin - 4 : begin]), payload)
            at = end
            if first == _FINAL | BINARY and not self._type:  # nearly all are
                found.append((BINARY, payload))
            else:
                self._take(first, payload, found)
        self._rest = bytearray(whole[at:]) if at < size else bytearray()
        return found

    def _take(self, first: int, payload: bytearray, found: list[Message]) -> None:
        """A control frame, or a part of a message."""
        opcode, is_final = first & _OPCODE, bool(first & _FINAL)
        if opcode in (CLOSE, PING, PONG):
            if len(payload) > _MOST_IN_CONTROL or not is_final:
                raise BrokenError("a control frame that is long or in parts")
            found.append((opcode, payload))
            return
        if (opcode == _CONTINUATION) != bool(self._type) or opcode not in (_CONTINUATION, TEXT, BINARY):
            raise BrokenError(f"a frame of type {opcode} where none can be")
        self._type = self._type or opcode
        self._parts += payload
        self._num_parts += 1
        if self._num_parts > MOST_FRAGMENTS:
            raise BrokenError(f"a message of more than {MOST_FRAGMENTS} fragments", TOO_BIG)
        if len(self._parts) > self._most:
            raise BrokenError(f"a message of more than {self._most} bytes", TOO_BIG)
        if is_final:
            found.append((self._type, self._parts))
            self._type, self._parts, self._num_parts = 0, bytearray(), 0


def frame(opcode: int, payload: bytes | bytearray) -> bytes:
    """Return a frame as a server sends it: whole, without a mask."""
    size = len(payload)
    if size < 126:
        head = bytes((_FINAL | opcode, size))
    elif size < 1 << 16:
        head = bytes((_FINAL | opcode, 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((_FINAL | opcode, 127)) + size.to_bytes(8, "big")
    return head + payload


def closing(code: int, why: str = "") -> bytes:
    return frame(CLOSE, code.to_bytes(2, "big") + why.encode()[: _MOST_IN_CONTROL - 2])


def parse_request(head: bytes) -> tuple[str, dict[str, str]]:
    """The request line and the headers, names in lower case. Raises WireError."""
    line, *fields = head.decode("latin-1").split("\r\n")
    headers = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon:
            raise WireError("a header without a colon")
        headers[name.strip().lower()] = value.strip()
    return line, headers


def switching(headers: Mapping[str, str]) -> bytes:
    """The answer that makes a connection a WebSocket. Raises WireError when the request asks for none."""
    key = headers.get("sec-websocket-key", "")
    is_asked = headers.get("upgrade", "").lower() == "websocket" and "upgrade" in headers.get("connection", "").lower()
    if not is_asked or not key or headers.get("sec-websocket-version") != "13":
        raise WireError("/link is a WebSocket, version 13")
    accept = base64.b64encode(hashlib.sha1((key + _GUID).encode("latin-1")).digest()).decode()
    return (
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Accept: {accept}\r\n\r\n"
    ).encode()
