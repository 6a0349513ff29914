"""`everstep incident ls` and `show`: what disturbed the run, what it cost, what was done. View to text; pure."""

import math

from everstep.analyzer.observations.words import fold
from everstep.journal.view import IncidentView, RunView
from everstep.report.incidents.examined import examined_lines
from everstep.report.incidents.traced import trace_lines
from everstep.report.parts.actions import ACTIONS
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.asked import Asked
from everstep.report.parts.codes import CODES
from everstep.report.parts.commands import command
from everstep.report.parts.evidence import evidence_groups
from everstep.report.parts.layout import fields, table, text_of
from everstep.report.parts.phases import IncidentTimes, times_of
from everstep.report.parts.sentences import action_sentences, event_sentence
from everstep.report.parts.units import NOT_MEASURED, clock, count, duration, percent, plural, short_stamp, stamp


def render_incidents(view: RunView, asked: Asked, style: Style = PLAIN) -> str:
    if not view.incidents:
        return f"No incidents in {view.run}. Try: everstep drill kill-rank 0\n"
    times = {incident.id: times_of(view, incident) for incident in view.incidents.values()}
    head = ("id", "when (UTC)", "code", "who", "lost", "steps", "detect", "outcome")
    rows = [_row(incident, times[incident.id]) for incident in view.incidents.values()]
    lost = [t.lost_s for t in times.values() if t.lost_s is not None]
    total_s = math.fsum(lost)
    wall_s = asked.as_of(view) - (view.started_at if view.started_at is not None else asked.as_of(view))
    share = f" = {percent(total_s / wall_s, 2)} of {duration(wall_s)}" if wall_s > 0 else ""
    unknown = len(times) - len(lost)
    rest = f", {plural(unknown, 'incident')} without a recovery not counted" if unknown else ""
    last = list(view.incidents)[-1]
    total = f"total lost {duration(total_s)}{share}{rest}        everstep incident show {last}"
    return text_of([*table(head, rows, style), total])


def render_incident(view: RunView, incident: IncidentView, style: Style = PLAIN) -> str:
    times = times_of(view, incident)
    lines = [*_verdict(incident, style), *_numbers(incident, times), "", *_timeline(incident, style)]
    examined = examined_lines(incident)
    if examined:
        lines += ["", style("examined", Paint.DIM), *(f"  {line}" for line in examined)]
    trace = trace_lines(view, incident)
    if trace:
        lines += ["", style("trace", Paint.DIM), *(f"  {printable(line)}" for line in trace)]
    lines += ["", *_evidence(incident, style), "", *_decision(incident, style), "", *_do_now(incident, style)]
    return text_of(lines)


def who(incident: IncidentView) -> str:
    verdict = incident.verdict
    if verdict is None:
        return NOT_MEASURED
    ranks = f"rank{'s' if len(verdict.ranks) > 1 else ''} {fold(verdict.ranks)}" if verdict.ranks else ""
    return " ".join(part for part in (ranks, f"({verdict.node})" if verdict.node else "") if part) or NOT_MEASURED


def code_text(incident: IncidentView) -> str:
    if incident.verdict is None:
        return NOT_MEASURED
    code = incident.verdict.code
    return f"{code} {CODES[code].name}" if code in CODES else code


def belief_text(incident: IncidentView) -> str:
    """Describe what is blamed, and how sure that is; empty without a verdict."""
    verdict = incident.verdict
    if verdict is None:
        return ""
    belief = f"blame {verdict.blame}, confidence {verdict.confidence}"
    return f"{verdict.certainty}: {verdict.because}, {belief}" if verdict.certainty and verdict.because else belief


def outcome_text(incident: IncidentView) -> str:
    if incident.outcome is None:
        return "open"
    return incident.outcome.replace("-", " ") + (f" (drill {incident.drill})" if incident.drill else "")


def _row(incident: IncidentView, times: IncidentTimes) -> tuple[str, ...]:
    return (
        incident.id,
        short_stamp(incident.fault_at if incident.fault_at is not None else incident.opened_at),
        code_text(incident),
        who(incident),
        duration(times.lost_s),
        count(incident.lost_steps),
        duration(times.detect_s),
        outcome_text(incident),
    )


def _verdict(incident: IncidentView, style: Style) -> list[str]:
    verdict = incident.verdict
    if verdict is None:
        return [style(f"{incident.id}  nothing concluded yet", Paint.BOLD), f"    {outcome_text(incident)}"]
    return [
        style(f"{incident.id}  {printable(verdict.sentence)}", Paint.BOLD),
        f"    {code_text(incident)}   {printable(belief_text(incident))}   {outcome_text(incident)}",
    ]


def _numbers(incident: IncidentView, times: IncidentTimes) -> list[str]:
    steps = (
        "steps redone not measured" if incident.lost_steps is None else f"{plural(incident.lost_steps, 'step')} redone"
    )
    restored = f"   (restore {duration(times.restore_s)})" if times.restore_s else ""
    numbers = f"  lost {duration(times.lost_s)}   {steps}   detected in {duration(times.detect_s)}"
    phases = " | ".join(f"{phase.name} {duration(phase.length_s)}" for phase in times.phases)
    return [numbers, f"  | {phases} |{restored}"]


def _timeline(incident: IncidentView, style: Style) -> list[str]:
    moments: list[tuple[float, str]] = []
    if incident.fault_at is not None and incident.verdict is not None:
        moments.append((incident.fault_at, f"★ the fault: {printable(incident.verdict.sentence)}"))
    told: set[str] = set()
    for record in incident.records:
        seq = style(f"seq {record.seq}", Paint.DIM)
        sentence = event_sentence(record.event)
        if sentence:
            moments.append((record.event.at, f"  {printable(sentence)}   {seq}"))
        for decided in action_sentences(record):
            if decided not in told:  # the final conclusion is often the first one again
                moments.append((record.at, f"★ {printable(decided)}   {seq}"))
            told.add(decided)
    if incident.recovered_at is not None:
        moments.append((incident.recovered_at, "★ every rank has done a new step"))
    moments.sort(key=lambda moment: moment[0])
    head = style(f"timeline   {stamp(incident.opened_at)}", Paint.DIM)
    return [head, *(f"  {clock(at)} {text}" for at, text in moments)]


def _evidence(incident: IncidentView, style: Style) -> list[str]:
    groups = evidence_groups(incident)
    if not groups:
        return [style("evidence", Paint.DIM), "  none"]
    lines = [style("evidence   strongest first", Paint.DIM)]
    for number, group in enumerate(groups, 1):
        where = "   " + style(f"seq {group.seqs}", Paint.DIM) if group.seqs else ""
        lines.append(f"  {number} {group.first.source:<13} {clock(group.first.at)}  {printable(group.says)}{where}")
        lines += [f"      {line}" for line in printable(group.first.detail).strip().splitlines()]
    return lines


def _decision(incident: IncidentView, style: Style) -> list[str]:
    decision = incident.decision
    lines = [style("decision", Paint.DIM)]
    if decision is None:
        return [*lines, "  none yet"]
    lines += fields("chosen", [f"{printable(decision.chosen)}   (rule {decision.rule})"])
    lines += fields("why", [printable(decision.why)])
    lines += fields("refused", [printable(f"{refusal.what}: {refusal.why}") for refusal in decision.refused])
    if decision.then:
        lines += fields("again", [f"if it comes again: {printable(decision.then)}"])
    if incident.outcome is not None:
        lines += fields("outcome", [f"{outcome_text(incident)}: {printable(incident.close_why)}"])
    return lines


def do_now(incident: IncidentView) -> tuple[str, tuple[str, ...]]:
    """Return what a person should do, and the commands that show more."""
    verdict = incident.verdict
    code = CODES.get(verdict.code) if verdict is not None else None
    action, commands = "", []
    if code is not None:
        action = code.you_do
    elif verdict is not None and verdict.action:
        action = ACTIONS.get(verdict.action, verdict.action)
        commands.append(command("kb", "show", verdict.code))
    of_rank = f" --rank {verdict.ranks[0]}" if verdict is not None and verdict.ranks else ""
    explain, logs = command("explain", incident.id), f"everstep logs --generation {incident.generation}{of_rank}"
    return action, (*commands, explain, logs)


def _do_now(incident: IncidentView, style: Style) -> list[str]:
    action, (*more, explain, logs) = do_now(incident)
    told = [f"  {line}" for line in ([action] if action else []) + more]
    return [style("do now", Paint.DIM), *told, f"  {explain}   {logs}"]
