"""A host that joined keeps the journal, votes, and asks for votes when the controller's host is not heard of any more.

Called by `hosts.member` with what comes from the host that it follows. It acts on nothing: the result of an election
goes to `hosts.member`, which continues from there.
"""

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from everstep.engines.hosts.door import Door, Line
from everstep.engines.network import Address
from everstep.errors import EverstepError, WireError
from everstep.journal.beside.succession import WRITE_S
from everstep.launcher.heirs.asking import Ballot
from everstep.launcher.heirs.noting import note_succession
from everstep.launcher.heirs.proving import Acquaintances
from everstep.launcher.heirs.quorum import to_elect
from everstep.launcher.heirs.replica import Replica
from everstep.launcher.heirs.voting import AGREED_AFTER, STEP_AFTER, Voting
from everstep.launcher.reach.munge import Either, MungeToken
from everstep.linux.files import write_whole
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME
from everstep.wire.heirs import (
    HAS_CONTROLLER,
    AskVote,
    AskWho,
    FromHeir,
    FromLeader,
    HasJournal,
    HasRoster,
    Introduction,
    JournalPart,
    Lead,
    Legacy,
    Pulse,
    PulseHeard,
    Ready,
    Roster,
    Vote,
    Voter,
)
from everstep.wire.joining import Join, JoinToken, Proofs

LOOK_S = 0.05
AGAIN_S = 0.5

log = logging.getLogger("everstep.launcher")


class Heir:
    """`on_led`: this host has a vote in an election that another one has won, and follows it from now on."""

    def __init__(
        self,
        folder: Path,
        *,
        session: str,
        address: str,
        token: Proofs,
        silent_s: float,
        on_led: Callable[[Voter], None],
        endpoints: tuple[tuple[str, int], ...] = (),
        at_endpoint: socket.socket | None = None,
        job: str = "",
    ) -> None:
        """`endpoints`: under which hosts look for the run. `at_endpoint`: listens at one of them, because this host was
        the first one before. `job`: the scheduler's, of which this host is. Raises OSError."""
        self._job = job
        self.folder = folder
        self.session = session
        self.keys = Acquaintances(session, {})
        self.endpoints, self._at_endpoint = endpoints, at_endpoint
        self.voting = Voting()
        self.replica = Replica(folder)
        self._parts: deque[JournalPart] = deque()  # that could not be written yet; the sender waits after 4 MiB
        self._is_stuck = False
        self.legacy: Legacy | None = None
        self.nodes: tuple[str, ...] = ()  # of the controller's host
        self.door: Door | None = None
        self.port = 0
        self._address, self.token = address, token
        self._silent_s = silent_s
        self._on_led = on_led
        self._heard_at = time.monotonic()
        self._asked_at = float("-inf")
        self._is_elected = False
        self._promised_elsewhere = 0  # an epoch, to a host that others may not vote for: a later one is free
        self._noted_at = float("-inf")

    @property
    def roster(self) -> Roster | None:
        return self.voting.roster

    @property
    def patience_s(self) -> float:
        return AGREED_AFTER * self._silent_s

    @property
    def silent_s(self) -> float:
        return time.monotonic() - self._heard_at

    @property
    def may_succeed(self) -> bool:
        """A successor is possible at all: the others are more than half without the controller's host."""
        roster = self.voting.roster
        return roster is not None and len(roster.voters) - 1 >= to_elect(len(roster.voters))

    @property
    def is_next(self) -> bool:
        """Whether this host is the first to ask for votes."""
        return self.may_succeed and self.voting.place_of(self.keys.own) <= 1

    def begin(self, epoch: int) -> None:
        """With the host whose run this one has just joined."""
        self.voting.begin(epoch)
        self._parts.clear()
        self._heard_at = time.monotonic()

    def follow(self, epoch: int, claimant: str) -> bool:
        """Another host, or the same one again; before anything of it is taken. `claimant`: who it has proven to be."""
        if self._is_elected or not self.voting.follow(epoch, claimant):
            return False
        self._parts.clear()
        self._heard_at = time.monotonic()
        return True

    async def take(self, message: FromLeader, send: Callable[[FromHeir], None]) -> None:
        """From the host that is followed. Raises OSError, ValueError, EverstepError."""
        match message:
            case JournalPart() | Roster() if not self.voting.counts:
                pass  # this host has promised itself to another one
            case Introduction(keys=keys):
                self.keys.update(keys)
            case Legacy():
                await self._open(message)
                if message.scheduler_job == self._job:  # a host of another job may lose it, and be no node of the run's
                    send(Ready(port=self.port))
            case JournalPart():
                self._parts.append(message)
                self._keep(send)
            case Roster():
                if self.voting.roster is None or message.age >= self.voting.roster.age:
                    self.voting.roster = message
                    self._noted_at = float("-inf")
                send(HasRoster(epoch=message.epoch, number=message.number))
            case Pulse(number=number, nodes=nodes):
                self._heard_at, self.nodes = time.monotonic(), nodes
                self.voting.leader = self.voting.leader or message.session
                if self.voting.roster is not None and self._heard_at - self._noted_at >= WRITE_S:
                    self._noted_at = self._heard_at
                    note_succession(self.folder, self.voting.roster, message.session, self.endpoints)
                if self.voting.counts:  # else nothing is confirmed, also nothing that waited for the disk
                    self._keep(send)
                    send(PulseHeard(number=number))

    def _keep(self, send: Callable[[FromHeir], None]) -> None:
        """Write what came. What cannot be written is tried again: a disk that is full may have room later."""
        while self._parts:
            try:
                upto = self.replica.take(self._parts[0])
            except OSError as error:
                if not self._is_stuck:
                    log.warning("the journal cannot be kept here now: %s", error)
                self._is_stuck = True
                return
            except ValueError:
                self._parts.popleft()
                raise
            self._is_stuck = False
            send(HasJournal(epoch=self._parts.popleft().epoch, upto=upto))

    async def close(self) -> None:
        self.replica.close()
        if self.door is not None:
            await self.door.close()

    async def _open(self, legacy: Legacy) -> None:
        self.legacy = legacy
        if self.door is not None:
            return
        certificate, key = self.folder / CERTIFICATE_NAME, self.folder / KEY_NAME
        write_whole(certificate, legacy.certificate.encode(), mode=0o600)
        write_whole(key, legacy.key.encode(), mode=0o600)
        sock = Address(self._address).listen()
        self.port = sock.getsockname()[1]
        token = self.token
        if legacy.join_token and isinstance(token, MungeToken):
            token = Either(JoinToken(legacy.join_token), token)
        self.door = Door(sock, certificate, key, self.keys.at_door(token), self._turn_away, on_question=self.answer)
        await self.door.open()
        if self._at_endpoint is not None:
            self.door.also_at(self._at_endpoint)

    async def _turn_away(self, join: Join, line: Line) -> None:
        line.send(self._where())

    async def answer(self, first: FromHeir, line: Line) -> None:
        """Another host asks. Raises WireError, OSError."""
        question: object = first
        while True:
            match question:
                case AskVote():
                    line.send(self._vote(question, line.voter))
                case AskWho():
                    line.send(self._where())
                case Lead(session=session, epoch=epoch):
                    self._led(session, epoch, line.voter)
                    return
                case _:
                    raise WireError("not a question of an heir")
            try:
                question = await line.receive()
            except EOFError:  # it knows what it wanted to know
                return

    def _where(self) -> Vote:
        """Here, if this host was elected and hosts can join here by now; else where it was heard of last."""
        is_here = self.door is not None and self.door.welcome != self._turn_away
        voters = self.voting.roster.voters if self.voting.roster is not None else ()
        leader = next((each for each in voters if each.session == self.voting.leader), None)
        is_known = leader is not None and self.voting.counts and not is_here and self.silent_s < self.patience_s
        return Vote(
            is_granted=False,
            epoch=self.voting.promised,
            why=HAS_CONTROLLER if is_here else "the controller is not here",
            endpoints=self.endpoints,
            at=(leader.address, leader.port) if leader is not None and is_known else None,
        )

    def _vote(self, ask: AskVote, asker: str) -> Vote:
        why = HAS_CONTROLLER if self._is_elected else ""
        why = why or self._objection(ask, asker)
        if not why and not ask.is_probe:
            self.voting.promise(ask)
            log.info("promised epoch %d to another host", ask.epoch)
        return Vote(is_granted=not why, epoch=self.voting.promised, why=why)

    def _objection(self, ask: AskVote, asker: str) -> str:
        return self.voting.objection(
            ask, asker, journal=self.replica.age, silent_s=self.silent_s, patience_s=self.patience_s
        )

    def _led(self, session: str, epoch: int, asker: str) -> None:
        roster = self.voting.roster
        leader = next((each for each in roster.voters if each.session == session), None) if roster else None
        if leader is None or self._is_elected or not self.voting.may_lead(session, epoch, asker):
            return
        self._heard_at = time.monotonic()
        self._on_led(leader)

    async def wait_elected(self) -> int:
        """Wait until this host is to take over the controller; returns the new epoch. It asks for no votes before it is
        time."""
        while True:
            await asyncio.sleep(LOOK_S)
            roster = self.voting.roster
            if roster is None or not self.may_succeed or self.legacy is None:
                continue
            patience_s = self.patience_s + STEP_AFTER * self._silent_s * max(0, self.voting.place_of(self.keys.own) - 1)
            if self.silent_s < patience_s or time.monotonic() - self._asked_at < AGAIN_S:
                continue
            self._asked_at = time.monotonic()
            try:
                epoch = await self._stand(roster)
            except (EverstepError, OSError) as error:
                log.warning("no successor was elected: %s", error)
                continue
            if epoch:
                return epoch

    async def _stand(self, roster: Roster) -> int:
        """The epoch that this host was elected for; 0: it was not."""
        epoch = max(self.voting.promised, self.voting.epoch, self._promised_elsewhere) + 1
        ask = AskVote(session=self.keys.own, epoch=epoch, roster=roster.age, journal=self.replica.age)
        others = self._others(roster)
        wanted = to_elect(len(roster.voters)) - 1
        async with Ballot(others, self.keys) as ballot:
            granted = await ballot.ask(ask, wanted)
            self._promised_elsewhere = max(self._promised_elsewhere, ballot.promised)
            if granted < wanted:
                log.info(
                    "%d of %d other hosts would agree, %d are needed: %s", granted, len(others), wanted, ballot.why
                )
                return 0
            if self._objection(ask, self.keys.own):
                return 0
            real = msgspec.structs.replace(ask, is_probe=False)
            self.voting.promise(real)
            if await ballot.ask(real, wanted) < wanted:
                return 0
            self._is_elected = True
            ballot.tell(Lead(session=self.keys.own, epoch=epoch))
            await ballot.flush()
        log.info("elected for epoch %d by %d of %d", epoch, wanted + 1, len(roster.voters))
        return epoch

    def _others(self, roster: Roster) -> list[Voter]:
        return [each for each in roster.voters if each.session != self.keys.own]
