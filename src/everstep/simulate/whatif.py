"""A recorded run with another policy: where its decisions would have been others. Pure; records in, differences out.

Two folds go over the same events. One has the recorded policy, and shows what this version of the rules decides; the
other has the other policy. As long as both want the same of the world, the recorded events are answers to both. From
the first difference that changes the world they are answers to what was done only: what the other policy would have met
from there on is unknown. After it each decision is asked in the situation that was recorded, and the page says so.
"""

from collections.abc import Iterable, Sequence

import msgspec

from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.model import actions
from everstep.model.actions import Action
from everstep.model.record import Record

ON_RECORD = (actions.Concluded, actions.Refused, actions.IncidentOpened, actions.IncidentClosed, actions.SetTimer)
"""What changes nothing in the world."""

_SAME_FOR_ALL = ("why", "at", "due_at", "grace_s", "save_s", "limit_s", "verdict", "store_host", "store_port")
"""Fields of actions that are no other decision: words, and times; those are reported as times."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """A decision about one event. `chosen` and `why` are sentences; `does`: "evict n1", "stop 8 nodes"."""

    chosen: str
    why: str
    does: tuple[str, ...]


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    seq: int  # of the record
    at: float
    incident: str | None
    was: Choice
    would: Choice
    changes_world: bool
    is_followed: bool  # the other policy's own course led here; else it is asked in the recorded situation


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """A decision that differs only in a duration. `what`: an action and its field, "StopWorkers.grace_s"."""

    what: str
    was_s: float
    would_s: float
    count: int


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    num_records: int
    num_incidents: int
    differences: tuple[Difference, ...]
    timings: tuple[Timing, ...]
    diverged: Difference | None  # the first one that changes the world
    num_asked: int  # records after it, which were only asked one by one
    num_other_version: (
        int  # records at which this version, with the recorded policy, decides otherwise than was recorded
    )


def what_if(records: Iterable[Record], recorded: Policy, other: Policy) -> WhatIf:
    """Total: a journal of any version that can be read is folded as far as it goes."""
    ours, theirs = State.initial(), State.initial()
    found: list[Difference] = []
    timings: dict[tuple[str, float, float], int] = {}
    diverged: Difference | None = None
    num_records = num_asked = num_other = num_incidents = 0
    for record in records:
        num_records += 1
        num_asked += diverged is not None
        situation = ours
        ours, was = step(situation, record.event, recorded)
        theirs, would = step(theirs if diverged is None else situation, record.event, other)
        num_incidents += sum(isinstance(action, actions.IncidentOpened) for action in record.actions)
        num_other += _acts(was) != _acts(record.actions)
        for key in _timings(was, would):
            timings[key] = timings.get(key, 0) + 1
        if _acts(was) == _acts(would):
            continue
        difference = Difference(
            seq=record.seq,
            at=record.at,
            incident=_incident(was) or _incident(would) or (ours.incident.id if ours.incident is not None else None),
            was=_choice(was),
            would=_choice(would),
            changes_world=_acts(was, only_world=True) != _acts(would, only_world=True),
            is_followed=diverged is None,
        )
        found.append(difference)
        if difference.changes_world and diverged is None:
            diverged = difference
    return WhatIf(
        num_records=num_records,
        num_incidents=num_incidents,
        differences=tuple(found),
        timings=tuple(
            Timing(what=what, was_s=was_s, would_s=would_s, count=number)
            for (what, was_s, would_s), number in timings.items()
        ),
        diverged=diverged,
        num_asked=num_asked,
        num_other_version=num_other,
    )


def _acts(decided: Sequence[Action], *, only_world: bool = False) -> list[tuple[object, ...]]:
    """Return the actions to compare: without words, times and timers, and with `only_world` without those that are only
    on record."""
    return [
        (type(action).__name__, *_fields(action))
        for action in decided
        if not isinstance(action, actions.SetTimer) and not (only_world and isinstance(action, ON_RECORD))
    ]


def _fields(action: Action) -> list[object]:
    if isinstance(action, actions.Concluded):
        return [action.incident, action.decision.rule, action.decision.chosen, _whats(action)]
    return [getattr(action, name) for name in action.__struct_fields__ if name not in _SAME_FOR_ALL]


def _whats(concluded: actions.Concluded) -> tuple[str, ...]:
    return tuple(refusal.what for refusal in concluded.decision.refused)


def _incident(decided: Sequence[Action]) -> str | None:
    return next((action.incident for action in decided if isinstance(action, actions.Concluded)), None)


def _choice(decided: Sequence[Action]) -> Choice:
    """In words: the last conclusion, else what is done first, else nothing."""
    concluded = [action for action in decided if isinstance(action, actions.Concluded)]
    does = _does(decided)
    if concluded:
        decision = concluded[-1].decision
        return Choice(chosen=decision.chosen, why=decision.why, does=does)
    refused = [action for action in decided if isinstance(action, actions.Refused)]
    if refused:
        return Choice(chosen=f"not {refused[-1].what}", why=refused[-1].why, does=does)
    telling = [action for action in decided if not isinstance(action, actions.SetTimer)]
    if telling:
        return Choice(chosen=does[0] if does else type(telling[0]).__name__, why=telling[0].why, does=does)
    return Choice(chosen="nothing", why="nothing was to be decided, or something is waited for", does=())


def _does(decided: Sequence[Action]) -> tuple[str, ...]:
    """Actions of one kind as one: "StopWorkers of 8 nodes"."""
    by_kind: dict[str, list[str]] = {}
    for action in decided:
        if not isinstance(action, ON_RECORD):
            by_kind.setdefault(type(action).__name__, []).append(str(getattr(action, "node", "") or ""))
    return tuple(
        f"{kind} {nodes[0]}".rstrip() if len(nodes) == 1 else f"{kind} of {len(nodes)} nodes"
        for kind, nodes in by_kind.items()
    )


def _timings(was: Sequence[Action], would: Sequence[Action]) -> list[tuple[str, float, float]]:
    """Durations that differ, of actions that are otherwise the same."""
    found = []
    for one, other in zip(was, would, strict=False):
        if type(one) is not type(other):
            break
        for name in ("grace_s", "save_s", "limit_s", "due_at"):
            before, after = getattr(one, name, None), getattr(other, name, None)
            if before is not None and after is not None and before != after:
                what = f"{type(one).__name__}.{name}"
                if isinstance(one, actions.SetTimer):
                    what, before, after = f"timer {one.key.partition(':')[0]}", 0.0, round(after - before, 3)
                found.append((what, before, after))
    return list(dict.fromkeys(found))
