"""Forming a generation: nodes for every slot, a store, then StartWorkers everywhere."""

import msgspec

from everstep.core.restore import flaws, holdings, restoring, trust
from everstep.core.run import ending, neighbours, updates
from everstep.core.state.frozenmap import FrozenMap, Names
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Formation, State
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.core.state.workers import Worker
from everstep.model.actions import NOT_TRUSTED, AcquireNode, IncidentClosed, OpenStore, Refused, StartWorkers
from everstep.model.events import CheckpointsFound, RunReopened, RunStarted, StoreOpened
from everstep.model.facts import Fetch
from everstep.model.spec import Launch


def on_run_started(turn: Turn, event: RunStarted) -> None:
    spec = event.spec
    turn.enter(Phase.GATHERING, run=event.run, spec=spec)
    turn.empty_slots()
    ask_for_store(turn, 0)
    for slot in range(spec.num_slots):
        acquire(turn, f"slot {slot} of {spec.num_slots} has no node yet")
    for number in range(spec.num_standby):
        acquire(turn, f"standby {number + 1} of {spec.num_standby}")


def on_run_reopened(turn: Turn, event: RunReopened) -> None:
    """All processes of the earlier attempt are gone, with what they held in memory. Generations are numbered on."""
    if turn.state.incident is not None:
        turn.do(
            IncidentClosed(
                incident=turn.incident.id,
                outcome="superseded",
                why=f"the run was started again as attempt {event.attempt}",
            )
        )
    turn.drop_timers()
    turn.begin_workers(())
    if turn.spec.is_elastic:
        turn.set(spec=msgspec.structs.replace(turn.spec, num_slots=turn.spec.max_slots))
    turn.empty_slots()
    turn.enter(
        Phase.GATHERING,
        is_reopened=True,
        attempt=event.attempt,
        members=FrozenMap(),
        requests=(),
        stores={},
        store_asked=turn.state.generation,
        held=FrozenMap(),
        copies=FrozenMap(),
        waiting=Names(),
        ending=None,
        incident=None,
        fruitless=None,
        is_backing_off=False,
        formation=None,
        alerts=(),
        unjudged=(),
        deferred=(),
        pending_drills={},
        checkpoints_known=False,
        persisting=None,
        uncommitted={},
        updating="",
        growing=0,
        fixed_slots=0,
        fixed_why="",
        proposed_version="",
        struck=tuple(struck for struck in turn.state.struck if struck.is_damaged),
        unread=None,
        flaw=None,
    )
    ask_for_store(turn, turn.state.generation + 1)
    for slot in range(turn.spec.num_slots):
        acquire(turn, f"slot {slot} has no node in attempt {event.attempt}")
    for number in range(turn.spec.num_standby):
        acquire(turn, f"standby {number + 1} of {turn.spec.num_standby}")


def on_store_opened(turn: Turn, event: StoreOpened) -> None:
    if event.generation <= turn.state.generation:
        turn.set(stale=turn.state.stale + 1)
        return
    turn.set(stores={event.generation: (event.host, event.port)})
    form_if_possible(turn)


def on_checkpoints_found(turn: Turn, event: CheckpointsFound) -> None:
    """Nothing forms before this, where there is a persistent tier."""
    if event.why:
        where = turn.spec.checkpoint_dir
        why = f"{where} cannot be read ({event.why}); beginning at step 0 in silence would be worse than to end here"
        ending.give_up(turn, why)
        return
    turn.set(checkpoints=event.checkpoints, checkpoints_known=True)
    form_if_possible(turn)


def acquire(turn: Turn, why: str, *, is_urgent: bool = True) -> None:
    number = turn.state.num_requests + 1
    request = f"r{number}"
    turn.set(num_requests=number, requests=(*turn.state.requests, request))
    turn.do(AcquireNode(request=request, is_urgent=is_urgent, why=why))
    turn.start_timer(
        Timer(TimerKind.NODE, request), turn.policy.node_timeout_s, f"the engine has not given {request} in time"
    )


def ask_for_store(turn: Turn, generation: int) -> None:
    """Only when no rank of an older one lives: it takes the older one's port, and with it the older one's place."""
    if turn.state.store_asked >= generation:
        return
    turn.set(store_asked=generation)
    turn.do(OpenStore(generation=generation, why=f"generation {generation} gets a store of its own, at the same port"))


def on_node_timer(turn: Turn, request: str, _due_at: float) -> None:
    if request in turn.state.requests and turn.state.num_vacant and not turn.spec.is_elastic:
        why = f"no node came within {turn.policy.node_timeout_s:g} s for an empty slot (policy node_timeout_s)"
        ending.give_up(turn, why)


def form_if_possible(turn: Turn) -> None:
    """Start the next generation when every slot has a node and its store is open; otherwise wait."""
    state = turn.state
    coming = state.generation + 1
    if state.is_backing_off or state.phase is not Phase.GATHERING or state.num_vacant or coming not in state.stores:
        return
    if turn.spec.checkpoint_dir and not state.checkpoints_known:
        return
    choice = restoring.choose(turn)
    if choice.must_end:
        ending.give_up(turn, choice.why)
        return
    _settle_history(turn, choice)
    version = updates.merge(turn) if len(turn.state.candidates) > 1 else None  # the program was never changed
    state = turn.state
    host, port = state.stores[coming]
    restore = choice.restore
    formation = Formation(
        store_host=host,
        store_port=port,
        resume_step=None if restore is None else restore.step,
        fetch=() if restore is None else restore.fetch,
        former_world=0 if restore is None else restore.former_world,
        restore_path="" if restore is None else restore.path,
        at=turn.at,
        why=choice.why,
        version=version,
    )
    turn.enter(Phase.FORMING, generation=coming, formation=formation)
    turn.begin_workers(
        Worker(rank=rank, node=node)
        for slot, node in enumerate(state.slots)
        if node is not None
        for rank in turn.spec.ranks_of(slot)
    )
    if state.incident is not None:
        turn.set_incident(restarted=True)
    turn.do(*start_actions(turn))
    if turn.state.trusted_step is not None:
        turn.do(*trust.trust_actions(turn))
    if turn.spec.launch is not Launch.COMMAND:
        limit_s = start_limit_s(turn.state, turn.policy)
        turn.start_timer(Timer.of_generation(TimerKind.START, coming), limit_s, "every rank must have started by then")


def start_actions(turn: Turn) -> list[StartWorkers]:
    """StartWorkers of the current formation, for every slot. Also used to issue them again."""
    state, spec = turn.state, turn.spec
    assert state.formation is not None
    fetches: dict[int, list[Fetch]] = {}
    former = state.formation.former_world
    watched = neighbours.of_all(state, turn.policy) if spec.on_hosts else {}
    for fetch in () if former else state.formation.fetch:
        fetches.setdefault(fetch.rank // spec.nproc_per_node, []).append(fetch)
    return [
        StartWorkers(
            node=node,
            generation=state.generation,
            slot=slot,
            first_rank=spec.ranks_of(slot).start,
            num_ranks=spec.nproc_per_node,
            world_size=spec.world_size,
            num_slots=spec.num_slots,
            store_host=state.formation.store_host,
            store_port=state.formation.store_port,
            resume_step=state.formation.resume_step,
            fetch=state.formation.fetch if former else tuple(fetches.get(slot, ())),
            former_world=former,
            restore_path=state.formation.restore_path,
            no_snapshots=flaws.why_none(state),
            version=state.formation.version,
            neighbours=watched.get(node, ()),
            why=state.formation.why,
        )
        for slot, node in enumerate(state.slots)
        if node is not None
    ]


def start_limit_s(state: State, policy: Policy) -> float:
    """How long the ranks may take to start. It includes the fetch of snapshots: its end is not reported."""
    fetches = state.formation is not None and state.formation.fetch
    return policy.start_timeout_s + (policy.fetch_timeout_s if fetches else 0.0)


def _settle_history(turn: Turn, choice: restoring.Choice) -> None:
    """Drop what the coming generation makes void: memory of later steps, and trust in them."""
    state = turn.state
    step = choice.restore.step if choice.restore is not None else None
    if choice.is_corrupted:
        if choice.untrusted:
            turn.do(Refused(what=NOT_TRUSTED, why=choice.untrusted, incident=turn.incident.id))
        else:
            trust.strike_untrusted(turn)
        trust.note_corruption(turn, turn.incident.verdict)
    trusted = state.trusted_step
    trusted = None if step is None or trusted is None or choice.untrusted else min(trusted, step)
    held, copies = holdings.cut(state, step)
    resumes = {**state.resumes, state.generation + 1: step}
    turn.set(trusted_step=trusted, resumes=resumes, held=held, copies=copies)
