"""The peer's side of a connection's beginning: knock, prove who one is, and see that the controller does too."""

import secrets
import time
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import aiohttp

from everstep.errors import WireError
from everstep.version import __version__
from everstep.wire.codec import MAX_FROM_CONTROLLER_BYTES, decode_from_controller, encode
from everstep.wire.credentials import RANDOM_BYTES, Credentials, is_same
from everstep.wire.messages import PROTOCOL, Challenge, FromController, Hello, Reject, Welcome

_HEARTBEAT_S = 5.0
"""WebSocket pings: a controller whose machine vanished is noticed within two of them."""


Socket: TypeAlias = "aiohttp.ClientWebSocketResponse[bool]"


class RejectedError(WireError):
    """The controller does not want this peer: another version, or another run. Trying again would not help."""


def connect(
    session: aiohttp.ClientSession, url: str, credentials: Credentials
) -> "AbstractAsyncContextManager[Socket]":
    """The connection, for `async with`. The other side's certificate must be the one of the credentials: names and
    authorities play no part, and a clock that is wrong does no harm."""
    pinned = aiohttp.Fingerprint(bytes.fromhex(credentials.fingerprint)) if credentials.fingerprint else True
    return session.ws_connect(
        url.replace("ws://", "wss://", 1) if credentials.fingerprint else url,
        headers={"Authorization": credentials.knock},
        heartbeat=_HEARTBEAT_S,
        max_msg_size=MAX_FROM_CONTROLLER_BYTES,
        ssl=pinned,
    )


async def introduce(socket: Socket, credentials: Credentials) -> Welcome:
    """Both sides prove themselves. Raises WireError, RejectedError."""
    challenge = await receive(socket)
    if not isinstance(challenge, Challenge):
        raise WireError(f"expected Challenge, got {type(challenge).__name__}")
    hello = answer(credentials, challenge, secrets.token_hex(RANDOM_BYTES))
    await socket.send_bytes(encode(hello))
    welcome = await receive(socket)
    if not isinstance(welcome, Welcome):
        raise WireError(f"expected Welcome, got {type(welcome).__name__}")
    if not is_same(welcome.proof, credentials.proof("welcome", hello.challenge, hello.nonce)):
        raise WireError("who answers there does not know this run's secret")
    return welcome


def answer(credentials: Credentials, challenge: Challenge, nonce: str) -> Hello:
    return Hello(
        protocol=PROTOCOL,
        everstep_version=__version__,
        run=credentials.run,
        role=credentials.role,
        name=credentials.name,
        challenge=challenge.challenge,
        nonce=nonce,
        proof=credentials.proof("hello", challenge.challenge, nonce),
        clock=time.time(),
    )


async def receive(socket: Socket) -> FromController:
    """The next message. Raises WireError, RejectedError."""
    message = await socket.receive()
    if message.type is not aiohttp.WSMsgType.BINARY:
        raise WireError(f"connection ended: {message.type.name} {socket.close_code or ''}")
    decoded = decode_from_controller(message.data)
    if isinstance(decoded, Reject):
        raise RejectedError(decoded.why)
    return decoded
