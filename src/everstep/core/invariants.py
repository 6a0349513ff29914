"""Invariants: what must hold in every state, as code. Run after each step in tests."""

from collections.abc import Iterator, Sequence

from everstep.core.restore.trust import is_corrupted
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Formation, Role, State, Struck
from everstep.core.state.workers import Tally
from everstep.model.facts import Held
from everstep.model.record import Record

_WITH_GENERATION = (Phase.FORMING, Phase.RUNNING, Phase.SETTLING, Phase.STOPPING, Phase.EXAMINING, Phase.PROPOSING)


STORY = 10
"""Records that the message of a broken rule quotes: enough for the input and for what set it up."""

LONGEST = 400
"""Characters of one event: some hold the accounts of a thousand ranks."""


class InvariantError(AssertionError):
    """The message says which rule is broken, by what, and after which records."""


def check(state: State) -> None:
    """Raises InvariantError."""
    if state.phase is Phase.NEW:
        return
    for rule in (_slots, _workers, _phases, _budget):
        rule(state)


def check_step(before: State, after: State, records: Sequence[Record] = ()) -> None:
    """Check what must hold between two states. `records`: the journal so far; a violation quotes the newest ones."""
    try:
        _check_step(before, after)
    except InvariantError as error:
        if not records:
            raise
        raise InvariantError(f"{error}\n{story(records)}") from None


def story(records: Sequence[Record]) -> str:
    """The newest records, one a line: what happened, and what was decided."""
    lines = [f"the last {min(STORY, len(records))} of {len(records)} records:"]
    for record in records[-STORY:]:
        decided = ", ".join(type(action).__name__ for action in record.actions) or "nothing"
        lines.append(f"  #{record.seq} at {record.at:g}, generation {record.gen}: {_short(record)} -> {decided}")
    return "\n".join(lines)


def _short(record: Record) -> str:
    said = repr(record.event)
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."


def _check_step(before: State, after: State) -> None:
    _require(
        after.generation >= before.generation,
        f"generation went back from {before.generation} to {after.generation}",
    )
    _require(after.generation - before.generation <= 1, "a generation was skipped")
    _require(not before.is_over or after.is_over, "a run that was over continued")
    if after.generation > before.generation:
        for broken in _broken_promises(before, after):
            raise InvariantError(broken)
    for node, member in before.members.items():
        if member.role is Role.OUT and node in after.members:
            _require(after.members[node].role is Role.OUT, f"{node} was out and came back")
    _require(not after.unlisted, f"not in the table of phases: {after.unlisted}")
    check(after)


def _slots(state: State) -> None:
    spec = state.spec
    _require(spec is not None and len(state.slots) == spec.num_slots, "the number of slots changed")
    taken = [node for node in state.slots if node is not None]
    empty = [slot for slot, node in enumerate(state.slots) if node is None]
    if spec is not None and spec.is_elastic:
        _require(spec.min_slots <= spec.num_slots <= spec.max_slots, f"{spec.num_slots} slots")
    told = (state.num_vacant, state.first_vacant)
    _require(told == (len(empty), min(empty, default=None)), f"vacant slots {told}, and in truth {empty}")
    holders = set(taken)
    _require(len(taken) == len(holders), f"a node holds two slots: {state.slots}")
    for member in state.members.values():
        holds = member.role is Role.ACTIVE
        _require(holds == (member.slot is not None), f"{member.node}: role {member.role}, slot {member.slot}")
        _require(
            holds == (member.node in holders), f"{member.node}: role {member.role}, in a slot: {member.node in holders}"
        )


def _workers(state: State) -> None:
    spec = state.spec
    assert spec is not None
    tally = Tally.of(state.workers.values())
    _require(state.tally == tally, f"{state.tally}, and the workers make it {tally}")
    if state.phase in _WITH_GENERATION:
        _require(sorted(state.workers) == list(range(spec.world_size)), f"ranks {sorted(state.workers)}")


def _phases(state: State) -> None:
    if state.phase in (Phase.SETTLING, Phase.PROPOSING):
        _require(state.incident is not None, f"{state.phase} without an incident")
    if state.phase is Phase.STOPPING:
        _require(bool(state.waiting), "stopping, and no node is waited for")
        has_reason = state.incident is not None or state.ending is not None or state.updating or state.growing
        _require(bool(has_reason), "stopping for no reason")
    if state.phase is Phase.EXAMINING:
        examination = state.incident.examination if state.incident is not None else None
        is_awaited = examination is not None and not examination.is_over and bool(examination.waiting)
        _require(is_awaited, "examining, and no node is waited for")
    if state.standstill is not None:
        _require(state.phase is Phase.RUNNING, f"{state.phase}, and the job stands still")
    if state.phase is Phase.SAVING:
        _require(state.persisting is not None and state.ending is not None, "saving, and nothing is on its way")
    _require(state.is_over <= (state.ending is not None), "over without an ending")


def _budget(state: State) -> None:
    _require(list(state.restarts) == sorted(state.restarts), "restarts are not in order")


def _broken_promises(before: State, after: State) -> Iterator[str]:
    """A sentence for each rule that this formation breaks: every rank can have the step that it resumes from. Written
    from the state alone, so that a fault of `holdings` does not excuse itself."""
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
    """The reported snapshots in the rank's own memory, or its copies on `node`, if one is given."""
    if node:
        return [held for held in state.copies.get(node, ()) if held.rank == rank]
    return [state.held[rank]] if rank in state.held else []


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
