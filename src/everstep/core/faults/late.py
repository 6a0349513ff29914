"""A line of the kernel's that comes when it is decided already what to do about the fault that it explains.

A rank can be gone before its kernel has said why. Nothing waits for that: a restart in place costs a fraction of a
second, and most faults have no such line. Instead the verdict is judged again with the line (ADR 30). If that names a
machine before the job runs well, the machine goes within the same incident; if the incident is over, its record gets
the right verdict, and the machine is taken out as one about which something is known.
"""

import msgspec

from everstep.analyzer.exits import judge
from everstep.analyzer.numbers.alerts import AFTER_S, SeenAlert, is_cause
from everstep.core.decide import eviction
from everstep.core.decide.recovery import decide
from everstep.core.faults.incidents import stop_generation
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Incident
from everstep.core.state.turn import Turn
from everstep.model.actions import Concluded
from everstep.model.verdict import Blame, Decision, Refusal, Verdict

RULE = "late-evidence"

_DECIDED = (Phase.GATHERING, Phase.FORMING, Phase.RUNNING, Phase.PROPOSING)
"""In the phases between, the fault is concluded once more anyway."""


def correct(turn: Turn, new: list[SeenAlert]) -> None:
    """The verdict on the newest fault, if one of these alerts makes it another one."""
    incident = turn.state.incident or turn.state.recovered
    if incident is None or incident.verdict is None or incident.decision is None:
        return
    if turn.state.phase not in _DECIDED or incident.examination is not None or incident.facts.anomaly is not None:
        return
    before, taken = incident.verdict, incident.decision
    incident = msgspec.structs.replace(
        incident, facts=msgspec.structs.replace(incident.facts, alerts=turn.state.alerts)
    )
    found = judge(incident.known)
    told = {(seen.node, seen.alert.code) for seen in new if is_cause(seen.alert)}
    is_same = (before.node, before.code, before.blame) == (found.node, found.code, found.blame)
    if is_same or (found.node, found.code) not in told:
        return
    _forget_the_program(turn, incident, found)
    decision = _decision(turn, taken, found)
    incident = msgspec.structs.replace(incident, verdict=found, decision=decision)
    turn.set(**{"recovered" if turn.state.incident is None else "incident": incident})
    if not eviction.suspects(turn, found):
        turn.forget_unjudged(found.node, found.code)
    if not act(turn):
        turn.do(Concluded(incident=incident.id, verdict=found, decision=decision, why=decision.why))


def act(turn: Turn) -> bool:
    """The machine that a corrected verdict names is taken out, if the job is on its way back, or there and not proven
    yet. False: not now."""
    incident = turn.state.incident
    if incident is None or not incident.restarted or turn.state.phase not in (Phase.FORMING, Phase.RUNNING):
        return False
    verdict, decision = incident.verdict, incident.decision
    if verdict is None or decision is None or decision.rule != RULE:
        return False
    turn.set_incident(evicting=(), not_evicted=())
    if not decide(turn, verdict).evict:
        turn.set(incident=incident)
        return False
    turn.set_incident(restarted=False, through_at=None)
    turn.forget_unjudged(verdict.node, verdict.code)
    stop_generation(turn)
    return True


def forget_old(turn: Turn) -> None:
    """A recovered incident that no line explains any more."""
    recovered = turn.state.recovered
    if recovered is not None and turn.at - recovered.opened_at > AFTER_S:
        turn.set(recovered=None)


def _forget_the_program(turn: Turn, incident: Incident, found: Verdict) -> None:
    """Take back what was counted against the program, or as a fault that nothing explains."""
    if found.blame not in (Blame.USER, Blame.OPERATOR):
        turn.set(failure=None)
    course = turn.state.course
    if course is not None and course.incident == incident.id:
        turn.set(course=None)


def _decision(turn: Turn, taken: Decision, found: Verdict) -> Decision:
    """Return the decision with its new reason: what was done stays done; why is known now, and so is what could not be
    known then."""
    late_s = turn.at - found.at
    nodes = eviction.suspects(turn, found)
    why_not = eviction.why_not(turn, nodes) if nodes else ""
    refused = (Refusal(what=f"evict {', '.join(nodes)}", why=why_not),) if why_not else ()
    why = f"{found.sentence}; reported {late_s:.2g} s after the fault, when the decision had been made"
    return Decision(chosen=taken.chosen, rule=RULE, why=why, refused=refused)
