"""Events that must be recorded even if what came with them cannot be: without the end of a rank nothing would happen.

What a rank left behind may be anything. If a record of it cannot be written (a time that is NaN), the end itself is
kept, without its explanation. Pure.
"""

import math

import msgspec

from everstep.model.events import Event, NodeLost, WorkerExited, WorkersStopped
from everstep.model.facts import Exit

MAX_REASON = 500


def bare(event: Event, at: float) -> Event | None:
    """The event with nothing in it but what must not get lost; None for one that the run does not need."""
    moment = event.at if math.isfinite(event.at) else at
    match event:
        case WorkerExited():
            return msgspec.structs.replace(event, at=moment, exit=_bare_exit(event.exit, moment), account=None)
        case WorkersStopped():
            exits = tuple(_bare_exit(each, moment) for each in event.exits)
            return msgspec.structs.replace(event, at=moment, exits=exits, accounts=())
        case NodeLost():
            return msgspec.structs.replace(event, at=moment, reason=ascii(event.reason)[:MAX_REASON], kept=())
        case _:
            return None


def _bare_exit(exit_: Exit, at: float) -> Exit:
    return Exit(
        rank=exit_.rank,
        at=exit_.at if math.isfinite(exit_.at) else at,
        code=exit_.code,
        signal=exit_.signal,
        stopped_by_us=exit_.stopped_by_us,
    )
