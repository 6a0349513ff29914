"""Messages between a host and the launcher that it joins, and how both prove that they know the join token.

    head -> host    Challenge: random bytes, new for each connection
    host -> head    Knock: random bytes of its own, a proof
    head -> host    Proven: a proof of its own, or Refused
    host -> head    Join; answered by Admitted, or Refused with a sentence
    then            head: StartNode, EndNode, Got, Ahead, Over      host: NodeEnded, Piece, Leaving, StopAsked, Bye
                    both: Ping

Everything goes over TLS 1.3. Both proofs cover the certificate of this very connection, so a man in the middle shows
another certificate and has proofs that fit neither side (docs/adr/0021). Frames are a length and msgpack; before both
sides are authenticated a frame has at most a few KiB. Pure but for the stream that is read.
"""

import asyncio
from typing import Literal, Protocol, TypeAlias, TypeVar

import msgspec

from everstep.errors import ConfigError, WireError
from everstep.wire.credentials import is_same, mac
from everstep.wire.heirs import FromHeir, ToHeir
from everstep.wire.survey import FromSurveyed, ToSurveyed

PROTOCOL = 5
"""Grows when an older side could misunderstand, or would end a connection over what the other one sends (traces: 4,
legacies with a token: 5)."""

MIN_TOKEN_CHARS = 16
MAX_STRANGER_BYTES = 4096
MAX_BYTES = 4 << 20
PIECE_BYTES = 256 << 10
"""Limit for a piece of a file, in one message."""

PING_S = 0.4
"""Interval between two signs of life, in both directions."""

_LENGTH_BYTES = 4


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag=True):
    pass


class Challenge(_Message, frozen=True, kw_only=True):
    nonce: str


class Knock(_Message, frozen=True, kw_only=True):
    protocol: int
    everstep_version: str
    nonce: str
    proof: str


class Proven(_Message, frozen=True, kw_only=True):
    proof: str


class Join(_Message, frozen=True, kw_only=True):
    """A host's description of itself: one that does not fit is refused before anything starts on it."""

    session: str  # the same for all connections of one process; a secret of that host and the controller's
    host: str  # its name
    address: str  # where other hosts reach it
    everstep_version: str
    torch_version: str
    node_rank: int | None = None
    num_hosts: int | None = None  # --nnodes there; None: not said
    nproc: int | None = None
    program: str = ""
    args: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()  # that live there: it was connected before
    scheduler_node: str = ""  # what the scheduler calls this host
    scheduler_job: str = ""
    journal: tuple[int, int] = (0, 0)  # that it keeps for a successor: epoch of its last byte, size


class Admitted(_Message, frozen=True, kw_only=True):
    run: str
    number: int  # of this host, in order of arrival; 0 is the head
    num_hosts: int
    spec: bytes  # spec.json
    port: int  # where agents find the controller, at the address of the endpoint
    has: dict[str, int] = {}  # file of this host: bytes up to which the head has it
    epoch: int = 1  # how many hosts have had the controller, this one included
    # under which hosts look for the run, on whichever host the controller is
    endpoints: tuple[tuple[str, int], ...] = ()


class Refused(_Message, frozen=True, kw_only=True):
    why: str
    exit_code: int = ConfigError.exit_code
    may_pass: bool = False  # only an earlier life of that host is in the way, which may not have been given up yet


class StartNode(_Message, frozen=True, kw_only=True):
    node: str
    credentials: bytes  # credentials.json


class EndNode(_Message, frozen=True, kw_only=True):
    node: str
    how: str  # "release" | "evict" | "fence" | "lose" | "freeze"
    seconds: float = 0.0
    given_up: str = ""  # why the host is to leave the run when its node has ended; empty: it stays


class NodeEnded(_Message, frozen=True, kw_only=True):
    node: str
    at: float
    reason: str
    exit_code: int | None = None
    signal: int | None = None


class Piece(_Message, frozen=True, kw_only=True):
    """A piece of a file of this host, which gets the same name below the head's run directory."""

    path: str
    at: int
    data: bytes
    is_whole: bool = False  # the last piece of a file that is of use only as a whole


class Got(_Message, frozen=True, kw_only=True):
    path: str
    upto: int


class Ahead(_Message, frozen=True, kw_only=True):
    """The modules that ranks import after their start, as the first host's nodes have learned them: for spares of other
    hosts."""

    data: bytes


class Leaving(_Message, frozen=True, kw_only=True):
    why: str


class StopAsked(_Message, frozen=True, kw_only=True):
    """The scheduler ends the job on all of its nodes, this one included: not this host leaves, the run is to stop."""

    why: str
    signal: int


class Over(_Message, frozen=True, kw_only=True):
    exit_code: int
    outcome: str
    why: str


class Bye(_Message, frozen=True, kw_only=True):
    """The host has ended its node and sent what it had."""


_WHILE = {"R": "it waits for a CPU or computes", "D": "it waits for a disk", "S": "it waits"}


class Late(msgspec.Struct, frozen=True):
    """An agent that lives and is late."""

    pid: int
    silent_s: float  # to its launcher, or: how long it was, until just now
    state: Literal["R", "D", "S"]
    cpu_wait_share: float | None = None  # of the machine's last ten seconds; None: not known

    @property
    def says(self) -> str:
        share = self.cpu_wait_share
        pressed = f"; others wait for a CPU {share:.0%} of the time there" if share is not None else ""
        return (
            f"its process {self.pid} lives, and said nothing to its own launcher for {self.silent_s:.1f} s either: "
            f"{_WHILE[self.state]}{pressed}"
        )


class Ping(_Message, frozen=True, kw_only=True):
    """A sign of life. `late`: a host's, of its node's agent, where that lives and comes to nothing."""

    late: Late | None = None


FromHost: TypeAlias = Knock | Join | NodeEnded | Piece | Leaving | StopAsked | Bye | Ping | FromHeir | FromSurveyed
FromHead: TypeAlias = (
    Challenge | Proven | Refused | Admitted | StartNode | EndNode | Got | Ahead | Over | Ping | ToHeir | ToSurveyed
)

T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
_from_host: msgspec.msgpack.Decoder[FromHost] = msgspec.msgpack.Decoder(FromHost)
_from_head: msgspec.msgpack.Decoder[FromHead] = msgspec.msgpack.Decoder(FromHead)


class Proofs(Protocol):
    """The means by which both sides prove themselves: a `JoinToken`, or something in its place."""

    @property
    def voter(self) -> str:
        """The host that the other side has proven to be, by its public session; "" where it is any that may join."""

    @property
    def is_of_job(self) -> bool:
        """Whether the other side has proven to be of the scheduler's job, and not only that it may join."""

    def of_kind(self, proof: str) -> "Proofs":
        """For this proof and for the answer to it, where a run takes more than one kind."""

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        """The proof of the host ("host") or of the launcher ("head")."""

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        """Whether the other side made it, for this connection."""


class JoinToken:
    """The secret that all hosts of a run share. It opens a place in the run, and nothing of a run that is over."""

    is_of_job = False

    def __init__(self, text: str) -> None:
        """Raises ConfigError."""
        token = text.strip()
        if len(token) < MIN_TOKEN_CHARS:
            raise ConfigError(f"the join token has {len(token)} characters; it needs at least {MIN_TOKEN_CHARS}")
        self._token = token

    def __repr__(self) -> str:
        return "JoinToken()"  # must not get into a log

    @property
    def voter(self) -> str:
        return ""

    def of_kind(self, proof: str) -> Proofs:
        return self

    def reveal(self) -> str:
        """For the environment of a host that is to join."""
        return self._token

    def proof(self, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> str:
        """The proof of the host ("host") or of the launcher ("head")."""
        return mac(self._token, "join", who, fingerprint, head_nonce, host_nonce)

    def is_right(self, proof: str, who: str, fingerprint: str, head_nonce: str, host_nonce: str) -> bool:
        return is_same(proof, self.proof(who, fingerprint, head_nonce, host_nonce))


def packed(message: FromHost | FromHead) -> bytes:
    data = _encoder.encode(message)
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


async def from_host(reader: asyncio.StreamReader, most: int = MAX_BYTES) -> FromHost:
    """The next message. Raises WireError, EOFError, OSError."""
    return _decoded(_from_host, await _frame(reader, most))


async def from_head(reader: asyncio.StreamReader, most: int = MAX_BYTES) -> FromHead:
    """The next message. Raises WireError, EOFError, OSError."""
    return _decoded(_from_head, await _frame(reader, most))


async def _frame(reader: asyncio.StreamReader, most: int) -> bytes:
    length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
    if length > most:
        raise WireError(f"a message of {length} bytes; at most {most} are read here")
    return await reader.readexactly(length)


def _decoded(decoder: "msgspec.msgpack.Decoder[T]", data: bytes) -> T:
    try:
        return decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise WireError(f"not a message of this protocol: {error}") from error
