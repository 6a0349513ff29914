"""A short trace of the rank that a slow incident blames, by its own node, while the job trains on.

Only where nothing else is done about the incident: a restart would end the trace, and must not wait for it. It is
evidence for a person; no decision reads it. The limits are of the whole run, so that a rank that is slow every minute
fills no disk, and leaves some for the others.
"""

from collections import Counter

from everstep.core.state.phases import ALIVE
from everstep.core.state.turn import Turn
from everstep.model.actions import Refused, TraceRank
from everstep.model.events import TraceRequested
from everstep.model.verdict import Verdict

MAX_BYTES = 8 << 20
"""Limit of one file; the rest is cut off."""

MAX_ASKED_BYTES = 32 << 20
"""Limit of one that a user asked for: a host sends it to the first one as a whole."""

MAX_ASKED_S = 120.0

MAX_SAME = 2
"""Traces per rank and code: the first, and another one to compare it with."""

_SLOW = "ES-S"


def trace_slow(turn: Turn) -> None:
    """Ask for a trace if the open incident says that a rank is slow. If a limit prevents it, that is recorded."""
    incident = turn.incident
    if incident.verdict is None:
        return
    why_not = _trace(turn, incident.verdict, incident.id)
    if why_not:
        turn.do(Refused(what=f"trace rank {incident.verdict.ranks[0]}", incident=incident.id, why=why_not))


def trace_excused(turn: Turn, verdict: Verdict) -> None:
    """Trace one rank that is slow and whose machine is not to blame: that opens no incident. If several ranks are slow,
    such as those of a pipeline stage, one trace shows nothing, so none is made."""
    if len(verdict.ranks) == 1:
        _trace(turn, verdict, f"slow{len(turn.state.traced) + 1}")


def on_trace_requested(turn: Turn, event: TraceRequested) -> None:
    """A person's wish, which has no part in the limits of those that are made without one. Nothing waits for it."""
    worker = turn.state.workers.get(event.rank)
    why_not = ""
    if turn.state.phase not in ALIVE:
        why_not = f"no rank is to be looked at now: the run is {turn.state.phase}"
    elif worker is None or worker.exit is not None:
        why_not = f"rank {event.rank} has no process at the moment"
    if why_not or worker is None:
        turn.do(Refused(what=f"trace {event.request}", why=why_not))
        return
    turn.do(
        TraceRank(
            node=worker.node,
            generation=turn.state.generation,
            incident=event.request,
            rank=event.rank,
            seconds=event.seconds,
            max_bytes=MAX_ASKED_BYTES,
            why=f"a user asked for it ({event.request})",
        )
    )


def _trace(turn: Turn, verdict: Verdict, name: str) -> str:
    """Ask for it; or why a limit forbids it. Empty also where there is nothing to trace."""
    if not verdict.code.startswith(_SLOW) or not verdict.ranks or not turn.policy.slow_trace_s:
        return ""
    rank = verdict.ranks[0]
    worker = turn.state.workers.get(rank)
    if worker is None or worker.exit is not None:
        return ""
    key = f"{verdict.code} of rank {rank}"
    why_not = _why_not(turn, key)
    if why_not:
        return why_not
    turn.set(traced=(*turn.state.traced, key))
    turn.do(
        TraceRank(
            node=worker.node,
            generation=turn.state.generation,
            incident=name,
            rank=rank,
            seconds=turn.policy.slow_trace_s,
            max_bytes=MAX_BYTES,
            why=f"{name}: {key}",
        )
    )
    return ""


def _why_not(turn: Turn, key: str) -> str:
    traced, limit = turn.state.traced, turn.policy.max_slow_traces
    if len(traced) >= limit:
        return f"{len(traced)} in this run, {limit} allowed (policy max_slow_traces)"
    if Counter(traced)[key] >= MAX_SAME:
        return f"{key} was traced {MAX_SAME} times in this run"
    return ""
