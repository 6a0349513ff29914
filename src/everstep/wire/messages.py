"""The messages between the controller and its peers (agents, the launcher): one WebSocket, msgpack, tagged.

The controller opens with a Challenge, the peer answers with Hello and gets Welcome or Reject (`wire/credentials.py`
says what they prove to each other). Afterwards it sends Reports, which the controller acknowledges
once they are in the journal, or a Beat when it has nothing to say, and gets Commands. A report that was not
acknowledged is sent again after a reconnect and recognised by its number.
"""

from typing import TypeAlias

import msgspec

from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.spec import RunSpec

PROTOCOL = 2
"""Grows when an older peer could misunderstand; the two sides must have the same."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag=True):
    pass


class Challenge(_Message, frozen=True, kw_only=True):
    challenge: str  # hex, new for each connection


class Hello(_Message, frozen=True, kw_only=True):
    protocol: int
    everstep_version: str
    run: str
    role: str  # "agent" | "launcher"
    name: str  # node id, or "launcher-1"
    challenge: str = ""  # the one that it answers
    nonce: str = ""  # hex, what the controller is to prove itself with
    proof: str = ""
    clock: float | None = None  # seconds since the epoch, on the peer's clock, when it said this


class Welcome(_Message, frozen=True, kw_only=True):
    protocol: int
    spec: RunSpec
    last_source_seq: int  # newest report of this peer that is in the journal; send the ones after it again
    proof: str = ""


class Reject(_Message, frozen=True, kw_only=True):
    why: str


class Report(_Message, frozen=True, kw_only=True):
    source_seq: int  # 1, 2, ... per peer, for its whole life
    event: Event


class Beat(_Message, frozen=True, kw_only=True):
    """Peer: nothing to say, and alive. Sent when no report was for a while; not answered, not on record."""


class Ack(_Message, frozen=True, kw_only=True):
    source_seq: int


class Command(_Message, frozen=True, kw_only=True):
    id: str  # "<journal seq>.<index>": idempotence is by (run, generation, id)
    action: Action


FromPeer: TypeAlias = Hello | Report | Beat
FromController: TypeAlias = Challenge | Welcome | Reject | Ack | Command
