"""Bytes to messages and back. Garbage, unknown tags and oversized frames become WireError, never anything else."""

from typing import TypeVar

import msgspec

from everstep.errors import WireError
from everstep.wire.messages import FromController, FromPeer

MAX_MESSAGE_BYTES = 16 << 20

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
_from_peer: msgspec.msgpack.Decoder[FromPeer] = msgspec.msgpack.Decoder(FromPeer)
_from_controller: msgspec.msgpack.Decoder[FromController] = msgspec.msgpack.Decoder(FromController)


def encode(message: FromPeer | FromController) -> bytes:
    return _encoder.encode(message)


def decode_from_peer(data: bytes) -> FromPeer:
    """Raises WireError."""
    return _decode(_from_peer, data)


def decode_from_controller(data: bytes) -> FromController:
    """Raises WireError."""
    return _decode(_from_controller, data)


def _decode(decoder: "msgspec.msgpack.Decoder[_T]", data: bytes) -> _T:
    if len(data) > MAX_MESSAGE_BYTES:
        raise WireError(f"message of {len(data)} bytes refused; at most {MAX_MESSAGE_BYTES}")
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message of this protocol: {error}") from error
