"""The head of every screen: status, step, and one sentence about now. Pure."""

import msgspec

from everstep.journal.view import RunStatus, RunView
from everstep.report import checkpoints
from everstep.report.now.status import at_risk, doing, memory_text, next_text, notes, now_text, step_s
from everstep.report.parts.asked import Asked
from everstep.report.parts.commands import command
from everstep.report.parts.units import duration, percent, stamp
from everstep.report.picture.schema import Head

HOUR_S, DAY_S = 3600.0, 86400.0
LEAST_DRIFT = 0.03
"""Step times are kept in bins of 2 %."""

_NEEDS_YOU = (RunStatus.WAITING_FOR_APPROVAL, RunStatus.FAILED, RunStatus.GAVE_UP)


class CopiesSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Where the state is kept, and what a fault would cost: (name, sentence). None: not known."""

    lines: tuple[tuple[str, str], ...]
    steps_if_node_dies: int | None = None


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """How many nodes are where."""

    active: int
    standby: int
    out: int


def places_of(view: RunView) -> Places:
    out = standby = 0
    for node in view.nodes.values():
        if node.lost is not None:
            out += 1
        elif node.slot is None:
            standby += 1
    return Places(active=len(view.nodes) - out - standby, standby=standby, out=out)


def head_of(view: RunView, asked: Asked, copies: CopiesSeen | None = None, places: Places | None = None) -> Head:
    """`copies`: as of a moment ago, where a fleet is so large that they take long. Each walk over 12,500 ranks or nodes
    is made once."""
    as_of = asked.as_of(view)
    seen = copies_of(view, asked) if copies is None else copies
    generation, stepped, incident = view.generation, view.stepped, view.incident
    step_now, step_median = step_s(view, as_of)
    held, lost = at_risk(view)
    is_gone, allowed = asked.is_gone(view), view.policy.get("max_restarts")
    seats = places_of(view) if places is None else places
    status = view.status  # asks every rank
    verdict = None if incident is None else incident.verdict
    return Head(
        run=view.run,
        program="" if view.spec is None else " ".join((view.spec.program, *view.spec.args)),
        status=str(status),
        is_over=view.is_over,
        is_gone=is_gone,
        needs_you=is_gone or status in _NEEDS_YOU,
        now=now_sentence(view, asked, status),
        what="" if verdict is None else f"{verdict.code} {verdict.sentence}",
        doing="" if incident is None else doing(view, incident),
        next="" if incident is None else _next(view),
        incident=view.open_incident,
        as_of=as_of,
        started_at=view.started_at,
        finished_at=view.finished_at,
        last_step_at=None if stepped is None else stepped.last_step_at,
        step=None if stepped is None else stepped.last_step,
        step_s=step_now,
        median_step_s=step_median,
        drift=drift_text(view, as_of),
        generation=None if generation is None else generation.number,
        world_size=None if view.spec is None else view.spec.world_size,
        mode="" if view.spec is None else str(view.spec.mode),
        version=None if generation is None else generation.version,
        restarts_used=view.restarts_used(as_of),
        restarts_allowed=int(allowed) if allowed is not None else None,
        num_incidents=len(view.incidents),
        snapshot_step=held,
        steps_at_risk=lost,
        steps_if_node_dies=seen.steps_if_node_dies,
        copies=seen.lines,
        active=seats.active,
        standby=seats.standby,
        lost=seats.out,
        outcome=None if view.finish is None else view.finish.outcome,
        exit_code=None if view.finish is None else view.finish.exit_code,
        why="" if view.finish is None else view.finish.why,
        notes=tuple(notes(view)),
        command=command("status", view.run),
    )


def now_sentence(view: RunView, asked: Asked, status: RunStatus | None = None) -> str:
    """Return the one sentence that a person in a hurry reads."""
    if view.finish is not None:
        return f"{view.finish.outcome.replace('-', ' ')}: {view.finish.why}"
    if asked.is_gone(view):
        return f"as of {stamp(view.last_at)}: the controller is gone since then; faults are not handled"
    if view.incident is not None:
        return doing(view, view.incident)
    return now_text(view, asked, status)


def _next(view: RunView) -> str:
    assert view.incident is not None
    if view.status is RunStatus.WAITING_FOR_APPROVAL:
        return command("approve", view.incident.id)
    return next_text(view, view.incident)


def copies_of(view: RunView, asked: Asked) -> CopiesSeen:
    copies = checkpoints.view(view)
    if view.is_over:
        disk = checkpoints.disk_text(view, copies, asked.at)
        return CopiesSeen(lines=(("disk", disk),) if disk else ())
    told = checkpoints.lines(view, asked.as_of(view), copies)
    lines = (("memory", memory_text(view)), *(line for line in told if line[0] != "racks"))  # the map has them
    return CopiesSeen(lines=lines, steps_if_node_dies=copies.if_node_dies.steps)


def drift_text(view: RunView, as_of: float) -> str:
    """Is it slower than yesterday? The median step of the last hour against that of the hours around a day before; ""
    while there is no such day."""
    last_s = view.pace.median_s(as_of - HOUR_S, as_of)
    before_s = view.pace.median_s(as_of - DAY_S - 2 * HOUR_S, as_of - DAY_S + 2 * HOUR_S)
    if last_s is None or before_s is None:
        return ""
    change = last_s / before_s - 1.0
    if abs(change) < LEAST_DRIFT:
        return f"as a day ago ({duration(before_s)})"
    return f"{percent(abs(change), 0)} {'slower' if change > 0 else 'faster'} than a day ago ({duration(before_s)})"
