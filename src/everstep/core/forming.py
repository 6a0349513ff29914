"""Forming a generation: nodes for every slot, a store, then StartWorkers everywhere."""

from everstep.core.state import Formation, Phase, Worker
from everstep.core.turn import Turn
from everstep.model.actions import AcquireNode, IncidentClosed, OpenStore, StartWorkers
from everstep.model.events import RunReopened, RunStarted, StoreOpened
from everstep.model.spec import Launch


def on_run_started(turn: Turn, event: RunStarted) -> None:
    spec = event.spec
    turn.set(run=event.run, spec=spec, phase=Phase.GATHERING, slots=(None,) * spec.num_slots)
    ask_for_store(turn, 0)
    for slot in range(spec.num_slots):
        acquire(turn, f"slot {slot} of {spec.num_slots} has no node yet")
    for number in range(spec.num_standby):
        acquire(turn, f"standby {number + 1} of {spec.num_standby}")


def on_run_reopened(turn: Turn, event: RunReopened) -> None:
    """All processes of the earlier attempt are gone, with what they held in memory. Generations go on counting."""
    if turn.state.incident is not None:
        turn.do(
            IncidentClosed(
                incident=turn.incident.id,
                outcome="superseded",
                why=f"the run was started again as attempt {event.attempt}",
            )
        )
    turn.drop_timers()
    turn.set(
        phase=Phase.GATHERING,
        attempt=event.attempt,
        members={},
        slots=(None,) * turn.spec.num_slots,
        requests=(),
        stores={},
        store_asked=turn.state.generation,
        workers={},
        held={},
        waiting=(),
        ending=None,
        incident=None,
        formation=None,
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


def acquire(turn: Turn, why: str) -> None:
    number = turn.state.num_requests + 1
    request = f"r{number}"
    turn.set(num_requests=number, requests=(*turn.state.requests, request))
    turn.do(AcquireNode(request=request, why=why))
    turn.start_timer(f"node:{request}", turn.policy.node_timeout_s, f"the engine has not given {request} in time")


def ask_for_store(turn: Turn, generation: int) -> None:
    if turn.state.store_asked >= generation:
        return
    turn.set(store_asked=generation)
    turn.do(OpenStore(generation=generation, why=f"generation {generation} gets a store of its own"))


def form_if_possible(turn: Turn) -> None:
    """Start the next generation when every slot has a node and its store is open; otherwise wait."""
    state = turn.state
    coming = state.generation + 1
    if state.phase is not Phase.GATHERING or None in state.slots or coming not in state.stores:
        return
    host, port = state.stores[coming]
    resume_step = common_step(turn)
    why = _why_form(turn, coming, resume_step)
    formation = Formation(store_host=host, store_port=port, resume_step=resume_step, at=turn.at, why=why)
    ranks = {
        rank: Worker(rank=rank, node=node)
        for slot, node in enumerate(state.slots)
        if node is not None
        for rank in ranks_of_slot(turn, slot)
    }
    turn.set(generation=coming, phase=Phase.FORMING, formation=formation, workers=ranks)
    if state.incident is not None:
        turn.set_incident(restarted=True)
    for action in start_actions(turn):
        turn.do(action)
    if turn.spec.launch is not Launch.COMMAND:
        turn.start_timer(f"start:{coming}", turn.policy.start_timeout_s, "every rank must have started by then")
    ask_for_store(turn, coming + 1)


def start_actions(turn: Turn) -> list[StartWorkers]:
    """StartWorkers of the current formation, for every slot. Also used to issue them again."""
    state, spec = turn.state, turn.spec
    assert state.formation is not None
    return [
        StartWorkers(
            node=node,
            generation=state.generation,
            slot=slot,
            first_rank=spec.first_rank(slot),
            num_ranks=spec.nproc_per_node,
            world_size=spec.world_size,
            num_slots=spec.num_slots,
            store_host=state.formation.store_host,
            store_port=state.formation.store_port,
            resume_step=state.formation.resume_step,
            why=state.formation.why,
        )
        for slot, node in enumerate(state.slots)
        if node is not None
    ]


def ranks_of_slot(turn: Turn, slot: int) -> range:
    first = turn.spec.first_rank(slot)
    return range(first, first + turn.spec.nproc_per_node)


def common_step(turn: Turn) -> int | None:
    """Newest step that every rank of the job holds complete; None when there is no such step."""
    held = [set(turn.state.held.get(rank, ())) for rank in range(turn.spec.world_size)]
    return max(set.intersection(*held), default=None)


def _why_form(turn: Turn, generation: int, resume_step: int | None) -> str:
    cause = "the run starts" if generation == 0 else "the workers of the generation before have ended"
    incident = turn.state.incident
    if incident is not None and incident.verdict is not None:
        cause = incident.verdict.sentence
    if resume_step is not None:
        return f"{cause}; every rank holds step {resume_step} in memory"
    if any(turn.state.held.values()):
        return f"{cause}; no step is held by every rank, so nothing is restored ({_holdings(turn)})"
    if generation == 0:
        return cause
    return f"{cause}; no rank holds a snapshot, so the program restores itself as it does under torchrun"


def _holdings(turn: Turn) -> str:
    parts = [f"rank {rank}: {list(turn.state.held.get(rank, ()))}" for rank in range(turn.spec.world_size)]
    return ", ".join(parts[:8]) + (", ..." if len(parts) > 8 else "")
