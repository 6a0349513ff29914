"""Runs to a period. A run is taken apart one at a time, so that a directory of thousands fits into memory. Pure."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import Goodput, goodput_of
from everstep.goodput.slices import slices_of
from everstep.journal.history import Sample, history_of, sampled
from everstep.journal.view import IncidentView, NodeView, RunView
from everstep.model.verdict import Blame
from everstep.report.parts.asked import Asked
from everstep.report.parts.codes import CODES
from everstep.report.parts.phases import times_of
from everstep.report.period.advice import advice_of
from everstep.report.period.schema import Class, Disturbance, Period, RunPart, Seconds, Slice, Unread
from everstep.report.picture.costs import EXACT, GROUPS, SAMPLED

NUM_SLICES = 14
MAX_CLASSES = 20


def edges_of(since: float, until: float, number: int = NUM_SLICES) -> tuple[float, ...]:
    """The period in equal parts."""
    return tuple(since + (until - since) * place / number for place in range(number + 1))


def part_of(name: str, view: RunView, asked: Asked, edges: Sequence[float]) -> RunPart | None:
    """Return a run's part of the period; None: the run was before or after it."""
    num_ranks = view.spec.world_size if view.spec is not None else 0
    is_large = num_ranks * max(1, len(view.generations)) > EXACT
    now = asked.at if asked.has_controller and not view.is_over else None
    sample = Sample(ranks=tuple(num_ranks * place // SAMPLED for place in range(SAMPLED)))
    history = sampled(view, sample, now) if is_large else history_of(view, now)
    if history.until < edges[0] or history.begun_at > edges[-1]:
        return None
    scale = num_ranks / history.world_size if history.world_size else 0.0
    goodput = goodput_of(history)
    costs = goodput.incidents
    incidents = [
        _disturbance(view, incident, math.fsum(costs.get(incident.id, {}).values()) * scale)
        for incident in view.incidents.values()
        if incident.drill is None and edges[0] <= _at(incident) <= edges[-1]
    ]
    drilled = [
        math.fsum(costs.get(incident.id, {}).values()) * scale
        for incident in view.incidents.values()
        if incident.drill is not None and edges[0] <= _at(incident) <= edges[-1]
    ]
    return RunPart(
        name=name,
        program="" if view.spec is None else " ".join((view.spec.program, *view.spec.args)),
        status="controller gone" if asked.is_gone(view) else str(view.status).replace("-", " "),
        world_size=num_ranks,
        begun_at=history.begun_at,
        until=history.until,
        step=None if view.stepped is None else view.stepped.last_step,
        seconds=tuple(_grouped(seconds, scale) for seconds in slices_of(history, edges)),
        incidents=tuple(incidents),
        drill_rank_s=math.fsum(drilled),
        start_rank_s=_start_s(goodput) * scale if history.begun_at >= edges[0] else 0.0,
        sampled_ranks=history.world_size if is_large else None,
    )


def _start_s(goodput: Goodput) -> float:
    """In the phases of a recovery, and of no incident."""
    phases = GROUPS["recovery"]
    of_incidents = (cost.get(bucket, 0.0) for cost in goodput.incidents.values() for bucket in phases)
    return max(0.0, math.fsum(goodput.seconds[bucket] for bucket in phases) - math.fsum(of_incidents))


def machine_of(view: RunView, node: str) -> str:
    """Names of nodes are a run's own; a host is the same machine in all runs, unless several nodes are on it at once:
    one after the other, they are the same machine again."""
    known = view.nodes.get(node)
    if known is None or not known.host:
        return node
    others = (each for each in view.nodes.values() if each.host == known.host and each is not known)
    return f"{known.host}/{node}" if any(_are_at_once(known, each) for each in others) else known.host


def _are_at_once(one: NodeView, other: NodeView) -> bool:
    return all(first.lost is None or second.joined_at < first.lost.at for first, second in ((one, other), (other, one)))


def period_of(where: str, parts: Sequence[RunPart], edges: Sequence[float], unread: Iterable[Unread] = ()) -> Period:
    incidents = sorted((i for part in parts for i in part.incidents), key=lambda i: -i.at)
    slices = tuple(_slice(parts, incidents, edges, place) for place in range(len(edges) - 1))
    seconds = {name: math.fsum(each.seconds[name] for each in slices) for name in GROUPS}
    rank_s = math.fsum(seconds.values())
    classes = _classes(incidents, lambda i: i.code, lambda i: i.name)
    offenders = [c for c in _classes(incidents, lambda i: i.machine, lambda i: i.machine) if c.key and c.number > 1]
    half = len(edges) // 2
    return Period(
        where=where,
        since=edges[0],
        until=edges[-1],
        ettr=ettr_of(seconds),
        rank_s=rank_s,
        seconds=seconds,
        slices=slices,
        runs=tuple(sorted(parts, key=lambda part: -part.until)),
        classes=tuple(classes[:MAX_CLASSES]),
        offenders=tuple(offenders[:MAX_CLASSES]),
        incidents=tuple(incidents),
        mtbf_h=_mtbf_h(parts, incidents, edges[0], edges[-1]),
        mtbf_before_h=_mtbf_h(parts, incidents, edges[0], edges[half]),
        mtbf_after_h=_mtbf_h(parts, incidents, edges[half], edges[-1]),
        advice=advice_of(seconds, math.fsum(part.start_rank_s for part in parts), rank_s, classes, offenders),
        unread=tuple(unread),
    )


def _disturbance(view: RunView, incident: IncidentView, rank_s: float) -> Disturbance:
    verdict = incident.verdict
    return Disturbance(
        id=incident.id,
        run=view.run,
        at=_at(incident),
        code="" if verdict is None else verdict.code,
        name=CODES[verdict.code].name if verdict is not None and verdict.code in CODES else "",
        machine=_blamed(view, incident),
        sentence="nothing concluded yet" if verdict is None else verdict.sentence,
        outcome=incident.outcome,
        lost_s=times_of(view, incident).lost_s,
        lost_steps=incident.lost_steps,
        rank_s=rank_s,
    )


def _blamed(view: RunView, incident: IncidentView) -> str:
    """A verdict names a node also where the program is at fault: that says nothing about the machine."""
    verdict = incident.verdict
    is_machine = verdict is not None and verdict.blame is Blame.MACHINE
    return machine_of(view, verdict.node) if verdict is not None and is_machine and verdict.node else ""


def _at(incident: IncidentView) -> float:
    return incident.fault_at if incident.fault_at is not None else incident.opened_at


def _grouped(seconds: dict[Bucket, float], scale: float) -> Seconds:
    return {name: scale * math.fsum(seconds[bucket] for bucket in buckets) for name, buckets in GROUPS.items()}


def ettr_of(seconds: Mapping[str, float]) -> float | None:
    """By groups of the page's bar. None: nothing ran, or nothing of what ran is known."""
    whole = math.fsum(seconds.values())
    is_unknown = seconds["productive"] == 0.0 and seconds["not measured"] > 0.0
    return seconds["productive"] / whole if whole > 0.0 and not is_unknown else None


def _slice(parts: Sequence[RunPart], incidents: Sequence[Disturbance], edges: Sequence[float], place: int) -> Slice:
    begin, end = edges[place], edges[place + 1]
    seconds = {name: math.fsum(part.seconds[place][name] for part in parts) for name in GROUPS}
    number = sum(begin <= i.at < end for i in incidents)
    return Slice(begin=begin, end=end, seconds=seconds, ettr=ettr_of(seconds), num_incidents=number)


def _classes(
    incidents: Sequence[Disturbance], key_of: Callable[[Disturbance], str], name_of: Callable[[Disturbance], str]
) -> list[Class]:
    groups: defaultdict[str, list[Disturbance]] = defaultdict(list)
    for incident in incidents:
        groups[key_of(incident)].append(incident)
    found = []
    for key, mine in groups.items():
        lost_s = [i.lost_s for i in mine if i.lost_s is not None]
        steps = [i.lost_steps for i in mine if i.lost_steps is not None]
        codes = tuple(dict.fromkeys(i.code for i in mine if i.code))
        found.append(
            Class(
                key=key,
                name=name_of(mine[0]),
                number=len(mine),
                rank_s=math.fsum(i.rank_s for i in mine),
                lost_s=math.fsum(lost_s) if lost_s else None,
                lost_steps=sum(steps) if steps else None,
                codes=codes,
                newest=f"{mine[0].id} of {mine[0].run}",
            )
        )
    return sorted(found, key=lambda c: (-c.rank_s, -c.number, c.key))


def _mtbf_h(parts: Sequence[RunPart], incidents: Sequence[Disturbance], begin: float, end: float) -> float | None:
    """Hours in which a run was there, per incident; None without an incident."""
    number = sum(begin <= i.at <= end for i in incidents)
    running_s = math.fsum(max(0.0, min(part.until, end) - max(part.begun_at, begin)) for part in parts)
    return running_s / number / 3600.0 if number else None
