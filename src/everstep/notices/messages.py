"""Messages about a run: one per incident, in the words of `everstep incident`. View to text; pure."""

import msgspec

from everstep.journal.view import IncidentView, RunStatus, RunView
from everstep.report.parts.ansi import printable
from everstep.report.parts.codes import CODES
from everstep.report.parts.commands import command
from everstep.report.parts.phases import times_of
from everstep.report.parts.units import duration, plural

MAX_CHARS = 600
END = "end"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`key`: of the incident, or "end". A later one with the same key says more of the same."""

    key: str
    run: str
    at: float
    state: str  # "open", "needs-you", or the incident's outcome
    is_over: bool
    needs_you: bool
    code: str
    node: str
    text: str
    is_drill: bool = False


def messages_of(view: RunView) -> list[Message]:
    """Return a message for every incident that was concluded, and one for an end that no incident explains; oldest
    first."""
    found = [_of_incident(view, incident) for incident in view.incidents.values() if incident.verdict is not None]
    finish = view.finish
    if finish is not None and finish.outcome in ("failed", "gave-up") and not _is_explained(view):
        text = f"{view.run} {finish.outcome.replace('-', ' ')}: {finish.why}"
        at = view.finished_at or view.last_at or 0.0
        found.append(_message(view, END, at, finish.outcome, text, is_over=True, needs_you=True))
    return found


def _is_explained(view: RunView) -> bool:
    return any(incident.outcome in ("gave-up", "failed") for incident in view.incidents.values())


def _of_incident(view: RunView, incident: IncidentView) -> Message:
    verdict = incident.verdict
    assert verdict is not None
    waits = incident.id == view.open_incident and view.status is RunStatus.WAITING_FOR_APPROVAL
    state = incident.outcome or ("needs-you" if waits else "open")
    at = incident.fault_at if incident.fault_at is not None else incident.opened_at
    says = f"{verdict.sentence.rstrip('.')} ({verdict.code}{_named(verdict.code)})."
    needs_you = waits or incident.outcome in ("gave-up", "failed")
    text = f"{_head(view, incident, waits=waits)}: {says} {_rest(view, incident, waits=waits)}".strip()
    return _message(
        view,
        incident.id,
        at,
        state,
        text,
        is_over=not incident.is_open,
        needs_you=needs_you,
        code=verdict.code,
        node=verdict.node or "",
        is_drill=incident.drill is not None,
    )


def _head(view: RunView, incident: IncidentView, *, waits: bool) -> str:
    drill = f" (drill {incident.drill})" if incident.drill else ""
    if waits:
        return f"{view.run} waits for your approval{drill}"
    if incident.is_open:
        return f"{view.run} is disturbed{drill}"
    if incident.outcome == "recovered":
        return f"{view.run} recovered in {duration(times_of(view, incident).lost_s)}{drill}"
    return f"{view.run} {(incident.outcome or '').replace('-', ' ')}{drill}"


def _rest(view: RunView, incident: IncidentView, *, waits: bool) -> str:
    if waits:
        return command("approve", incident.id)
    if incident.is_open:
        return f"Now: {incident.decision.chosen}." if incident.decision is not None else ""
    if incident.outcome == "recovered":
        steps = incident.lost_steps
        redone = "" if steps is None else f"Redid {plural(steps, 'step')}. "
        standby = sum(node.slot is None and node.lost is None for node in view.nodes.values())
        return f"{redone}Standbys left: {standby}."
    return f"{incident.close_why}." if incident.close_why else ""


def _named(code: str) -> str:
    return f" {CODES[code].name}" if code in CODES else ""


def _message(
    view: RunView,
    key: str,
    at: float,
    state: str,
    text: str,
    *,
    is_over: bool,
    needs_you: bool,
    code: str = "",
    node: str = "",
    is_drill: bool = False,
) -> Message:
    text = printable(" ".join(text.split()))  # it may be shown on a terminal
    return Message(
        key=key,
        run=view.run,
        at=at,
        state=state,
        is_over=is_over,
        needs_you=needs_you,
        code=code,
        node=node,
        text=text if len(text) <= MAX_CHARS else f"{text[: MAX_CHARS - 1]}…",
        is_drill=is_drill,
    )
