"""From a suspected hang to its verdict: open an incident, ask for evidence, have it judged; then stop the generation,
or leave the job alone for as long as the price of a mistake says (`standstill`).

The job stays as it is meanwhile (phase settling), because the evidence is in its processes. Every wait has a timer: a
node that does not answer, or a shell that does not judge, costs the name of the culprit, and certainty with it.
"""

import msgspec

from everstep.analyzer.exits import FaultFacts, judge
from everstep.analyzer.standing import Hang
from everstep.core.faults.incidents import stop_generation
from everstep.core.faults.opening import open_incident
from everstep.core.run import standstill
from everstep.core.run.standstill import STOPPED, is_repeated, known_of, patience
from everstep.core.state.frozenmap import Names
from everstep.core.state.phases import ALIVE, Phase
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import CollectEvidence, Concluded, Diagnose, IncidentClosed, Refused
from everstep.model.events import (
    Diagnosed,
    EvidenceCollected,
    EvidenceRequested,
    HangSuspected,
    RestartRequested,
    StandstillEnded,
)
from everstep.model.spec import Mode
from everstep.model.verdict import Blame, Certainty, Decision, Refusal

_NO_FAULT = "ES-H00"


def on_hang_suspected(turn: Turn, event: HangSuspected) -> None:
    if turn.state.phase is not Phase.RUNNING:
        return
    ending = next((node for node in turn.state.active_nodes if turn.state.members[node].silent), None)
    if ending is not None:
        why = f"{ending} is silent and is being ended, which the other ranks wait for; its loss is what counts"
        turn.do(Refused(what="look for what holds up the other ranks", why=why))
        return
    hang = Hang(at=event.since, ranks=event.ranks, says=event.why, window_s=event.window_s)
    open_incident(turn, FaultFacts(at=turn.at, hang=hang))
    nodes, incident = turn.state.active_nodes, turn.incident.id
    limit_s = turn.policy.evidence_timeout_s
    turn.set_incident(asked=Names(nodes))
    turn.enter(Phase.SETTLING)
    turn.do(*collect_actions(turn))
    turn.start_timer(Timer(TimerKind.EVIDENCE, incident), limit_s, "the evidence of a hang has to come by then")


def on_evidence_requested(turn: Turn, event: EvidenceRequested) -> None:
    """Collect evidence from the ranks without changing anything: no incident, no diagnosis. The user reads the
    files."""
    if turn.state.phase not in ALIVE:
        why = f"no rank is to be looked at now: the run is {turn.state.phase}"
        turn.do(Refused(what=f"evidence {event.request}", why=why))
        return
    why = "a user asked what the ranks are doing"
    turn.do(*(_collect(turn, node, event.request, why) for node in turn.state.active_nodes))


def collect_actions(turn: Turn) -> list[CollectEvidence]:
    """CollectEvidence for every node that has not answered. Also used to issue them again."""
    incident = turn.incident
    why = f"{incident.id}: {incident.facts.hang.says if incident.facts.hang else 'a fault is suspected'}"
    return [_collect(turn, node, incident.id, why) for node in incident.asked]


def on_evidence_collected(turn: Turn, event: EvidenceCollected) -> None:
    if not _is_awaited(turn, event.incident) or event.node not in turn.incident.asked:
        return
    turn.set_incident(asked=turn.incident.asked.without(event.node))
    if not turn.incident.asked:
        _ask_for_diagnosis(turn)


def on_evidence_timer(turn: Turn, incident: str, _due_at: float) -> None:
    """The evidence is late: judge what there is."""
    if _is_awaited(turn, incident) and turn.incident.asked:
        turn.set_incident(asked=Names())
        _ask_for_diagnosis(turn)


def on_diagnosis_timer(turn: Turn, incident: str, _due_at: float) -> None:
    """The diagnosis is late: continue without it."""
    if _is_awaited(turn, incident):
        _judge(turn)


def on_diagnosed(turn: Turn, event: Diagnosed) -> None:
    if not _is_awaited(turn, event.incident):
        return
    facts = turn.incident.facts
    assert facts.hang is not None
    hang = msgspec.structs.replace(facts.hang, verdict=event.verdict, limit_s=event.limit_s)
    turn.set_incident(facts=msgspec.structs.replace(facts, hang=hang))
    if event.moved_on:
        _let_run(turn, "dismissed", "every rank has done a step since: it was slow, and does not hang")
    elif event.verdict.code == _NO_FAULT:
        _let_run(turn, "dismissed", f"the evidence shows no hang: {event.verdict.sentence}")
    else:
        _judge(turn)


def on_standstill_ended(turn: Turn, event: StandstillEnded) -> None:
    standing = turn.state.standstill
    if standing is not None and standing.incident.id == event.incident:
        standstill.went_on(turn, event.lasted_s)


def on_standstill_timer(turn: Turn, incident: str, due_at: float) -> None:
    """The time that a standstill was given is over."""
    standing = turn.state.standstill
    if standing is None or standing.incident.id != incident:
        return
    if turn.at - due_at > standstill.LATE_S:
        standstill.wait_again(turn)
    else:
        standstill.take_up(turn)
        _act(turn)


def on_restart_requested(turn: Turn, event: RestartRequested) -> None:
    """Restart a job that stands still. A job that runs is restarted by stopping it and starting another run."""
    by = f" by {event.by}" if event.by else ""
    if turn.state.standstill is None:
        why = f"the job does not stand still ({turn.state.phase}); `everstep stop` ends it"
        turn.do(Refused(what=f"restart asked for{by}", why=why))
    elif turn.spec.mode is not Mode.ACT:
        turn.do(Refused(what=f"restart asked for{by}", why=f"mode is {turn.spec.mode}"))
    else:
        standstill.take_up(turn)
        _act(turn)


def _judge(turn: Turn) -> None:
    """Act on a hang that is certain; give one that may end by itself its time, on record. A rank that ended meanwhile,
    or a machine that noticed something, is better evidence than the silence."""
    verdict, hang = judge(turn.incident.known), turn.incident.facts.hang
    assert hang is not None
    is_over = any(not exit_.succeeded for exit_ in turn.incident.exits.values())
    if is_over or not verdict.code.startswith("ES-H") or turn.spec.mode is not Mode.ACT:
        _act(turn)
        return
    known = known_of(turn, verdict)
    given = patience(
        verdict,
        known=known,
        step=turn.state.tally.completed_step,
        has_way_back=has_way_back(turn),
        window_s=hang.window_s,
        limit_s=hang.limit_s,
        policy=turn.policy,
    )
    if given.act_after_s is not None and hang.at + given.act_after_s <= turn.at:
        _act(turn)
    else:
        standstill.begin(turn, verdict, given)


def has_way_back(turn: Turn) -> bool:
    """Whether a restart loses next to nothing: every rank that lives holds a snapshot, or began from one."""
    alive = [worker for worker in turn.state.workers.values() if worker.exit is None]
    if all(worker.account is not None and worker.account.published_step is not None for worker in alive):
        return bool(alive)
    return turn.state.formation is not None and turn.state.formation.resume_step is not None


def _collect(turn: Turn, node: str, incident: str, why: str) -> CollectEvidence:
    limit_s = turn.policy.evidence_timeout_s / 2  # less than the timer: an answer with what there is beats none
    return CollectEvidence(node=node, generation=turn.state.generation, incident=incident, limit_s=limit_s, why=why)


def _ask_for_diagnosis(turn: Turn) -> None:
    incident = turn.incident.id
    world_size = turn.spec.world_size
    why = f"{incident}: the evidence is as complete as it gets"
    turn.do(Diagnose(generation=turn.state.generation, incident=incident, world_size=world_size, why=why))
    timer = Timer(TimerKind.DIAGNOSIS, incident)
    turn.start_timer(timer, turn.policy.evidence_timeout_s, "the diagnosis has to come by then")


def _act(turn: Turn) -> None:
    """Stop what hangs, where everstep may act; elsewhere only say what would have been done."""
    if turn.spec.mode is Mode.ACT:
        _note_place(turn)
        stop_generation(turn)
        return
    verdict = judge(turn.incident.known)
    why = f"mode {turn.spec.mode}: a job that hangs is explained and left alone; its own time-out may end it"
    restart = Refusal(what=f"restart all {turn.spec.world_size} ranks", why=f"mode is {turn.spec.mode}")
    decision = Decision(chosen="leave the job as it is", rule="explain-only", why=why, refused=(restart,))
    turn.set_incident(verdict=verdict, decision=decision)
    turn.do(Concluded(incident=turn.incident.id, verdict=verdict, decision=decision, why=why))
    _let_run(turn, "observed", why)


def _note_place(turn: Turn) -> None:
    """Remember that a restart was made because of it. The same certain hang once more, at the same step, is the
    program's: no machine is looked at because of it."""
    verdict, hang = judge(turn.incident.known), turn.incident.facts.hang
    if not verdict.code.startswith("ES-H") or hang is None:
        return
    known, is_certain = known_of(turn, verdict), verdict.certainty is Certainty.CERTAIN
    is_again = is_certain and verdict.code != STOPPED and is_repeated(known, turn.state.tally.completed_step)
    standstill.note_acted_on(turn, verdict)
    if is_again and hang.verdict is not None:
        says = (
            f"{hang.verdict.sentence.removesuffix('.')}; the same as before, at the same place and step: the program's"
        )
        own = msgspec.structs.replace(hang.verdict, sentence=says, blame=Blame.USER)
        facts = msgspec.structs.replace(turn.incident.facts, hang=msgspec.structs.replace(hang, verdict=own))
        turn.set_incident(facts=facts)


def _let_run(turn: Turn, outcome: str, why: str) -> None:
    if any(not exit_.succeeded for exit_ in turn.incident.exits.values()):
        stop_generation(turn)  # a rank ended meanwhile: whatever the evidence says, this generation is over
        return
    turn.do(IncidentClosed(incident=turn.incident.id, outcome=outcome, why=why))
    turn.enter(Phase.RUNNING, incident=None)


def _is_awaited(turn: Turn, incident: str) -> bool:
    current = turn.state.incident
    is_hang = current is not None and current.id == incident and current.facts.hang is not None
    return is_hang and turn.state.phase is Phase.SETTLING
