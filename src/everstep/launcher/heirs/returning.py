"""A first host that is started again, by a person or by itself: whether the run that it began goes on with another one.

Hosts of that run are asked before a new one begins: the two would have the same program, the same checkpoints and
perhaps the same name. Where they are, this host's own directories tell. Called by `launcher.run`.
"""

import asyncio
import contextlib
import socket
import sys
import time
from pathlib import Path

import msgspec

from everstep.errors import ConfigError, EverstepError, UnreachableError
from everstep.journal.beside import succession
from everstep.journal.runs import home
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.hosts import token as tokens
from everstep.launcher.hosts.reaching import attempt
from everstep.report.parts.ansi import safe
from everstep.wire.heirs import HAS_CONTROLLER, AskWho, Vote
from everstep.wire.joining import JoinToken

ASK_S = 2.0
"""For all answers: hosts that are up answer in milliseconds."""

AGAIN_S = 0.2
ELECTION_S = 30.0
"""Hosts that are there have a controller by then, or cannot have one."""


class Led(msgspec.Struct, frozen=True):
    """Where the run is, and what lets this host in."""

    hosts: Hosts
    token: JoinToken


def find_led(hosts: Hosts, own: tuple[str, int], run_dir: str, token: JoinToken | None) -> Led | None:
    """The run that this host began at the endpoint, which is `own`; None: it is nowhere. Raises UnreachableError when
    its hosts are there, and none has the controller; ConfigError for a token that cannot be used."""
    noted = _noted(own, run_dir)
    token = token or (tokens.shared(hosts, run_dir) if noted is not None else None)
    if noted is None or token is None:
        return None
    found = asyncio.run(_find(hosts, *noted, token))
    return None if found is None else Led(found, token)


def _noted(own: tuple[str, int], run_dir: str) -> tuple[str, list[tuple[str, int]]] | None:
    """The newest run that this host began there, and where the others were that may go on with it."""
    folders = [Path(run_dir).expanduser()] if run_dir else []
    with contextlib.suppress(ConfigError, OSError):
        folders += [path.parent for path in (home() / "runs").glob(f"*/{succession.NAME}")]
    known = [(found, folder) for folder in folders if (found := succession.known(folder)) is not None]
    mine = [each for each in known if each[0].here == socket.gethostname() and own in each[0].doors]
    if not mine:
        return None
    found, folder = max(mine, key=lambda each: each[0].at)
    others = [door for door in found.doors if door != own]
    return (folder.resolve().name, others) if found.may_be_succeeded else None


async def _find(hosts: Hosts, run: str, doors: list[tuple[str, int]], token: JoinToken) -> Hosts | None:
    began, is_said = time.monotonic(), False
    places = [
        msgspec.structs.replace(hosts, host=host, port=port, node_rank=None, said_by=f"the hosts of run {run}")
        for host, port in doors
    ]
    while True:
        answers = await asyncio.gather(*(_ask(place, token) for place in places))
        for place, answer in zip(places, answers, strict=True):
            if answer is not None and answer.why == HAS_CONTROLLER:
                _say(f"run {run}, which this host began, continues on another one: joining it at {place.endpoint}")
                return place
        there = [place.endpoint for place, answer in zip(places, answers, strict=True) if answer is not None]
        if not there:
            return None
        if time.monotonic() - began > ELECTION_S:
            raise UnreachableError(
                f"hosts of run {run}, which this host began, are still there ({', '.join(there)}), and none has the "
                "controller. Nothing was started: a second run beside it would train the same again. End them, or wait "
                "until they end by themselves, and start this host again"
            )
        if not is_said:
            is_said = True
            _say(f"hosts of run {run}, which this host began, are still there: waiting until one has the controller")
        await asyncio.sleep(AGAIN_S)


def _say(text: str) -> None:
    sys.stderr.write(safe(f"everstep: {text}\n"))
    sys.stderr.flush()


async def _ask(place: Hosts, token: JoinToken) -> Vote | None:
    """None: no host of a run that knows this token is there."""
    try:
        async with asyncio.timeout(ASK_S):
            connection = await attempt(place, lambda: token)
            try:
                connection.send(AskWho())
                answer = await connection.receive()
            finally:
                connection.abort()
    except (EverstepError, OSError, EOFError, TimeoutError):
        return None
    return answer if isinstance(answer, Vote) else None
