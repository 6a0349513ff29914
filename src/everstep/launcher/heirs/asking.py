"""One heir's questions to the others: each on a connection of its own, so that a silent one delays no other."""

import asyncio
import contextlib
from collections.abc import Sequence
from types import TracebackType

from everstep.errors import EverstepError, UnreachableError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.proving import Acquaintances
from everstep.launcher.heirs.voting import MOST_AHEAD
from everstep.launcher.reach.reaching import Connection, attempt
from everstep.wire.heirs import AskVote, AskWho, Lead, Vote, Voter
from everstep.wire.joining import Proofs

LIMIT_S = 1.0
"""For all answers to one question: a host that is there needs some milliseconds, a starved one some hundred."""

_FLUSH_S = 0.5


def at_door(voter: Voter) -> Hosts:
    return Hosts(num=1, host=voter.address, port=voter.port, said_by="the run's list of hosts")


async def connect(voter: Voter, proofs: Proofs | None) -> Connection:
    """`proofs`: None, where this host cannot prove to that one who it is. Raises EverstepError, OSError, EOFError."""
    if proofs is None:
        raise UnreachableError("no key of the pair is known here yet")
    return await attempt(at_door(voter), lambda: proofs)


class Ballot:
    """Each answer comes from the host that was asked: it has proven on that connection who it is."""

    def __init__(self, others: Sequence[Voter], acquaintances: Acquaintances) -> None:
        self._others, self._acquaintances = others, acquaintances
        self._connections: dict[str, Connection] = {}
        self._granted: set[str] = set()
        self.why = ""  # an objection from a voter
        self.promised = 0  # the newest epoch that any of them has promised to a host

    async def __aenter__(self) -> "Ballot":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(each.close() for each in self._connections.values()), return_exceptions=True)

    async def ask(self, ask: AskVote, wanted: int) -> int:
        """How many said yes; returns as soon as `wanted` did."""
        self._granted.clear()
        tasks = {asyncio.create_task(self._ask_one(voter, ask)) for voter in self._others}
        try:
            async with asyncio.timeout(LIMIT_S):
                while tasks and len(self._granted) < wanted:
                    _, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            pass
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return len(self._granted)

    def tell(self, lead: Lead) -> None:
        """Those who said yes."""
        for session in self._granted:
            self._connections[session].send(lead)

    async def flush(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FLUSH_S):
                while any(self._connections[session].num_unsent for session in self._granted):
                    await asyncio.sleep(0.005)

    async def _ask_one(self, voter: Voter, ask: AskVote) -> None:
        try:
            connection = self._connections.get(voter.session)
            if connection is None:
                if not ask.is_probe:
                    return
                proofs = self._acquaintances.towards(voter.session)
                connection = self._connections[voter.session] = await connect(voter, proofs)
            connection.send(ask)
            answer = await connection.receive()
        except asyncio.CancelledError:
            late = self._connections.pop(voter.session, None)  # its answer may come yet, and is to no other question
            if late is not None:
                late.abort()
            raise
        except (EverstepError, OSError, EOFError) as error:
            self.why = f"{voter.host}: {error or type(error).__name__}"
            return
        if isinstance(answer, Vote) and answer.epoch <= ask.epoch + MOST_AHEAD:
            self.promised = max(self.promised, answer.epoch)
        if isinstance(answer, Vote) and answer.is_granted and (ask.is_probe or answer.epoch == ask.epoch):
            self._granted.add(voter.session)
        elif isinstance(answer, Vote):
            self.why = f"{voter.host}: {answer.why}"


async def who(voters: Sequence[Voter], acquaintances: Acquaintances) -> int:
    """The newest epoch that any of them knows of; 0: no answer.

    Each answer comes from an authenticated host, because it may end a controller."""

    async def one(voter: Voter) -> int:
        async with asyncio.timeout(LIMIT_S):
            connection = await connect(voter, acquaintances.towards(voter.session))
            try:
                connection.send(AskWho())
                answer = await connection.receive()
            finally:
                await connection.close()
        return answer.epoch if isinstance(answer, Vote) else 0

    found = await asyncio.gather(*(one(each) for each in voters), return_exceptions=True)
    return max((each for each in found if isinstance(each, int)), default=0)
