"""Where a joining host looks for the run: at the endpoint, where its user says that the run may be, and where this
machine remembers that its hosts were. All are asked at once which host has the controller, and their answers lead to
it.

Without this, a host that knows only the endpoint of a lost host would find nothing. Called by `hosts.member` and, for a
first host that is started again, by `returning`.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import ConfigError, EverstepError, UnreachableError, WireError
from everstep.journal.beside import succession
from everstep.journal.runs import home
from everstep.launcher.arguments.hosts import Hosts, shown
from everstep.launcher.reach.place import addresses
from everstep.launcher.reach.reaching import (
    SILENT_S,
    Connection,
    Failure,
    FailureError,
    FindToken,
    RefusedError,
    attempt,
    failure_of,
)
from everstep.wire.heirs import HAS_CONTROLLER, AskWho, Vote

Place = tuple[str, int]

ANSWER_S = 6.0
BETTER_S = 0.3
"""A host that has the controller was found; another one may have it in a newer epoch, and this one not know it yet."""

ELECTION_S = 30.0
"""Hosts that are there have a controller by then, or cannot have one."""

_MAX_PLACES = 64


class Noted:
    """This machine's record of the newest run at an endpoint."""

    def __init__(self, found: succession.Succession, folder: Path, endpoints: frozenset[Place]) -> None:
        self.endpoints = endpoints
        self.run = folder.resolve().name
        self.may_be_succeeded = found.may_be_succeeded
        self.doors = tuple(door for door in found.doors if door not in endpoints)

    @classmethod
    def of(cls, hosts: Hosts, run_dir: str, own: Sequence[Place] = ()) -> "Noted | None":
        """`own`: where this host listens at the endpoint. Reads files, and asks for the endpoint's addresses."""
        folders = [Path(run_dir).expanduser()] if run_dir else []
        with contextlib.suppress(ConfigError, OSError):
            for kind in ("runs", "hosts"):
                folders += [path.parent for path in (home() / kind).glob(f"*/{succession.NAME}")]
        known = [(found, folder) for folder in folders if (found := succession.known(folder)) is not None]
        if not known:
            return None
        endpoints = frozenset({(hosts.host, hosts.port), *((each, hosts.port) for each in addresses(hosts.host)), *own})
        mine = [each for each in known if _is_of(each[0], endpoints)]
        return cls(*max(mine, key=lambda each: each[0].at), endpoints) if mine else None


def _is_of(found: succession.Succession, endpoints: frozenset[Place]) -> bool:
    """A home directory may be shared, and a loopback address is another place on each host."""
    common = endpoints & {*found.doors, *found.endpoints}
    return any(found.here == socket.gethostname() or not _is_loopback(host) for host, _ in common)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


class Search:
    """`noted`: where hosts of a run at this endpoint were. A host found there counts only if it reports one of
    that run's endpoints."""

    def __init__(self, noted: Noted | None = None) -> None:
        self._noted = dict.fromkeys(noted.doors if noted is not None else ())
        self._endpoints = noted.endpoints if noted is not None else frozenset()
        self._named: dict[Place, None] = {}  # by a host that was asked
        self.there: list[str] = []  # who answered in the last round, and knows of no controller
        self.is_unclear = False
        """In the last round a place could not be reached, which says less than that nothing listens there."""

    async def connect(self, hosts: Hosts, find_token: FindToken) -> Connection:
        """To the host that has the controller. Raises what `attempt` does, and FailureError for all places together."""
        given = ((hosts.host, hosts.port), *hosts.others)
        votes, errors = await self._ask_everybody(hosts, given, find_token)
        found = _leader(votes)
        if found is None:
            raise _failure(hosts, given, votes, errors)
        return await attempt(hosts.at(found), find_token)

    async def look(self, hosts: Hosts, find_token: FindToken) -> Place | None:
        """Search once, from the host that has the endpoint itself. Returns the place of the host that has the
        controller; if none has it, `there` lists the hosts that answered."""
        votes, _ = await self._ask_everybody(hosts, hosts.others, find_token)
        return _leader(votes)

    async def _ask_everybody(
        self, hosts: Hosts, given: Sequence[Place], find_token: FindToken
    ) -> tuple[dict[Place, Vote], dict[Place, Exception]]:
        places = dict.fromkeys((*given, *self._named, *self._noted))
        votes, errors = await self._ask_all(hosts, places, find_token)
        new = {vote.at: None for vote in votes.values() if vote.at is not None and vote.at not in places}
        if new and _leader(votes) is None:
            self._named |= dict(list(new.items())[: _MAX_PLACES - len(self._named)])
            more = await self._ask_all(hosts, new, find_token)
            votes, errors = votes | more[0], errors | more[1]
        self.there = [shown(*place) for place in votes]
        known = (ConnectionRefusedError, WireError, EverstepError)
        self.is_unclear = any(not isinstance(error, known) for error in errors.values())
        return votes, errors

    async def _ask_all(
        self, hosts: Hosts, places: dict[Place, None], find_token: FindToken
    ) -> tuple[dict[Place, Vote], dict[Place, Exception]]:
        tasks = {asyncio.create_task(_ask(hosts.at(place), find_token)): place for place in places}
        votes: dict[Place, Vote] = {}
        errors: dict[Place, Exception] = {}
        waiting, limit_s = set(tasks), None
        while waiting:
            done, waiting = await asyncio.wait(waiting, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                break
            for task in done:
                try:
                    vote, place = task.result(), tasks[task]
                except (EverstepError, OSError, EOFError) as error:
                    errors[tasks[task]] = error
                    continue
                if place in self._noted and not self._endpoints & set(vote.endpoints):
                    errors[place] = WireError("hosts of another run are there")
                    continue
                votes[place] = vote
                limit_s = BETTER_S if vote.why == HAS_CONTROLLER else limit_s
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        return votes, errors


def _leader(votes: dict[Place, Vote]) -> Place | None:
    """The leader of the newest epoch: an older one may not know yet that it is over."""
    leading = {place: vote.epoch for place, vote in votes.items() if vote.why == HAS_CONTROLLER}
    return max(leading, key=lambda place: leading[place]) if leading else None


async def _ask(place: Hosts, find_token: FindToken) -> Vote:
    """Raises as `attempt`."""
    try:
        connection = await attempt(place, find_token)
    except (ValueError, OverflowError) as error:  # named by another host: no port, no name that can be looked up
        raise WireError(f"this is not an address: {error}") from error
    try:
        connection.send(AskWho())
        async with asyncio.timeout(ANSWER_S):
            answer = await connection.receive()
    finally:
        connection.abort()
    if not isinstance(answer, Vote):
        raise WireError(f"{type(answer).__name__} where a Vote is expected")
    return answer


def _failure(
    hosts: Hosts, given: Sequence[Place], votes: dict[Place, Vote], errors: dict[Place, Exception]
) -> Exception:
    """The error for the user: why no controller was found."""
    first = errors.get(given[0])
    tokenless = next((each for each in errors.values() if isinstance(each, ConfigError)), None)
    if tokenless is not None:
        return tokenless
    if isinstance(first, RefusedError) or (first is not None and not votes and len(errors) == 1):
        return first
    whys = {place: failure_of(error, hosts.at(place)) for place, error in errors.items()}
    whys |= {
        place: Failure(f"{vote.why}, and no other host is known to have it", ELECTION_S)
        for place, vote in votes.items()
    }
    limit_s = max((each.limit_s for each in whys.values()), default=SILENT_S)
    kinds = {each.kind for each in whys.values()}
    head = whys.pop(given[0]).why
    rest = [f"{shown(*place)}: {each.why}" for place, each in whys.items()]
    return FailureError(
        Failure("; ".join([head, *rest]), limit_s, kinds.pop() if len(kinds) == 1 else UnreachableError)
    )
