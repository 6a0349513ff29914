"""Who may connect, and who may ask for what. It turns away and counts; it decides nothing about the run.

A connection that cannot knock never becomes a WebSocket. One that knocks has ten seconds and one small message to prove
who it is. See `wire/credentials.py` for what is proven, and docs/security.md.
"""

import asyncio
import ipaddress
import secrets
from collections import Counter
from typing import Protocol

from aiohttp import web

from everstep.errors import WireError
from everstep.version import __version__
from everstep.web import browsers
from everstep.wire.codec import decode_from_peer
from everstep.wire.credentials import RANDOM_BYTES, Credentials, RunSecret, is_same, parse_knock
from everstep.wire.messages import PROTOCOL, Challenge, Hello
from everstep.wire.strangers.rejections import Rejections

HELLO_TIMEOUT_S = 10.0
"""From the connection to Hello. Too short: a stopped machine's agent is turned away. Too long: idle sockets pile up."""

MAX_GREETINGS = 4
"""Greetings of one peer at a time. More do not come from that peer."""

MAX_HELLO_BYTES = 4096

REFUSAL_DELAY_S = 0.2
MAX_DELAYED = 64
"""Limit of delayed refusals. A client that guesses is answered slowly; beyond this many, at once."""


class Answering(Protocol):
    """The connection on which a request came."""

    def begin_answer(self) -> None: ...

    def end_answer(self) -> None: ...


class TurnedAwayError(Exception):
    """`kind` is the counter it goes to, the text is sent to the peer."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class Gate:
    def __init__(self, secret: RunSecret, *, run: str, fingerprint: str = "") -> None:
        self.rejections = Rejections()
        self._secret = secret
        self._run = run
        self._fingerprint = fingerprint  # of the certificate with which encrypted connections are made
        self._act = f"Bearer {secret.api_token('act')}"
        self._read = secret.api_token("read")
        self.answering: dict[asyncio.BaseTransport, Answering] = {}  # connections of the HTTP API
        self._greetings: Counter[str] = Counter()
        self._num_delayed = 0

    def may_read(self, request: web.Request) -> bool:
        """Whether the client has a token, or the cookie that it was given for one."""
        given = request.headers.get("Authorization", "")
        cookie = request.cookies.get(browsers.cookie_name(request), "")
        is_known = is_same(given, f"Bearer {self._read}") or is_same(given, self._act)
        return is_known or is_same(cookie, self._read) or self.has_link(request)

    def has_link(self, request: web.Request) -> bool:
        """It asks for the page with the link that was printed."""
        return request.path == "/" and is_same(request.query.get("token", ""), self._read)

    def admit_browser(self, request: web.Request, response: web.Response) -> None:
        browsers.admit(request, response, self._read)

    def may_act(self, request: web.Request) -> bool:
        return is_same(request.headers.get("Authorization", ""), self._act)

    async def note_stranger(self, why: str) -> None:
        """Count a client without a token. Returns when the refusal may be sent."""
        self.rejections.note("unauthenticated", why)
        if self._num_delayed >= MAX_DELAYED:
            return
        self._num_delayed += 1
        try:
            await asyncio.sleep(REFUSAL_DELAY_S)
        finally:
            self._num_delayed -= 1

    def knocked(self, header: str, *, is_encrypted: bool) -> Credentials | None:
        """The credentials of a peer whose Authorization header has the right knock; None: a stranger."""
        claim = parse_knock(header)
        if claim is None:
            return None
        role, name, machine = claim
        credentials = self._secret.credentials(role, name, self._fingerprint if is_encrypted else "", machine)
        return credentials if is_same(header, credentials.knock) else None

    def begin_greeting(self, peer: Credentials) -> Challenge:
        """Return the challenge that the peer has to answer; `end_greeting` follows in any case. Raises
        TurnedAwayError."""
        if self._greetings[peer.name] >= MAX_GREETINGS:
            raise TurnedAwayError("crowd", f"{MAX_GREETINGS} others call themselves {peer.name} at this moment")
        self._greetings[peer.name] += 1
        return Challenge(challenge=secrets.token_hex(RANDOM_BYTES))

    def end_greeting(self, peer: Credentials) -> None:
        self._greetings[peer.name] -= 1
        if not self._greetings[peer.name]:
            del self._greetings[peer.name]

    def check(self, hello: Hello, peer: Credentials, challenge: str) -> None:
        """Raises TurnedAwayError for one that is not who it says."""
        if hello.protocol != PROTOCOL:
            raise TurnedAwayError(
                "protocol",
                f"{peer.name} speaks protocol {hello.protocol} (everstep {hello.everstep_version[:40]}), this "
                f"controller {PROTOCOL} (everstep {__version__}): install the same everstep on both sides",
            )
        if hello.run != self._run:
            raise TurnedAwayError("wrong-run", f"{peer.name} belongs to run {hello.run!r}, this is {self._run!r}")
        if (hello.role, hello.name) != (peer.role, peer.name):
            why = f"{peer.role} {peer.name} says that it is {hello.role!r} {hello.name!r}"
            raise TurnedAwayError("wrong-role", why)
        if hello.challenge != challenge:
            raise TurnedAwayError("replayed", f"{peer.name} answers the challenge of another connection")
        if not is_same(hello.proof, peer.proof("hello", challenge, hello.nonce)):
            raise TurnedAwayError("unauthenticated", f"{peer.name} does not have the key of {peer.name}")


def parse_hello(data: bytes | bytearray, *, is_binary: bool) -> Hello:
    """A peer's first message. Raises TurnedAwayError."""
    if not is_binary:
        raise TurnedAwayError("garbage", "the first message must be Hello, in binary")
    if len(data) > MAX_HELLO_BYTES:
        raise TurnedAwayError("oversized", f"a Hello of {len(data)} bytes; at most {MAX_HELLO_BYTES}")
    try:
        hello = decode_from_peer(data)
    except WireError as error:
        raise TurnedAwayError("garbage", str(error)) from error
    if not isinstance(hello, Hello):
        raise TurnedAwayError("garbage", f"the first message must be Hello, not {type(hello).__name__}")
    return hello


def is_loopback(address: object) -> bool:
    """Whether a socket's own name, as (host, port, ...), is loopback."""
    if not isinstance(address, tuple) or not address:
        return False
    try:
        return ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    except ValueError:
        return False
