"""What must hold when a generation has just been formed: every rank can have the step that it goes on from.

Part of `check`. Written from the state alone and not with `holdings`, so that a fault there does not excuse itself.
"""

from collections.abc import Iterator

from everstep.core.restore.trust import is_corrupted
from everstep.core.state.schema import Formation, Role, State, Struck
from everstep.model.facts import Held


def broken_promises(before: State, after: State) -> Iterator[str]:
    """A sentence for each rule that this formation breaks."""
    formation = after.formation
    if formation is None:
        yield "a generation without a formation"
        return
    if formation.resume_step is None:
        if formation.restore_path or formation.fetch:
            yield "nothing to restore, and yet from somewhere"
        return
    yield from _unhad(after, formation, formation.resume_step)
    yield from (f"{struck} is tried again" for struck in before.struck if _is_tried(after, formation, struck))
    if not _is_trusted(before, after, formation):
        yield f"step {formation.resume_step} is not trusted, and the incident is a corruption"


def _unhad(after: State, formation: Formation, step: int) -> Iterator[str]:
    path = formation.restore_path
    if path:
        if not any(each.path == path and each.step == step for each in after.checkpoints):
            yield f"no checkpoint {path} of step {step}"
        return
    for fetch in formation.fetch:
        holder = after.members.get(fetch.node)
        if holder is None or holder.role is Role.OUT or not holder.endpoint:
            yield f"{fetch.node} is not there to fetch from"
        if fetch.step != step or not any(step in held.steps for held in _told(after, fetch.rank, fetch.node)):
            yield f"{fetch.node} does not hold step {step} of rank {fetch.rank}"
    fetched = {fetch.rank for fetch in formation.fetch}
    if formation.former_world:
        if fetched != set(range(formation.former_world)):
            yield f"step {step} of {formation.former_world} ranks, and of them {sorted(fetched)}"
        return
    for rank in range(after.spec.world_size if after.spec is not None else 0):
        if rank not in fetched and not any(step in held.steps for held in _told(after, rank, "")):
            yield f"rank {rank} does not have step {step}"


def _is_tried(after: State, formation: Formation, struck: Struck) -> bool:
    if struck.path:
        renewed = any(each.path == struck.path and each.at > struck.at for each in after.checkpoints)
        return struck.path == formation.restore_path and not renewed
    if formation.restore_path or struck.step != formation.resume_step or struck.rank is None:
        return False
    source = next((fetch.node for fetch in formation.fetch if fetch.rank == struck.rank), "")
    entries = [
        (step, generation)
        for held in _told(after, struck.rank, struck.node)
        for step, generation in zip(held.steps, held.generations, strict=False)
    ]
    renewed = any(step == struck.step and generation >= struck.generation for step, generation in entries)
    return source == struck.node and not renewed


def _is_trusted(before: State, after: State, formation: Formation) -> bool:
    """Where no trusted step was to be had, nothing is trusted any more, and that is on record."""
    step = formation.resume_step
    if not is_corrupted(before.incident) or after.trusted_step is None or step is None:
        return True
    passed = {each.path for each in after.checkpoints if each.is_trusted}
    is_older = before.trusted_step is not None and step <= before.trusted_step
    return is_older or formation.restore_path in passed


def _told(state: State, rank: int, node: str) -> list[Held]:
    """Of the rank's own memory; of its copies on `node`, if one is given."""
    if node:
        return [held for held in state.copies.get(node, ()) if held.rank == rank]
    return [state.held[rank]] if rank in state.held else []
