"""The controller's host: gives the journal to other hosts, and knows what enough of them have.

Nothing that the controller decides is carried out before half of the voters have it (`quorum`). It lives in the
launcher: the controller says over a socket how long its journal is, and hears up to where that counts. Besides it knows
when enough hosts last heard of this one: without that the ranks of this very host stand still (`agent/lease`).
"""

import asyncio
import logging
import os
import socket
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from everstep.engines.hosts.host import Host
from everstep.journal.beside import succession
from everstep.launcher.heirs.noting import note_succession
from everstep.launcher.heirs.proving import Acquaintances, pair_key
from everstep.launcher.heirs.quorum import MAX_VOTERS, reached_by, to_commit
from everstep.wire.heirs import (
    FromHeir,
    FromLeader,
    HasJournal,
    HasRoster,
    Introduction,
    JournalPart,
    Legacy,
    Pulse,
    PulseHeard,
    Ready,
    Roster,
    Voter,
    public,
)
from everstep.wire.joining import PIECE_BYTES, PING_S

LOOK_S = 0.1
WINDOW_BYTES = 4 << 20
"""Bytes of the journal on their way to one host."""

GONE_S = 10.0
"""A voter that is silent for so long, or cannot write what it is sent, loses its vote, if the others agree."""

ASK_S = 1.0
_PULSES = 64

log = logging.getLogger("everstep.launcher")


class _Heir:
    """One host that keeps the journal."""

    def __init__(self, host: Host, at: int) -> None:
        self.host = host
        self.sent, self.has = at, -1
        self._moved_at = time.monotonic()  # when it had all that was sent, or more than before
        self.roster = (0, 0)
        self.confirmed_at = float("-inf")  # when something was said to it that it has confirmed
        self.voter: Voter | None = None
        self.knows: set[str] = set()  # hosts that it was introduced to

    @property
    def is_gone(self) -> bool:
        return self.host.is_done or not self.host.is_heard_within(GONE_S) or self.is_stuck

    @property
    def is_stuck(self) -> bool:
        """It is heard of, and does not get on with what it was sent: its disk is full, or hangs."""
        return self.has < self.sent and time.monotonic() - self._moved_at > GONE_S

    def note_sent(self, upto: int) -> None:
        if self.has >= self.sent:
            self._moved_at = time.monotonic()
        self.sent = upto

    def note_has(self, upto: int) -> None:
        if upto > self.has:
            self._moved_at = time.monotonic()
        self.has = min(upto, self.sent)


class ControllerHost(Protocol):
    """The host that has the controller."""

    def nodes(self) -> tuple[str, ...]:
        """That run here."""

    def note_confirmed(self, at: float) -> None:
        """Enough hosts have heard of this one since then (time.monotonic)."""

    async def newest_epoch(self, roster: Roster) -> int:
        """That other voters know of."""

    def end(self, why: str) -> None:
        """This host must not continue the run."""

    def say(self, text: str) -> None:
        """To the person at the terminal."""


class Copying:
    """Replicates the journal to the other hosts.

    `own`: this host, of this `session`. `acquaintances`: to whom it can prove that. `endpoints`: under which hosts look
    for the run. `roster`: of the election, None for the first one. `begins_at`: bytes of the journal that an earlier
    controller wrote, in `earlier_epoch`."""

    def __init__(
        self,
        *,
        journal: Path,
        own: Voter,
        acquaintances: Acquaintances,
        session: str,
        endpoints: tuple[tuple[str, int], ...] = (),
        legacy: Legacy,
        epoch: int = 1,
        roster: Roster | None = None,
        begins_at: int = 0,
        earlier_epoch: int = 0,
        sockets: tuple[socket.socket, socket.socket] | None = None,
        patience_s: float,
        limit_s: float,
        host: ControllerHost,
    ) -> None:
        self.epoch, self.endpoints = epoch, endpoints
        self._path, self._own, self._legacy = journal, own, legacy
        self._acquaintances, self._session = acquaintances, session
        voters = roster.voters if roster is not None else (own,)
        self.roster = Roster(epoch=epoch, number=1, voters=voters)
        self._next: Roster | None = None  # not confirmed by its voters yet
        self._begins_at, self._earlier_epoch = begins_at, earlier_epoch
        self._patience_s, self._limit_s = patience_s, limit_s
        self._host = host
        self._heirs: dict[str, _Heir] = {}
        self._pulses: deque[tuple[int, float]] = deque(maxlen=_PULSES)
        self._num_pulses, self._pulsed_at = 0, float("-inf")
        self._size = begins_at  # of the journal, as the controller says
        self._safe = -1
        self._told_at = time.monotonic()
        self._was_alone = self._is_over = False
        self._noted_at = float("-inf")
        self._asked_at = float("-inf")
        pair = sockets or socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket, self.controllers_end = pair
        self._socket.setblocking(False)
        self._fd = -1
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: asyncio.Task[None] | None = None

    def start(self) -> None:
        asyncio.get_running_loop().add_reader(self._socket, self._hear_controller)
        self._tasks = [asyncio.create_task(self._watch())]

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket)
        tasks = [*self._tasks, *([self._asking] if self._asking is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        self.controllers_end.close()
        if self._fd >= 0:
            os.close(self._fd)

    def finish(self) -> None:
        """The run is over: that hosts are not heard of any more is as it should be."""
        self._is_over = True

    def joined(self, host: Host) -> None:
        """It is connected, perhaps again."""
        epoch, size = host.join.journal
        if epoch == self.epoch:
            at = size
        elif epoch == self._earlier_epoch and epoch:
            at = min(size, self._begins_at)
        else:
            at = 0
        self._heirs[public(host.join.session)] = heir = _Heir(host, at)
        self._acquaintances.meet(host.join.session)
        self._send(heir, self._legacy)
        self._introduce()
        self._send(heir, self._next or self.roster)

    def hear(self, host: Host, message: FromHeir) -> None:
        heir = self._heirs.get(public(host.join.session))
        if heir is None:
            return
        match message:
            case Ready(port=port):
                join = host.join
                heir.voter = Voter(
                    number=host.number, session=public(join.session), host=join.host, address=join.address, port=port
                )
                self._feed(heir, is_first=True)
            case HasJournal(epoch=epoch, upto=upto) if epoch == self.epoch:
                heir.note_has(upto)
                self._feed(heir)
                self._settle()
            case HasRoster(epoch=epoch, number=number):
                heir.roster = epoch, number
                self._settle_roster()
            case PulseHeard(number=number):
                heir.confirmed_at = max([heir.confirmed_at, *(at for pulse, at in self._pulses if pulse == number)])
                self._tell_confirmed()
            case _:
                pass

    def _introduce(self) -> None:
        """Voters prove to each other who they are, and every host to a voter that has the controller one day."""
        sessions = {name: heir.host.join.session for name, heir in self._heirs.items()}
        sessions[self._own.session] = self._session
        voters = {each.session for roster in self._rosters for each in roster.voters} & set(sessions)
        for name, heir in self._heirs.items():
            new = (set(sessions) if name in voters else voters) - heir.knows - {name}
            if new:
                heir.knows |= new
                own = heir.host.join.session
                self._send(heir, Introduction(keys={other: pair_key(own, sessions[other]) for other in new}))

    def _send(self, heir: _Heir, message: FromLeader) -> None:
        if heir.host.line is not None:
            heir.host.line.send(message)

    def _hear_controller(self) -> None:
        while True:
            try:
                data = self._socket.recv(64)
            except BlockingIOError:
                break
            if not data:
                return
            self._size = int(data)
        self._safe = -1  # the controller is notified
        for heir in self._heirs.values():
            if heir.voter is not None:
                self._feed(heir)
        self._settle()

    def _feed(self, heir: _Heir, *, is_first: bool = False) -> None:
        """Send the heir what it does not have yet, and, the first time, a message even if that is nothing."""
        try:
            if self._fd < 0:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            while is_first or (heir.sent < self._size and heir.sent - max(heir.has, 0) < WINDOW_BYTES):
                data = os.pread(self._fd, max(0, min(PIECE_BYTES, self._size - heir.sent)), heir.sent)
                part = JournalPart(epoch=self.epoch, begins_at=self._begins_at, at=heir.sent, data=data)
                heir.note_sent(heir.sent + len(data))
                self._send(heir, part)
                if is_first and not data:
                    return
                is_first = False
        except FileNotFoundError:
            return  # the controller has not begun
        except OSError as error:
            log.warning("the journal cannot be read for other hosts: %s", error)

    def _settle(self) -> None:
        """Report to the controller up to where its journal counts."""
        safe = int(max(-1, min(self._agreed(roster) for roster in self._rosters)))
        if safe > self._safe:
            self._safe = safe
            try:
                self._socket.send(str(safe).encode())
            except OSError as error:
                log.warning("what counts is not said to the controller: %s", error)
                self._safe = -1

    @property
    def is_confirmed(self) -> bool:
        """Whether enough hosts have heard of this one lately, so that no other host has the controller."""
        return time.monotonic() - self._confirmed_at() <= self._patience_s

    def _confirmed_at(self) -> float:
        return max(min(self._confirmed(roster) for roster in self._rosters), self._told_at)

    @property
    def _rosters(self) -> list[Roster]:
        return [self.roster, *([self._next] if self._next is not None else [])]

    def _agreed(self, roster: Roster) -> float:
        return reached_by(self._of(roster, self._size, lambda heir: heir.has), to_commit(len(roster.voters)))

    def _confirmed(self, roster: Roster) -> float:
        now = time.monotonic()
        return reached_by(self._of(roster, now, lambda heir: heir.confirmed_at), to_commit(len(roster.voters)))

    def _of(self, roster: Roster, own: float, what: Callable[[_Heir], float]) -> list[float]:
        voters = {each.session for each in roster.voters}
        found = [what(heir) for session, heir in self._heirs.items() if session in voters]
        return [*found, *([own] if self._own.session in voters else [])]

    def _settle_roster(self) -> None:
        if self._next is None:
            return
        for roster in self._rosters:
            told = self._of(roster, 1.0, lambda heir: float(heir.roster >= self._next.age if self._next else False))
            if sum(told) < to_commit(len(roster.voters)):
                return
        self.roster, self._next = self._next, None
        self._note(time.monotonic())
        log.info("the journal is kept by %s", ", ".join(each.host for each in self.roster.voters))
        self._settle()

    def _note(self, now: float) -> None:
        """Note the voters on disk. If this host is lost now and comes back, it must know whom to ask: also hosts that
        have just been, or are about to be, made voters, and former ones that still vote."""
        self._noted_at = now
        largest = max(self._rosters, key=lambda each: len(each.voters))
        note_succession(self._path.parent, largest, self._own.session, self.endpoints)

    def _change_roster(self) -> None:
        """By one host at a time, and only after this epoch has counted for something."""
        if self._next is not None or (self._begins_at and self._safe <= self._begins_at):
            return
        voters = {each.session: each for each in self.roster.voters}
        gone = next(
            (s for s in voters if s != self._own.session and (s not in self._heirs or self._heirs[s].is_gone)), ""
        )
        new = next((heir.voter for s, heir in self._heirs.items() if s not in voters and self._is_fit(heir)), None)
        if gone and not (gone not in self._heirs and time.monotonic() - self._told_at < GONE_S):
            del voters[gone]
        elif new is not None and len(voters) < MAX_VOTERS:
            voters[new.session] = new
        else:
            return
        ordered = tuple(sorted(voters.values(), key=lambda each: each.number))
        self._next = Roster(epoch=self.epoch, number=self.roster.number + 1, voters=ordered)
        self._note(time.monotonic())
        self._introduce()
        for heir in self._heirs.values():
            self._send(heir, self._next)
        self._settle_roster()

    def _is_fit(self, heir: _Heir) -> bool:
        return heir.voter is not None and not heir.is_gone and heir.has >= max(0, self._size - WINDOW_BYTES)

    def _tell_confirmed(self) -> None:
        self._host.note_confirmed(min(self._confirmed(roster) for roster in self._rosters))

    async def _watch(self) -> None:
        while True:
            try:
                self._look(time.monotonic())
            except Exception:
                log.exception("the journal's copies are not looked after")
            await asyncio.sleep(LOOK_S)

    def _look(self, now: float) -> None:
        if now - self._pulsed_at >= PING_S:
            self._pulsed_at = now
            self._num_pulses += 1
            self._pulses.append((self._num_pulses, now))
            for heir in self._heirs.values():
                self._send(heir, Pulse(number=self._num_pulses, session=self._own.session, nodes=self._host.nodes()))
        self._change_roster()
        if now - self._noted_at >= succession.WRITE_S:
            self._note(now)
        confirmed_at = min(self._confirmed(roster) for roster in self._rosters)
        self._host.note_confirmed(confirmed_at)
        self._mind_others(now, now - max(confirmed_at, self._told_at))

    def _mind_others(self, now: float, alone_s: float) -> None:
        """Too few hosts are heard of: they may have another controller by now."""
        if self._is_over:
            return
        is_alone = alone_s > self._patience_s
        if is_alone and not self._was_alone:
            num = to_commit(len(self.roster.voters))
            self._host.say(
                f"fewer than {num} of the {len(self.roster.voters)} hosts that keep the journal are heard of: nothing "
                "is decided here until they are, and ranks of this host stand still when its lease is over, because "
                f"they may have another controller; this host ends after {self._limit_s:.0f} s"
            )
        elif self._was_alone and not is_alone:
            self._host.say("enough hosts are heard of again")
        self._was_alone = is_alone
        if alone_s > self._limit_s:
            self._host.end(f"too few hosts were heard of for {alone_s:.0f} s")
        if is_alone and now - self._asked_at >= ASK_S and (self._asking is None or self._asking.done()):
            self._asked_at = now
            self._asking = asyncio.create_task(self._ask())

    async def _ask(self) -> None:
        epoch = await self._host.newest_epoch(self.roster)
        if epoch > self.epoch:
            self._host.end(
                f"another host has the controller since this one was not heard of (epoch {epoch}, here {self.epoch})"
            )
