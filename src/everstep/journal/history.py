"""A `RunView` to the `History` that `goodput` accounts for. Pure; called by `cli` and by everything that shows
goodput."""

import msgspec

from everstep.goodput.history import Ending, EndKind, GenerationHistory, History
from everstep.journal.view import GenerationView, RunView
from everstep.model.spec import Launch


def history_of(
    view: RunView, now: float | None = None, generations: tuple[GenerationHistory, ...] | None = None
) -> History:
    """`now`: the time of asking, for a run that is alive. Without it the last record is the end of what is known."""
    begun_at = view.started_at if view.started_at is not None else (view.last_at or 0.0)
    until = view.finished_at if view.finished_at is not None else (view.last_at or begun_at)
    if now is not None and not view.is_over:
        until = max(until, now)
    spec = view.spec
    if generations is None:
        generations = tuple(_generation(view, index) for index in range(len(view.generations)))
    return History(
        begun_at=begun_at,
        until=until,
        world_size=_num_ranks(view),
        generations=generations,
        is_over=view.is_over,
        has_runtime=spec is None or spec.launch is not Launch.COMMAND,
        gaps=tuple((gap.begin, gap.end) for gap in view.gaps),
    )


def _num_ranks(view: RunView) -> int:
    """The most that there were: what a node costs that is missing is counted as well."""
    now = 0 if view.spec is None else view.spec.world_size
    if view.spec is None or not view.spec.is_elastic:
        return now
    return max((len(generation.node_of) for generation in view.generations), default=now)


def _generation(view: RunView, index: int) -> GenerationHistory:
    generation = view.generations[index]
    done_at = {rank: e.at for rank, e in generation.exits.items() if e.succeeded and not e.stopped_by_us}
    return GenerationHistory(
        formed_at=generation.begun_at,
        spawned={rank: started.at for rank, started in generation.started.items()},
        accounts=generation.accounts,
        done_at=done_at,
        resumed_step=_resumed_step(view, generation),
        ending=_ending(view, index),
    )


def _resumed_step(view: RunView, generation: GenerationView) -> int | None:
    if generation.first_step is not None:
        return generation.first_step
    if generation.resume_step is not None and generation is view.generations[-1] and not view.is_over:
        return generation.resume_step + 1  # it has not stepped yet, and will begin there
    return None


def _ending(view: RunView, index: int) -> Ending | None:
    generation = view.generations[index]
    incident = view.incidents.get(generation.incident or "")
    following = view.generations[index + 1].begun_at if index + 1 < len(view.generations) else None
    if incident is not None:
        at = incident.fault_at if incident.fault_at is not None else incident.opened_at
        decided_at = incident.decided_at if incident.decided_at is not None else (view.last_at or incident.opened_at)
        return Ending(
            kind=EndKind.FAULT,
            at=at,
            detected_at=max(at, incident.opened_at),
            decided_at=max(at, incident.opened_at, decided_at),
            incident=incident.id,
            unseen_ranks=_unseen_ranks(view, generation, at, following),
        )
    gap = next((g for g in view.gaps if g.begin >= generation.begun_at and g.end <= (following or g.end)), None)
    if gap is not None:
        return _plain(EndKind.CUT, gap.begin)
    if generation.stop_asked_at is not None:
        is_update = following is not None or (not view.is_over and view.stop_requested is None)
        return _plain(EndKind.UPDATED if is_update else EndKind.STOPPED, generation.stop_asked_at)
    if following is not None:
        return _plain(EndKind.CUT, following)
    if view.finished_at is not None:
        return _plain(EndKind.DONE, view.finished_at)
    return None


def _plain(kind: EndKind, at: float) -> Ending:
    return Ending(kind=kind, at=at, detected_at=at, decided_at=at)


def _unseen_ranks(view: RunView, generation: GenerationView, since: float, until: float | None) -> frozenset[int]:
    """Ranks of agents that were lost with this generation: their last steps were never reported."""
    lost = {loss.node for loss in view.losses if since <= loss.at <= (until or view.last_at or 0.0)}
    return frozenset(rank for rank, node in generation.node_of.items() if node in lost)


class Sample(msgspec.Struct, kw_only=True):
    """Some ranks of a large job, and what is known of its generations that have ended for good."""

    ranks: tuple[int, ...]
    settled: dict[int, GenerationHistory] = {}  # by the generation's number


def sampled(view: RunView, sample: Sample, now: float | None = None) -> History:
    """The history of these ranks alone, numbered anew; a generation that has ended for good is looked at once."""
    history = history_of(
        view, now, generations=tuple(sampled_generation(view, i, sample) for i in range(len(view.generations)))
    )
    return msgspec.structs.replace(history, world_size=len(sample.ranks))


def sampled_generation(view: RunView, index: int, sample: Sample) -> GenerationHistory:
    """One generation, of the sample's ranks."""
    number = view.generations[index].number
    known = sample.settled.get(number)
    if known is not None:
        return known
    whole = _generation(view, index)
    places = {rank: place for place, rank in enumerate(sample.ranks)}
    ending = whole.ending
    if ending is not None:
        unseen = frozenset(places[rank] for rank in sample.ranks if rank in ending.unseen_ranks)
        ending = msgspec.structs.replace(ending, unseen_ranks=unseen)
    few = GenerationHistory(
        formed_at=whole.formed_at,
        spawned={place: whole.spawned[rank] for rank, place in places.items() if rank in whole.spawned},
        accounts={place: whole.accounts[rank] for rank, place in places.items() if rank in whole.accounts},
        done_at={place: whole.done_at[rank] for rank, place in places.items() if rank in whole.done_at},
        resumed_step=whole.resumed_step,
        ending=ending,
    )
    incident = view.incidents.get(view.generations[index].incident or "")
    if index + 2 < len(view.generations) and (incident is None or not incident.is_open):
        sample.settled[number] = few
    return few
