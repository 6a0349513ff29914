"""What must hold in every state, as code. Run after each step in tests."""

from collections.abc import Sequence

from everstep.core.invariants_restore import broken_promises
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Role, State
from everstep.core.state.tally import Tally
from everstep.model.record import Record

_WITH_GENERATION = (Phase.FORMING, Phase.RUNNING, Phase.SETTLING, Phase.STOPPING, Phase.EXAMINING, Phase.PROPOSING)


STORY = 10
"""Records that the message of a broken rule tells: enough for the input and for what set it up."""

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
    """What must hold between two states. `records`: the journal so far; the newest are told where a rule is broken."""
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
        for broken in broken_promises(before, after):
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


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)
