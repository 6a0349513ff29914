"""A joined host's part in electing the controller's host: it keeps the journal, votes, finds who was elected, or is
elected.

Made by `hosts.member`, which passes on frames of the first host, asks where the controller is when that host is gone,
and continues with `succeed` when this one is elected. Our own failure here costs the successor, not the run.
"""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from everstep.agent.streams.streams import Origin
from everstep.engines.children import Children
from everstep.engines.local import LocalEngine
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.errors import EverstepError, UnreachableError, WireError
from everstep.journal.runs import RunDir, make_known
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.asking import connect
from everstep.launcher.heirs.heir import Heir
from everstep.launcher.heirs.quorum import to_elect
from everstep.launcher.heirs.willing import refusal
from everstep.launcher.hosts.fleet import end_signal
from everstep.launcher.hosts.local_run import LocalRun
from everstep.launcher.output.terminal import Terminal
from everstep.launcher.reach.munge import MungeToken
from everstep.launcher.reach.reaching import SAID_AFTER_S, Connection, FindToken
from everstep.launcher.succession.taking_over import Here, take_over
from everstep.launcher.succession.waiting import AFTER_S, Waiting
from everstep.launcher.supervise import End
from everstep.wire.heirs import FromLeader, Voter
from everstep.wire.joining import JoinToken

FIND_S = 1.0
"""For one host to say whether it has the controller."""

_AGAIN_S = 0.05

log = logging.getLogger("everstep.launcher")


class Candidacy:
    """`elected`: the epoch for which this host takes over the controller. `moved`: the connected host has lost the
    controller."""

    def __init__(
        self,
        hosts: Hosts,
        session: str,
        find_token: FindToken,
        children: Children,
        keeper: MemoryKeeper,
        *,
        say: Callable[[str], None],
        moved: Callable[[], None],
        at_endpoint: socket.socket | None = None,
    ) -> None:
        """`at_endpoint`: listens at the run's endpoint, and answers from now on where the run is."""
        self._hosts, self._session, self._find_token = hosts, session, find_token
        self._children, self._keeper = children, keeper
        self._say, self._moved = say, moved
        self._at_endpoint = at_endpoint
        self.endpoints: tuple[tuple[str, int], ...] = ()  # under which hosts look for the run
        self._loop = asyncio.get_running_loop()
        self.elected: asyncio.Future[int] = self._loop.create_future()
        self.has_succeeded = False
        self._heir: Heir | None = None
        self._epoch = 1
        self._leader: Voter | None = None  # known to have taken over the controller
        self._has_leader = asyncio.Event()
        self._electing: asyncio.Task[None] | None = None
        self._waiting: Waiting | None = None
        self._is_warming = False
        self._refusal: str | None = None  # why this host takes no part; None: not asked yet
        self._is_over = False
        self._missed_at: float | None = None  # since when no host has said that it has the controller
        self._is_said = False  # ... to the person here
        self._tried: Counter[str] = Counter()  # hosts that were asked since then

    @property
    def journal(self) -> tuple[int, int]:
        """That is kept here: epoch of its last byte, size."""
        return self._heir.replica.age if self._heir is not None else (0, 0)

    @property
    def is_possible(self) -> bool:
        """Whether another host may take over the controller, so that it is looked for elsewhere as well."""
        return self._heir is not None and self._heir.may_succeed

    @property
    def misses_controller(self) -> bool:
        heir = self._heir
        return heir is not None and heir.may_succeed and heir.silent_s > 1.2 * heir.patience_s

    def follow(self, epoch: int, claimant: str) -> None:
        """Raises WireError for a host that is not followed, whatever it says that it has."""
        if self._heir is not None and not self._heir.follow(epoch, claimant):
            raise WireError(f"it has the controller of epoch {epoch}, as it says, and is not followed")
        self._epoch, self._missed_at, self._is_said = epoch, None, False
        self._tried.clear()

    def tell_agent(self, url: str) -> None:
        """Whose orders it takes."""
        if self._epoch > 1 or self._heir is not None:
            self._keeper.tell({"controller": {"epoch": self._epoch, "url": url}})

    async def take(self, message: FromLeader, connection: Connection, local: LocalRun) -> None:
        """From the host that is followed."""
        if self._heir is None and self._declines(local):
            return
        try:
            if self._heir is None:
                self._begin(connection.here, local)
            assert self._heir is not None
            await self._heir.take(message, connection.send)
            if self._heir.is_next and not self._is_warming:
                self._is_warming = True
                self._loop.call_later(AFTER_S, self._warm, local, connection.here)
        except (OSError, ValueError, EverstepError) as error:
            log.warning("the journal is not kept here: %s", error)

    def _declines(self, local: LocalRun) -> bool:
        if self._refusal is None:
            self._refusal = refusal(local.path)
            if self._refusal:
                log.info("the journal is not kept here: %s", self._refusal)
                if self._at_endpoint is not None:
                    self._at_endpoint.close()  # this host would not answer there
        return bool(self._refusal)

    async def find(self) -> Connection:
        """To a host that may have the controller by now; called again where it has not. Raises UnreachableError when
        none has it for too long."""
        assert self._heir is not None
        is_again = self._missed_at is not None
        while True:
            if is_again:
                self._check_patience()
                await asyncio.sleep(_AGAIN_S)
            else:
                self._missed_at = time.monotonic()
            found = await self._find_once(self._heir)
            if found is not None:
                return found
            is_again = True

    def _check_patience(self) -> None:
        """Raises UnreachableError when no host has had the controller for too long."""
        waited_s = time.monotonic() - self._missed_at if self._missed_at is not None else 0.0
        if waited_s > self._hosts.join_limit_s:
            raise UnreachableError(
                f"no host of the run had the controller for {waited_s:.0f} s; what ran on this host was ended"
            )
        if not self._is_said and waited_s > SAID_AFTER_S:
            self._is_said = True
            self._say(self._what_is_missing())

    def _what_is_missing(self) -> str:
        roster = self._heir.roster if self._heir is not None else None
        num = len(roster.voters) if roster is not None else 0
        return (
            f"no host with the controller is reached; a successor needs {to_elect(num)} of the {num} hosts that vote. "
            "If the network is split, the run continues on the side that has so many, or half and the controller; this "
            f"host joins it when it reaches that side, and ends after {self._hosts.join_limit_s:.0f} s"
        )

    async def succeed(
        self,
        local: LocalRun,
        address: str,
        engine: LocalEngine,
        terminal: Terminal,
        signals: tuple[int, ...],
        origin: Origin,
    ) -> End:
        """The rest of the run, as its first host. Raises EverstepError."""
        assert self._heir is not None
        assert self._heir.legacy is not None
        epoch, token = self.elected.result(), self._heir.token
        self._say(f"the controller's host is not heard of: this host continues with it (epoch {epoch})")
        self.has_succeeded = True
        here = Here(
            hosts=self._hosts,
            local=local,
            heir=self._heir,
            address=address,
            token=JoinToken(self._heir.legacy.join_token),  # what this host was given may be gone with the first one
            munge=token if isinstance(token, MungeToken) else None,
            children=self._children,
            keeper=self._keeper,
            engine=engine,
            terminal=terminal,
            signals=signals,
            origin=origin,
            waiting=self._waiting,
        )
        return await take_over(here, epoch)

    async def stop(self) -> None:
        """This host takes part in no election any more."""
        self._is_over = True
        if self._electing is not None:
            await cancel(self._electing)
        if self._waiting is not None and not self.has_succeeded:
            self._waiting.close()

    async def close(self) -> None:
        if self._heir is not None and not self.has_succeeded:
            await self._heir.close()

    def _begin(self, address: str, local: LocalRun) -> None:
        """Raises OSError, EverstepError."""
        self._heir = Heir(
            local.path,
            session=self._session,
            address=address,
            token=self._find_token(),
            silent_s=local.file.policy.node_silent_s,
            on_led=self._on_led,
            endpoints=self.endpoints,
            at_endpoint=self._at_endpoint,
            job=self._hosts.slurm.job if self._hosts.slurm is not None else "",
        )
        self._heir.begin(self._epoch)
        make_known(local.file.run, RunDir(local.path))
        self._electing = asyncio.create_task(self._elect(self._heir))
        self._keeper.tell({"controller": {"epoch": self._epoch}})

    async def _elect(self, heir: Heir) -> None:
        try:
            self.elected.set_result(await heir.wait_elected())
        except Exception:
            log.exception("this host does not vote any more")

    def _on_led(self, leader: Voter) -> None:
        """Note that another host took over the controller."""
        assert self._heir is not None
        self._leader = leader
        self._say(f"{leader.host} ({leader.address}) continues with the controller")
        self._keeper.tell({"controller": {"epoch": self._heir.voting.promised}})
        self._has_leader.set()
        self._moved()

    async def _find_once(self, heir: Heir) -> Connection | None:
        self._has_leader.clear()
        for voter in self._voters(heir):
            self._tried[voter.session] += 1
            finding = asyncio.create_task(connect(voter, heir.keys.towards(voter.session)))
            told = asyncio.create_task(self._has_leader.wait())
            await asyncio.wait([finding, told], timeout=FIND_S, return_when=asyncio.FIRST_COMPLETED)
            await cancel(told)
            if not finding.done():
                await cancel(finding)
            elif finding.exception() is None:
                return finding.result()
            if self._has_leader.is_set():
                break
        return None

    def _voters(self, heir: Heir) -> list[Voter]:
        """The known leader first, then those that were asked least: a host without the controller takes connections
        too."""
        everybody = heir.roster.voters if heir.roster is not None else ()
        voters = sorted(everybody, key=lambda each: self._tried[each.session])
        known = [self._leader] if self._leader is not None else []
        return [each for each in (*known, *voters) if each.session != heir.keys.own]

    def _warm(self, local: LocalRun, address: str) -> None:
        """A controller that is there when it is wanted. Without it, it is started then."""
        if self._is_over or self.elected.done():
            return
        try:
            self._waiting = Waiting(self._children, local.path, address, end_signal(self._hosts))
        except (OSError, EverstepError) as error:
            log.warning("no controller waits here: %s", error)


async def cancel(task: "asyncio.Task[Any]") -> None:
    """Wait for its end as well; what it raises is not wanted any more."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
