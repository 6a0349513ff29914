"""A first host that is started again, by a person or by itself: whether its run continues on another host.

Hosts of that run are asked before a new one begins: the two would have the same program, the same checkpoints and
perhaps the same name. Their addresses come from this host's own directories, and from the user. Called by
`launcher.run`.
"""

import asyncio
import sys
import time

import msgspec

from everstep.errors import UnreachableError
from everstep.launcher.arguments.hosts import Hosts
from everstep.launcher.heirs.finding import ELECTION_S, Noted, Place, Search
from everstep.launcher.reach import token as tokens
from everstep.report.parts.ansi import safe
from everstep.wire.joining import JoinToken

AGAIN_S = 0.2
UNCLEAR_S = 3.0
"""A machine that has just booted cannot connect at first: its network comes up beside this command."""


class Led(msgspec.Struct, frozen=True):
    """Where the run is, and what lets this host in."""

    hosts: Hosts
    token: JoinToken


def find_led(hosts: Hosts, own: Place, run_dir: str, token: JoinToken | None) -> Led | None:
    """The run that this host began at the endpoint, which is `own`; None: it is nowhere. Raises UnreachableError when
    its hosts are there, and none has the controller; ConfigError for a token that cannot be used."""
    noted = Noted.of(hosts, run_dir, own=(own,))
    noted = noted if noted is not None and noted.may_be_succeeded else None
    if noted is None and not hosts.others:
        return None
    token = token or tokens.shared(hosts, run_dir)
    if token is None:
        return None
    found = asyncio.run(_find(hosts, noted, token))
    return None if found is None else Led(found, token)


async def _find(hosts: Hosts, noted: Noted | None, token: JoinToken) -> Hosts | None:
    began, is_said = time.monotonic(), False
    search = Search(noted)
    run = f"run {noted.run}, which this host began," if noted is not None else "a run that was begun at this endpoint"
    while True:
        place = await search.look(hosts, lambda: token)
        if place is not None:
            led = msgspec.structs.replace(hosts.at(place), node_rank=None, said_by=f"the hosts of {run.rstrip(',')}")
            _say(f"{run} continues on another one: joining it at {led.endpoint}")
            return led
        if not search.there:
            if noted is None or not search.is_unclear or time.monotonic() - began > UNCLEAR_S:
                return None
            await asyncio.sleep(AGAIN_S)
            continue
        if time.monotonic() - began > ELECTION_S:
            raise UnreachableError(
                f"hosts of {run} are still there ({', '.join(search.there)}), and none has the controller. Nothing was "
                "started: a second run beside it would train the same again. End them, or wait until they end by "
                "themselves, and start this host again"
            )
        if not is_said:
            is_said = True
            _say(f"hosts of {run} are still there: waiting until one has the controller")
        await asyncio.sleep(AGAIN_S)


def _say(text: str) -> None:
    sys.stderr.write(safe(f"everstep: {text}\n"))
    sys.stderr.flush()
