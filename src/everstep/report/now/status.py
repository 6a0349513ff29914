"""`everstep status`: one screen, one answer. View to text; pure.

Order: is it moving; if not, what is wrong, who handles it, what comes next; then what it cost and what is at risk.
"""

from statistics import median

from everstep.analyzer.observations.words import ranks_text, verb
from everstep.goodput.figures import Goodput
from everstep.journal.view import GenerationView, IncidentView, RunStatus, RunView
from everstep.report import checkpoints
from everstep.report.parts import noted
from everstep.report.parts.ansi import PLAIN, Paint, Style
from everstep.report.parts.asked import Asked
from everstep.report.parts.commands import command
from everstep.report.parts.layout import field, fields, text_of
from everstep.report.parts.phases import times_of
from everstep.report.parts.units import NOT_MEASURED, ago, clock, count, duration, percent, plural, stamp
from everstep.report.updates import running_text

_PAINTS = {
    RunStatus.STANDING_STILL: Paint.ORANGE,
    RunStatus.RECOVERING: Paint.ORANGE,
    RunStatus.WAITING_FOR_APPROVAL: Paint.RED,
    RunStatus.GAVE_UP: Paint.RED,
    RunStatus.FAILED: Paint.RED,
}
_HOUR_S = 3600.0


def render_status(view: RunView, goodput: Goodput, asked: Asked, style: Style = PLAIN) -> str:
    lines = [_headline(view, asked, style)]
    lines += _trouble(view, asked) if view.incident is not None else _ended(view)
    lines += field("goodput", _goodput(view, goodput, asked.as_of(view)))
    lines += field("nodes", _nodes(view))
    if asked.controller and not view.is_over:
        lines += field("controller", asked.controller)
    if version := running_text(view):
        lines += field("version", version)
    if not view.is_over:
        lines += field("memory", memory_text(view))
        for name, text in checkpoints.lines(view, asked.as_of(view)):
            lines += field(name, text)
    elif disk := checkpoints.disk_text(view, checkpoints.view(view), asked.at):
        lines += field("disk", disk)
    if not view.is_over:
        lines += fields("ranks", noted.note_lines(view, asked.as_of(view)))
        if progress := noted.progress_text(view, asked.as_of(view)):
            lines += field("progress", progress)
    if not view.is_over and view.incident is None:
        lines += field("now", "controller not running" if asked.is_gone(view) else now_text(view, asked))
    for note in notes(view):
        lines += field("note", note)
    return text_of(lines)


def step_s(view: RunView, now: float) -> tuple[float | None, float | None]:
    """Seconds per step of the slowest rank: the last ones reported, and the median of the last hour."""
    recent = [s for at, s in view.step_times if at > now - _HOUR_S]
    return (recent[-1] if recent else None), (median(recent) if recent else None)


def at_risk(view: RunView) -> tuple[int | None, int | None]:
    """(newest step that every rank holds a snapshot of, steps that would be lost now); None when not known."""
    generation = view.generation
    if generation is None:
        return None, None
    if generation.resume_step is not None and generation.last_step is None:
        return generation.resume_step, 0  # it begins with what memory holds
    # A new snapshot replaces the older of two only once it is whole: what was restored from is held at least.
    held = [
        a.published_step if a.published_step is not None else generation.resume_step
        for a in generation.accounts.values()
    ]
    if not held or None in held:
        return None, None
    last, least = generation.last_step, min(held)  # type: ignore[type-var]
    return least, None if last is None or least is None else max(0, last - least)


def incomplete_text(view: RunView) -> str:
    """Describe what the State of the newest generation leaves out; empty: nothing is known to be left out."""
    told, generation = view.incomplete, view.generation
    if told is None or generation is None or told.generation != generation.number:
        return ""
    return f"no snapshots, after a fault the program begins as under torchrun: {told.why}"


def memory_text(view: RunView) -> str:
    held, lost = at_risk(view)
    if held is None:
        return f"{NOT_MEASURED}   no snapshot of every rank is known (a program without everstep.State takes none)"
    return f"step {count(held)} on every rank   -> at risk now: {plural(lost, 'step') if lost is not None else '—'}"


def notes(view: RunView) -> list[str]:
    """List what did not go as planned but does not stop the run."""
    found = []
    for node in view.nodes.values():
        if node.template is not None and not node.template.usable and node.lost is None:
            found.append(f"{node.node}: a restart would be cold (fresh interpreters): {node.template.why}")
        if node.drained and node.lost is None:
            found.append(f"{node.node}: to be left when another node is ready: {node.drained}")
    if view.snapshots_refused:
        last = view.snapshots_refused[-1]
        ranks = sorted({event.rank for event in view.snapshots_refused})
        found.append(f"{ranks_text(ranks)} {verb(ranks, 'was', 'were')} refused snapshot memory, last: {last.why}")
    if incomplete := incomplete_text(view):
        found.append(incomplete)
    if view.runtime_faults:
        last_fault = view.runtime_faults[-1]
        number = plural(len(view.runtime_faults), "fault")
        found.append(
            f"{number} of everstep's own in workers, training continued; last: {last_fault.where}: {last_fault.why}"
        )
    if view.spec is not None and view.spec.is_elastic:
        spec = view.spec
        found.append(f"the job has {plural(spec.num_slots, 'node')}; it may have {spec.min_slots} to {spec.max_slots}")
    restarted = sum(start.took_over for start in view.controllers)
    if restarted:
        torn = sum(start.torn_bytes for start in view.controllers)
        cut = f"; {plural(torn, 'torn byte')} cut off the journal" if torn else ""
        found.append(f"the controller was restarted {plural(restarted, 'time')}, training continued{cut}")
    if view.torn_bytes:
        found.append(f"the journal's last {plural(view.torn_bytes, 'byte')} are an incomplete record and were left out")
    if view.num_unknown:
        kinds = ", ".join(f"{kind} ({number})" for kind, number in view.num_unknown.items())
        found.append(f"records of a newer everstep that this one does not know: {kinds}")
    return found


def _headline(view: RunView, asked: Asked, style: Style) -> str:
    status = str(view.status).upper().replace("-", " ")
    gone = asked.is_gone(view)
    painted = style(
        status, Paint.BOLD, *([Paint.RED] if gone else [_PAINTS[view.status]] if view.status in _PAINTS else [])
    )
    generation = view.stepped
    step = "no step yet" if generation is None else f"step {count(generation.last_step)}"
    parts = [f"{view.run}  {painted}", step]
    as_of = asked.as_of(view)
    if view.is_over:
        parts.append(f"ended {stamp(view.finished_at)} ({ago(view.finished_at, asked.at)})")
        parts.append(f"code {view.finish.exit_code if view.finish else NOT_MEASURED}")
    elif view.incident is not None:
        since = view.incident.fault_at or view.incident.opened_at
        parts = [parts[0], f"stopped at {step} for {duration(as_of - since)}", f"incident {view.incident.id}"]
    elif generation is not None:
        now_s, median_s = step_s(view, as_of)
        parts.append(f"{duration(now_s)}/step (median 1h {duration(median_s)})")
        parts.append(f"last step {ago(generation.last_step_at, as_of)}")
    line = "   ".join(parts)
    if gone:
        line += "\n" + style(
            f"  as of {stamp(view.last_at)}: controller gone since then ({ago(view.last_at, asked.at)})", Paint.RED
        )
    return line


def _goodput(view: RunView, goodput: Goodput, now: float) -> str:
    limit = view.policy.get("max_restarts")
    window_s = float(view.policy.get("budget_window_s", 0.0))
    budget = f"{view.restarts_used(now)} of {limit} in {duration(window_s)}" if limit is not None else NOT_MEASURED
    hour = (
        f" (last {duration(goodput.window_s)} {percent(goodput.window_ettr)})"
        if goodput.window_s < goodput.wall_s
        else ""
    )
    generation = view.generation
    number = NOT_MEASURED if generation is None else str(generation.number)
    return f"{percent(goodput.ettr)}{hour}   restarts {budget}   incidents {len(view.incidents)}   generation {number}"


def _nodes(view: RunView) -> str:
    active = [n.node for n in view.nodes.values() if n.slot is not None and n.lost is None]
    standby = [n.node for n in view.nodes.values() if n.slot is None and n.lost is None]
    lost = [f"{n.node}: {n.lost.reason}" for n in view.nodes.values() if n.lost is not None]
    if not view.is_over and view.generation is None:
        return f"{plural(len(view.nodes), 'node')} joined"
    text = f"{len(active)} active, {len(standby)} standby"
    return text + (f", {len(lost)} lost (last {lost[-1]})" if lost else "")


def _trouble(view: RunView, asked: Asked) -> list[str]:
    incident = view.incident
    assert incident is not None
    verdict = incident.verdict
    lines = field("what", f"{verdict.code} {verdict.sentence}" if verdict else "a fault; nothing concluded yet")
    lines += field("doing", doing(view, incident))
    if view.status is RunStatus.WAITING_FOR_APPROVAL:
        return lines + field("next", command("approve", incident.id))
    return lines + field("next", next_text(view, incident))


def now_text(view: RunView, asked: Asked, status: RunStatus | None = None) -> str:
    """The line for a run without an incident: nothing wrong, or what it waits for. `status`: if it is known already."""
    if (view.status if status is None else status) is not RunStatus.STARTING:
        ending = noted.ending_ranks(view)
        return f"waiting for {ranks_text(ending)} to end; nothing is done" if ending else "nothing wrong"
    generation = view.generation
    if generation is None:
        return f"waiting for nodes and a store for {duration(asked.as_of(view) - (view.started_at or asked.at))}"
    return f"{_forming(generation)}, for {duration(asked.as_of(view) - generation.begun_at)}"


def _forming(generation: GenerationView) -> str:
    ranks = len(generation.node_of)
    entered = sum(account.entered_at is not None for account in generation.accounts.values())
    stepped = sum(account.first_step is not None for account in generation.accounts.values())
    return (
        f"forming generation {generation.number}: {len(generation.started)}/{ranks} ranks started, "
        f"{entered}/{ranks} in the program, {stepped}/{ranks} stepped"
    )


def doing(view: RunView, incident: IncidentView) -> str:
    """Describe the current part of a recovery, and what it waits for."""
    new = next((g for g in view.generations if g.number == incident.next_generation), None)
    old = view.generation
    if new is not None:
        return _forming(new)
    if incident.is_left_alone and incident.decision is not None:
        return f"left alone, {incident.decision.why}"
    if view.status is RunStatus.WAITING_FOR_APPROVAL:
        return f"waits for approval of: {incident.decision.chosen if incident.decision else NOT_MEASURED}"
    if incident.stopped_at is None and old is not None and old.stop_asked_at is not None:
        return f"ending the workers of generation {old.number} since {clock(old.stop_asked_at)}"
    if incident.stopped_at is not None:
        return "waiting for a node for every slot, or for the next store"
    return "waiting for the rank that caused it to show itself"


def next_text(view: RunView, incident: IncidentView) -> str:
    """Describe what follows the current part of a recovery."""
    before = [times_of(view, i).lost_s for i in view.incidents.values() if i.outcome == "recovered"]
    known = [s for s in before if s is not None]
    usual = f"; usually {duration(median(known))}" if known else ""
    new = next((g for g in view.generations if g.number == incident.next_generation), None)
    if new is not None and new.resume_step is not None:
        return f"restore step {count(new.resume_step)} from memory{usual}"
    if incident.decision is None:
        return "a decision"
    if incident.is_left_alone:
        at = incident.decision.act_at
        when = "" if at is None else f"at {clock(at)}: "
        return f"{when}{incident.decision.chosen}"
    return f"{incident.decision.chosen}{usual if incident.decision.chosen.startswith('restart') else ''}"


def _ended(view: RunView) -> list[str]:
    if view.finish is None:
        return []
    incident = list(view.incidents.values())[-1] if view.incidents else None
    lines = []
    if view.finish.outcome in ("gave-up", "failed") and incident is not None and incident.verdict is not None:
        lines += field("what", f"{incident.verdict.code} {incident.verdict.sentence}")
    lines += field("why", view.finish.why)
    if view.finish.outcome in ("gave-up", "failed") and incident is not None:
        lines += field("see", f"everstep incident show {incident.id}   everstep logs --first-error")
    return lines
