"""Probes that only members of a run can make: packets between two named nodes, with a keyed tag.

A packet from outside the run, of another run or generation, for another node, or a repeated one is ignored. A process
with the key can speak for any member, as in the rest of the run; so conclusions need the reports of both ends of a link
(`analyzer.hangs.links`). Answers have the size of the probe, so a responder amplifies nothing.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable

import msgspec

_FORM = struct.Struct("!4s8s8s8sQ")
_PROBE, _ECHO = b"esl1", b"esl2"
_TAG_BYTES = 16
_NAME_BYTES = 8
SIZE = _FORM.size + _TAG_BYTES
SESSION_BYTES = 8


class Packet(msgspec.Struct, frozen=True):
    is_echo: bool
    sender: bytes  # `name_of` a node
    to: bytes
    session: bytes  # of the sender of the probe, drawn when it begins
    number: int  # of the probe: 1, 2, 3, ...


def key_of(secret: str, run: str, generation: int) -> bytes:
    text = f"everstep links 1\n{run}\n{generation}".encode()
    return hmac.digest(secret.encode(), text, "sha256")


def name_of(node: str) -> bytes:
    return hashlib.blake2b(node.encode(), digest_size=_NAME_BYTES).digest()


def seal(key: bytes, packet: Packet) -> bytes:
    kind = _ECHO if packet.is_echo else _PROBE
    body = _FORM.pack(kind, packet.sender, packet.to, packet.session, packet.number)
    return body + _tag(key, body)


def unseal(key: bytes, data: bytes) -> Packet | None:
    """The packet, or None if it is not of this run and generation."""
    if len(data) != SIZE or data[:4] not in (_PROBE, _ECHO):
        return None
    body = data[: _FORM.size]
    if not hmac.compare_digest(_tag(key, body), data[_FORM.size :]):
        return None
    kind, sender, to, session, number = _FORM.unpack(body)
    return Packet(kind == _ECHO, sender, to, session, number)


def _tag(key: bytes, body: bytes) -> bytes:
    return hashlib.blake2b(body, key=key, digest_size=_TAG_BYTES).digest()


class Heard:
    """Probes received from one other node: each number once and in order, all of one session."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._session = b""
        self._newest = 0
        self.at: float | None = None

    def take(self, packet: Packet) -> bool:
        """Whether the packet is new. A repeated one, or one of another session, is not."""
        if self._session not in (b"", packet.session) or packet.number <= self._newest:
            return False
        self._session, self._newest, self.at = packet.session, packet.number, self._clock()
        return True
