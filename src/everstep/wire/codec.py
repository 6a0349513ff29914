"""Bytes to messages and back. Garbage, unknown tags and oversized frames become WireError, never anything else."""

from typing import TypeVar

import msgspec

from everstep.errors import WireError
from everstep.model.text import without_surrogates
from everstep.wire.messages import FromController, FromPeer

MAX_FROM_PEER_BYTES = 4 << 20
"""No field is longer than its message. The longest honest ones are the ends of many ranks with their error reports,
each of which the agent cuts; decoding this much takes the controller some ten milliseconds."""

MAX_FROM_CONTROLLER_BYTES = 16 << 20
"""A start names what thousands of nodes hold."""


class OversizedError(WireError):
    """Refused for its length alone, before a byte of it was looked at."""


_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_from_peer: msgspec.msgpack.Decoder[FromPeer] = msgspec.msgpack.Decoder(FromPeer)
_from_controller: msgspec.msgpack.Decoder[FromController] = msgspec.msgpack.Decoder(FromController)


def encode(message: FromPeer | FromController) -> bytes:
    """Encode a message. Text that is not Unicode is escaped: a report that cannot be sent would block all that come
    after it."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        return _encoder.encode(without_surrogates(msgspec.to_builtins(message, builtin_types=(bytes,))))


def decode_from_peer(data: bytes | bytearray) -> FromPeer:
    """Raises WireError."""
    return _decode(_from_peer, data, MAX_FROM_PEER_BYTES)


def decode_from_controller(data: bytes) -> FromController:
    """Raises WireError."""
    return _decode(_from_controller, data, MAX_FROM_CONTROLLER_BYTES)


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes | bytearray, most: int) -> _T:
    if len(data) > most:
        raise OversizedError(f"message of {len(data)} bytes refused; at most {most}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message of this protocol: {error}") from error
