"""Incidents as rows of a list and as a page of their own. Pure; the words are those of `everstep incident`."""

import math

from everstep.goodput.figures import Goodput
from everstep.journal.view import IncidentView, RunView
from everstep.model.events import NodeLost
from everstep.report.incidents.examined import examined_lines
from everstep.report.incidents.incident import belief_text, do_now, who
from everstep.report.incidents.traced import trace_story, what_there_is
from everstep.report.parts.codes import CODES
from everstep.report.parts.evidence import evidence_groups
from everstep.report.parts.phases import times_of
from everstep.report.parts.sentences import action_sentences, event_sentence
from everstep.report.picture.losses import loss_moments
from everstep.report.picture.schema import IncidentPage, IncidentRow, Moment, PhaseLength, Piece, Similar

MAX_SIMILAR = 12
MAX_MOMENTS = 400
"""A page that lists more is not read; the journal has all of them."""


def incident_row(view: RunView, incident: IncidentView) -> IncidentRow:
    verdict, times = incident.verdict, times_of(view, incident)
    return IncidentRow(
        id=incident.id,
        at=incident.fault_at if incident.fault_at is not None else incident.opened_at,
        code="" if verdict is None else verdict.code,
        name=CODES[verdict.code].name if verdict is not None and verdict.code in CODES else "",
        who=who(incident),
        node=None if verdict is None else verdict.node,
        sentence="nothing concluded yet" if verdict is None else verdict.sentence,
        outcome=incident.outcome,
        drill=incident.drill,
        lost_s=times.lost_s,
        lost_steps=incident.lost_steps,
        detect_s=times.detect_s,
    )


def incident_page(view: RunView, incident: IncidentView, goodput: Goodput | None = None) -> IncidentPage:
    times, decision = times_of(view, incident), incident.decision
    cost = None if goodput is None else goodput.incidents.get(incident.id)
    action, commands = do_now(incident)
    trace = trace_story(view, incident)
    return IncidentPage(
        row=incident_row(view, incident),
        belief=belief_text(incident),
        close_why=incident.close_why,
        recovered_s=None if times.recovered is None else max(0.0, times.recovered - times.detected),
        cost_gpu_h=math.fsum(cost.values()) / 3600 if cost else None,
        phases=tuple(PhaseLength(name=phase.name, length_s=phase.length_s) for phase in times.phases),
        restore_s=times.restore_s,
        timeline=tuple(_timeline(view, incident)[:MAX_MOMENTS]),
        evidence=tuple(
            Piece(source=g.first.source, at=g.first.at, says=g.says, detail=g.first.detail, seqs=g.seqs)
            for g in evidence_groups(incident)
        ),
        examined=tuple(examined_lines(incident)),
        trace=tuple(what_there_is(trace)) if trace is not None else (),
        trace_opens="" if trace is None else trace.open_with,
        chosen="" if decision is None else decision.chosen,
        rule="" if decision is None else decision.rule,
        why="" if decision is None else decision.why,
        then="" if decision is None else decision.then,
        refused=() if decision is None else tuple((refusal.what, refusal.why) for refusal in decision.refused),
        similar=tuple(_similar(view, incident)),
        do_now=action,
        commands=commands,
        generation=incident.generation,
    )


def _timeline(view: RunView, incident: IncidentView) -> list[Moment]:
    found = loss_moments(view, incident)
    if incident.fault_at is not None and incident.verdict is not None:
        says = f"the fault: {incident.verdict.sentence}"
        found.append(Moment(at=incident.fault_at, says=says, is_key=True, seq=None))
    told: set[str] = set()
    lost: set[str] = set()
    for record in incident.records:
        if isinstance(record.event, NodeLost):
            if record.event.node in lost:
                continue  # the engine reported it once more, and later
            lost.add(record.event.node)
        if sentence := event_sentence(record.event):
            found.append(Moment(at=record.event.at, says=sentence, is_key=False, seq=record.seq))
        for decided in action_sentences(record):
            if decided not in told:  # the final conclusion is often the first one again
                found.append(Moment(at=record.at, says=decided, is_key=True, seq=record.seq))
            told.add(decided)
    if incident.recovered_at is not None:
        says = "every rank has done a new step"
        found.append(Moment(at=incident.recovered_at, says=says, is_key=True, seq=None))
    return sorted(found, key=lambda moment: moment.at)


def _similar(view: RunView, incident: IncidentView) -> list[Similar]:
    """Others of this run, newest first: by code, machine, and place in the program."""
    found = []
    for other in reversed(view.incidents.values()):
        if other.id == incident.id or not (why := _alike(incident, other)):
            continue
        at = other.fault_at if other.fault_at is not None else other.opened_at
        lost_s = times_of(view, other).lost_s
        found.append(Similar(id=other.id, at=at, why=why, lost_s=lost_s, outcome=other.outcome))
        if len(found) == MAX_SIMILAR:
            break
    return found


def _alike(one: IncidentView, other: IncidentView) -> str:
    mine, its = one.verdict, other.verdict
    if mine is None or its is None:
        return ""
    same = [f"same code {mine.code}"] if mine.code == its.code else []
    same += [f"same node {mine.node}"] if mine.node and mine.node == its.node else []
    same += [f"same place {mine.place}"] if mine.place and mine.place == its.place else []
    return ", ".join(same)
