"""Generations as segments of one time axis: training, lost work, recovery. Pure.

The lane is of the job as a whole; where the seconds of each rank went is the account's business (`goodput`).
"""

from everstep.journal.view import GenerationView, IncidentView, RunView
from everstep.report.picture.schema import GenerationRow, Lane, Segment


def generation_row(view: RunView, index: int, loop_at: float | None = None) -> GenerationRow:
    """`loop_at`: where it is known already when every rank had begun its first step."""
    generation = view.generations[index]
    return GenerationRow(
        number=generation.number,
        begun_at=generation.begun_at,
        resume_step=generation.resume_step,
        why=generation.why,
        version=generation.version,
        segments=tuple(s for s in _segments(view, index, loop_at) if s.end is None or s.end > s.begin),
    )


def is_settled(view: RunView, index: int) -> bool:
    """Nothing that comes can change this generation's segments."""
    if index + 1 >= len(view.generations):
        return False
    incident = view.incidents.get(view.generations[index].incident or "")
    return incident is None or not incident.is_open


def before_first(view: RunView) -> Segment | None:
    """From the start of the run to the first generation."""
    if view.started_at is None:
        return None
    end = view.generations[0].begun_at if view.generations else view.finished_at
    return Segment(begin=view.started_at, end=end, lane=Lane.STARTING)


def _segments(view: RunView, index: int, loop_at: float | None) -> list[Segment]:
    generation = view.generations[index]
    incident = view.incidents.get(generation.incident or "")
    following = view.generations[index + 1].begun_at if index + 1 < len(view.generations) else None
    ends_at = _ends_at(view, generation, incident, following)
    led_here = next((i for i in view.incidents.values() if i.next_generation == generation.number), None)
    first = Segment(begin=generation.begun_at, end=None, lane=Lane.STARTING)
    if led_here is not None:
        first = Segment(begin=generation.begun_at, end=None, lane=Lane.RECOVERING, incident=led_here.id)
    loop_at = loop_at_of(generation) if loop_at is None else loop_at
    if loop_at is None or (ends_at is not None and loop_at >= ends_at):
        found = [_until(first, ends_at)]
    else:
        found = [_until(first, loop_at), *_trained(generation, incident, loop_at, ends_at)]
    if ends_at is not None and ends_at != view.finished_at:
        found += _afterwards(view, incident, ends_at, following)
    return found


def _ends_at(
    view: RunView, generation: GenerationView, incident: IncidentView | None, following: float | None
) -> float | None:
    if incident is not None:
        return incident.fault_at if incident.fault_at is not None else incident.opened_at
    gap = next((g for g in view.gaps if g.begin >= generation.begun_at and g.end <= (following or g.end)), None)
    if gap is not None:
        return gap.begin
    if generation.stop_asked_at is not None:
        return generation.stop_asked_at
    if following is not None:
        return following
    return _all_ended_at(generation, view.finished_at)


def _all_ended_at(generation: GenerationView, finished_at: float | None) -> float | None:
    """The last rank's end; what comes after it is idle, as the run may still write a checkpoint."""
    exits = generation.exits
    if not exits or not generation.node_of.keys() <= exits.keys():
        return finished_at
    last = max(exit_.at for exit_ in exits.values())
    return last if finished_at is None else min(last, finished_at)


def loop_at_of(generation: GenerationView) -> float | None:
    """When every rank had begun its first step; or had entered the program, if steps are never reported."""
    found: float | None = None
    for account in generation.accounts.values():
        at = account.loop_at if account.loop_at is not None else account.first_step_at
        if at is None:
            return None
        found = at if found is None else max(found, at)
    return found if len(generation.accounts) >= len(generation.node_of) else None


def _trained(
    generation: GenerationView, incident: IncidentView | None, loop_at: float, ends_at: float | None
) -> list[Segment]:
    lost_s = 0.0
    if incident is not None and incident.lost_steps and ends_at is not None:
        account = next(iter(generation.accounts.values()))
        if account.num_steps and account.last_step_at is not None:
            per_step = max(0.0, account.last_step_at - loop_at) / account.num_steps
            lost_s = min(incident.lost_steps * per_step + max(0.0, ends_at - account.last_step_at), ends_at - loop_at)
    kept = Segment(begin=loop_at, end=None, lane=Lane.PRODUCTIVE)
    if ends_at is None or incident is None or lost_s <= 0.0:
        return [_until(kept, ends_at)]
    lost_from = ends_at - lost_s
    return [_until(kept, lost_from), Segment(begin=lost_from, end=ends_at, lane=Lane.LOST, incident=incident.id)]


def _afterwards(view: RunView, incident: IncidentView | None, begin: float, following: float | None) -> list[Segment]:
    end = following if following is not None else view.finished_at
    if incident is None:
        return [Segment(begin=begin, end=end, lane=Lane.IDLE)]
    return [Segment(begin=begin, end=end, lane=Lane.RECOVERING, incident=incident.id)]


def _until(segment: Segment, end: float | None) -> Segment:
    return Segment(begin=segment.begin, end=end, lane=segment.lane, incident=segment.incident)
