"""Messages between hosts so that another one can take over the controller when its host is gone.

    the host of the controller -> heir    Legacy (what a successor needs), Introduction, JournalPart, Roster, Pulse
    heir -> the host of the controller    Ready, HasJournal, HasRoster, PulseHeard
    heir -> heir                          AskVote, Lead, AskWho; answered by Vote

All of it goes over the connections of `wire.joining`, so after both sides have proven that they know the join token.
That token identifies no host: heirs authenticate each other, each pair with a key of its own (`Introduction`). A
`session` here is the public name of a host's session; the session itself is known to that host and to the controller's.
The rules are in docs/adr/0025.
"""

import hashlib
from typing import TypeAlias

import msgspec


def public(session: str) -> str:
    """The name under which other hosts know a host's session."""
    return hashlib.sha256(b"everstep session " + session.encode()).hexdigest()


class HeirMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="m", tag=True):
    pass


class Voter(msgspec.Struct, frozen=True, kw_only=True):
    """A host that has the journal and a vote."""

    number: int  # in order of arrival, and of asking for votes
    session: str  # of its process: one that was started again is another voter
    host: str
    address: str
    port: int  # where its own door is


class Roster(HeirMessage, frozen=True, kw_only=True):
    """The hosts that vote. A newer roster has a higher (epoch, number)."""

    epoch: int
    number: int
    voters: tuple[Voter, ...]

    @property
    def age(self) -> tuple[int, int]:
        return self.epoch, self.number


class Introduction(HeirMessage, frozen=True, kw_only=True):
    """By session: the key that only that host, this one and the controller's know."""

    keys: dict[str, str]


class Legacy(HeirMessage, frozen=True, kw_only=True):
    """The values that a successor needs besides the journal; only hosts of this run get them."""

    secret: str  # the root of all keys of the run
    certificate: str  # PEM, of the controller
    key: str
    snapshots_certificate: str
    snapshots_key: str
    run_dir: str = ""  # in which the run was begun; the successor may see it
    join_token: str = ""  # of the run: hosts of a Slurm job may have joined without it
    scheduler_node: str = ""  # what the scheduler calls the controller's host
    scheduler_job: str = ""  # only hosts of this one succeed it


class JournalPart(HeirMessage, frozen=True, kw_only=True):
    """Bytes of the journal. What this epoch wrote itself begins at `begins_at`."""

    epoch: int
    begins_at: int
    at: int
    data: bytes


class Pulse(HeirMessage, frozen=True, kw_only=True):
    number: int
    session: str  # of the controller's host
    nodes: tuple[str, ...]  # that run there


class Ready(HeirMessage, frozen=True, kw_only=True):
    port: int  # of this host's own door


class HasJournal(HeirMessage, frozen=True, kw_only=True):
    epoch: int  # of the one who sent it
    upto: int


class HasRoster(HeirMessage, frozen=True, kw_only=True):
    epoch: int
    number: int


class PulseHeard(HeirMessage, frozen=True, kw_only=True):
    number: int


class AskVote(HeirMessage, frozen=True, kw_only=True):
    session: str
    epoch: int  # that is to begin
    roster: tuple[int, int]
    journal: tuple[int, int]  # epoch of its last byte, size
    is_probe: bool = True  # nothing is promised yet: finds objections before a real vote


class AskWho(HeirMessage, frozen=True, kw_only=True):
    """Sent by a controller's host that has not heard most others for a while, and by a host that would join."""


class Lead(HeirMessage, frozen=True, kw_only=True):
    """The votes were enough."""

    session: str
    epoch: int


HAS_CONTROLLER = "this host has the controller"
"""What `Vote.why` says to `AskWho` where that is so."""


class Vote(HeirMessage, frozen=True, kw_only=True):
    is_granted: bool
    epoch: int  # that this voter has promised, whatever it answers
    why: str = ""
    endpoints: tuple[tuple[str, int], ...] = ()  # of the run that it is in
    at: tuple[str, int] | None = None  # where it knows the controller to be, if that is elsewhere


FromHeir: TypeAlias = Ready | HasJournal | HasRoster | PulseHeard | AskVote | AskWho | Lead
FromLeader: TypeAlias = Legacy | Introduction | JournalPart | Roster | Pulse
ToHeir: TypeAlias = FromLeader | Vote
