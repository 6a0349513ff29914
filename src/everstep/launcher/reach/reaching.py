"""From the endpoint to a connection on which both sides have proven that they know the token.

A name that is not known, or a host that does not answer at all, is reported within ten seconds and ends this host. A
port that refuses connections is waited for: people start hosts one after the other.
"""

import asyncio
import contextlib
import hashlib
import secrets
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from everstep.engines.hosts.door import keep_alive
from everstep.errors import ConfigError, UnreachableError, WireError
from everstep.launcher.arguments.hosts import Hosts, shown
from everstep.launcher.reach.place import addresses
from everstep.version import __version__
from everstep.wire.credentials import RANDOM_BYTES
from everstep.wire.joining import (
    MAX_STRANGER_BYTES,
    PROTOCOL,
    Challenge,
    FromHead,
    FromHost,
    Knock,
    Proofs,
    Proven,
    Refused,
    from_head,
    packed,
)

CONNECT_S = 3.0
SILENT_S = 6.0
"""A host that has not even refused a connection by then is not there. With one last attempt a person knows within ten
seconds."""

SAID_AFTER_S = 2.0
PAUSE_S = 0.2
EARLIER_LIFE_S, EARLIER_LIFE_PAUSE_S = 10.0, 0.5
"""The first host gives up one that is silent after two seconds."""

GREETING_S = 6.0
"""Something may accept, and even speak TLS, and have no run behind it: a proxy."""


class RefusedError(UnreachableError):
    """The first host does not want this one; the message is its own."""

    def __init__(self, why: str, exit_code: int, *, may_pass: bool = False) -> None:
        """The refusal never ends this host with success: the sender may be unauthenticated. `may_pass`: ask again
        soon."""
        super().__init__(why)
        self.may_pass = may_pass
        self.exit_code = exit_code if 0 < exit_code < 256 else ConfigError.exit_code


class NotListeningError(UnreachableError):
    """The machine answers, and has no run at the endpoint."""


class FindToken(Protocol):
    def __call__(self) -> Proofs:
        """Raises ConfigError when there is none."""


class Connection:
    """To another host, which has proven that it knows what this one knows. `voter`: which host it has proven to be."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.voter = ""
        self.at = ""  # the place that was asked for
        self.here = str(writer.get_extra_info("sockname")[0])
        self.there = str(writer.get_extra_info("peername")[0])

    def send(self, message: FromHost) -> None:
        """Never waits, raises nothing."""
        if not self._writer.is_closing():
            self._writer.write(packed(message))

    @property
    def num_unsent(self) -> int:
        return self._writer.transport.get_write_buffer_size()

    async def receive(self) -> FromHead:
        """Raises WireError, EOFError, OSError, RefusedError."""
        message = await from_head(self._reader)
        if isinstance(message, Refused):
            raise RefusedError(message.why, message.exit_code, may_pass=message.may_pass)
        return message

    def abort(self) -> None:
        """Abort the connection; a pending receive fails."""
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(2.0):
                await self._writer.wait_closed()


class EarlierLife:
    """An earlier life of this host, which the run may still count as there: nothing has ended its connection."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._ends_at: float | None = None

    async def wait(self, refused: RefusedError) -> None:
        """Wait until it may ask again. Raises the refusal if asking again is useless, or after `EARLIER_LIFE_S`."""
        if not refused.may_pass:
            raise refused
        if self._ends_at is None:
            self._ends_at = time.monotonic() + EARLIER_LIFE_S
            self._say(
                f"the run still counts an earlier start of this host as there; asking again for {EARLIER_LIFE_S:.0f} s "
                f"at most: {refused}"
            )
        if time.monotonic() >= self._ends_at:
            raise refused
        await asyncio.sleep(EARLIER_LIFE_PAUSE_S)


async def reach(
    hosts: Hosts, find_token: FindToken, say: Callable[[str], None], once: "Once | None" = None
) -> Connection:
    """`once`: where one attempt is more than a connection to the endpoint. Raises UnreachableError, RefusedError,
    ConfigError (no token)."""
    began, failure = time.monotonic(), Failure("no answer yet", SILENT_S)

    def tell() -> None:
        say(f"waiting for {_where(hosts)}: {failure.why}; at most {failure.limit_s:.0f} s")

    telling = asyncio.get_running_loop().call_later(SAID_AFTER_S, tell)
    try:
        while True:
            try:
                return await (once or attempt)(hosts, find_token)
            except (OSError, TimeoutError, EOFError, WireError, FailureError) as error:
                failure = failure_of(error, hosts)
            waited_s = time.monotonic() - began
            if waited_s + PAUSE_S >= failure.limit_s:
                raise failure.kind(
                    f"cannot join the run at {_where(hosts)}: {failure.why}; tried for {waited_s:.0f} s. Nothing was "
                    f"started. {_what_to_do(hosts)} ({hosts.said_by})"
                )
            await asyncio.sleep(PAUSE_S)
    finally:
        telling.cancel()


async def attempt(hosts: Hosts, find_token: FindToken) -> Connection:
    """Once. Raises OSError, TimeoutError, EOFError, WireError, RefusedError, ConfigError (no token)."""
    reader, writer = await _connect(hosts)
    return await _greet(reader, writer, find_token(), hosts)


Once = Callable[[Hosts, FindToken], Awaitable[Connection]]


class Failure(NamedTuple):
    """The failure of one attempt: why, and for how long it is worth trying."""

    why: str
    limit_s: float
    kind: type[UnreachableError] = UnreachableError


class FailureError(Exception):
    """The failure of an attempt at several places."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.why)
        self.failure = failure


def failure_of(error: BaseException, hosts: Hosts) -> Failure:
    if isinstance(error, FailureError):
        return error.failure
    if isinstance(error, ConnectionRefusedError):
        return Failure("nothing listens there", hosts.reach_limit_s, NotListeningError)
    if isinstance(error, TimeoutError):
        return Failure("no answer", SILENT_S)
    if isinstance(error, EOFError):
        return Failure("the connection was closed at once", SILENT_S)
    why = getattr(error, "strerror", None) or str(error)
    if isinstance(error, ssl.SSLError | WireError):
        return Failure(f"what listens there is not a run of everstep ({why})", SILENT_S)
    return Failure(why, SILENT_S)


def _what_to_do(hosts: Hosts) -> str:
    ask = "Is `everstep run` started on that host, and is the port open?"
    if hosts.said_by not in ("--rdzv-endpoint", "--join"):
        return ask
    others = ",".join(shown(*each) for each in hosts.others)
    return (
        f"{ask} If the run continues without that host, name others that are in it: {hosts.said_by} "
        f"{hosts.endpoint},{others or 'HOST'}{',...' if others else ''}; `everstep status` on one of them says which"
    )


def _where(hosts: Hosts) -> str:
    return f"{hosts.endpoint} ({', '.join(addresses(hosts.host)) or 'a name that is not known here'})"


async def _connect(hosts: Hosts) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Whose certificate it is, the proofs say: they cover it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    async with asyncio.timeout(CONNECT_S):
        return await asyncio.open_connection(hosts.host, hosts.port, ssl=context)


async def _greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: Proofs, hosts: Hosts) -> Connection:
    connection = Connection(reader, writer)
    try:
        async with asyncio.timeout(GREETING_S):
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            fingerprint = hashlib.sha256(certificate or b"").hexdigest()
            challenge = await from_head(reader, MAX_STRANGER_BYTES)
            if not isinstance(challenge, Challenge):
                raise WireError("no challenge")
            nonce = secrets.token_hex(RANDOM_BYTES)
            proof = token.proof("host", fingerprint, challenge.nonce, nonce)
            connection.send(Knock(protocol=PROTOCOL, everstep_version=__version__, nonce=nonce, proof=proof))
            answer = await from_head(reader, MAX_STRANGER_BYTES)
            if isinstance(answer, Refused):
                raise RefusedError(f"the run at {hosts.endpoint} refuses this host: {answer.why}", answer.exit_code)
            proven = isinstance(answer, Proven) and token.is_right(
                answer.proof, "head", fingerprint, challenge.nonce, nonce
            )
            if not proven:
                raise RefusedError(f"who answers at {hosts.endpoint} does not know the join token", 3)
        connection.voter, connection.at = token.voter, hosts.endpoint
        sock = writer.get_extra_info("socket")
        with contextlib.suppress(OSError):
            keep_alive(sock)
        return connection
    except BaseException:
        writer.transport.abort()
        raise
