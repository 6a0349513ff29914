"""Rules for a fault whose generation has been stopped: what to do about it. In order; the first that applies decides.

A new policy idea is a new rule here, one line in RULES, and a scenario in tests/scenarios.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from everstep.core.decide import allowance, eviction, flow, program_ends
from everstep.core.restore import flaws, rereading, trust
from everstep.core.run import failures, updates
from everstep.core.state.course import FlowStage
from everstep.core.state.turn import Turn
from everstep.model.spec import Mode
from everstep.model.verdict import Blame, Decision, Refusal, Verdict

FAILED_STARTS = 2
"""Before the first step: the first may have been bad luck."""

USAGE_ERROR = 2
"""What argparse, getopt's users, click and most shells end with for arguments that make no sense."""

_UNDECIDED = (Blame.USER, Blame.OPERATOR, Blame.UNKNOWN)

Kind = Literal["restart", "examine", "give-up", "propose", "unallowed", "leave"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    decision: Decision
    evict: tuple[str, ...] = ()  # nodes to be taken out
    back_to: str = ""  # the version of the program that the restart goes back to
    stage: FlowStage | None = None  # of the flow, for a fault without a culprit


Rule = Callable[[Turn, Verdict], Plan | None]


def decide(turn: Turn, verdict: Verdict) -> Plan:
    """The plan for this verdict. Total: the last rule always applies."""
    for rule in RULES:
        plan = rule(turn, verdict)
        if plan is not None:
            return plan
    raise AssertionError("the last rule always applies")


def all_finished(turn: Turn, verdict: Verdict) -> Plan | None:
    """Nothing is left to do again."""
    if turn.state.tally.alive or not program_ends.has_all_work_done(turn):
        return None
    why = f"every rank's program was over before, without a traceback; then {verdict.sentence}"
    refused = (Refusal(what="restart", why="no rank keeps snapshots, so all the work would be done again"),)
    return _plan("give-up", "end the run", "work-is-done", why, refused)


def merge_update(turn: Turn, verdict: Verdict) -> Plan | None:
    """The program failed, and a human has changed it meanwhile: that is tried before anything is concluded of it."""
    if verdict.blame is not Blame.USER or turn.spec.mode is not Mode.ACT:
        return None
    waiting = updates.waiting_version(turn.state)
    if waiting is None:
        return None
    chosen = f"{_restart_text(turn)} with {waiting.id}, which was waiting for an interruption"
    return _plan("restart", chosen, "merge-update", verdict.sentence, ())


def roll_back(turn: Turn, verdict: Verdict) -> Plan | None:
    """Undo a change of the program that does worse than the version before it."""
    if len(turn.state.candidates) < 2 or turn.spec.mode is Mode.OBSERVE:
        return None  # the program was never changed
    bad, good = turn.state.version, updates.back_to(turn.state)
    blamed = updates.why_to_blame(turn, verdict) if good else ""
    if not blamed:
        return None
    chosen = f"roll back to {good}: {_restart_text(turn)}"
    why = f"{blamed}; {good} is the last version that trained: {verdict.sentence}"
    refused = (
        Refusal(what=f"try {bad} again", why="a human changed the program, and it failed where it had not before"),
    )
    if turn.spec.mode is Mode.ADVISE:
        limit = f"waits {turn.policy.approval_timeout_s:g} s for `everstep approve {turn.incident.id}`"
        plan = _plan("propose", chosen, "mode-advise", f"mode advise: {limit}: {why}", refused)
    else:
        plan = _plan("restart", chosen, "roll-back", why, refused)
    return msgspec.structs.replace(plan, back_to=good)


def cannot_run(turn: Turn, verdict: Verdict) -> Plan | None:
    """A program that never ran, and cannot, is not started again."""
    if turn.state.has_stepped or turn.policy.exact_restarts:
        return None
    end = program_ends.first_end(turn, verdict)
    is_refusal = end is not None and end.error is None and end.code == USAGE_ERROR
    if verdict.code != "ES-U02" and not is_refusal:
        return None
    does = "refuses its arguments" if is_refusal else "cannot run"
    why = f"the program {does}: {verdict.sentence}{program_ends.missed_launcher(end) if is_refusal and end else ''}"
    refused = (Refusal(what="restart", why="starting it again would end the same way"),)
    return _plan("give-up", "give up", "program-cannot-run", why, refused)


def cannot_begin(turn: Turn, verdict: Verdict) -> Plan | None:
    """Give up if the step that could not be restored was given by the user: there is no other."""
    formation = turn.state.formation
    if verdict.code != "ES-P08" or formation is None or formation.resume_step is not None:
        return None
    refused = (Refusal(what="begin without it", why="that would be another run than the one that was asked for"),)
    return _plan("give-up", "give up", "cannot-begin", verdict.sentence, refused)


def failed_start(turn: Turn, verdict: Verdict) -> Plan | None:
    """A program that ended by itself in the same way twice before its first step would do so again, with all its side
    effects; if neither a machine nor something outside is to blame. Where there is a standby, and machines may still be
    found to be at fault, the flow says what comes."""
    if turn.state.has_stepped or turn.policy.exact_restarts or verdict.blame not in _UNDECIDED:
        return None
    where = program_ends.ended_at(turn, verdict)
    if not where or (turn.spec.num_standby and flow.has_more(turn, verdict)):
        return None
    count = failures.times(turn, where)
    if count < FAILED_STARTS:
        return None
    why = f"ended {count} times in the same way before the first step ({where}): {verdict.sentence}"
    refused = (
        Refusal(
            what="restart", why="another start would end there again; --max-restarts N restarts N times all the same"
        ),
    )
    return _plan("give-up", "give up", "failed-start", why, refused)


def same_place(turn: Turn, verdict: Verdict) -> Plan | None:
    """Give up if the same line of the user's code fails again and again without a new step in between: that is not bad
    luck."""
    if turn.policy.exact_restarts or not verdict.place or verdict.blame not in _UNDECIDED:
        return None
    if flow.has_more(turn, verdict):
        return None  # what is outside may come back: those restarts wait longer and longer, within the budget
    count, limit = failures.times(turn, verdict.place), turn.policy.max_same_failure
    if count < limit:
        return None
    times = f"the same failure {count} times at {verdict.place}"
    row = " without a new step in between" if turn.state.has_own_steps else ", one after the other"
    why = f"{times}{row} (policy max_same_failure = {limit})"
    refused = (Refusal(what="restart", why="no machine is to blame, and another start would fail there again"),)
    return _plan("give-up", "give up", "same-place-again", why, refused)


def corrupted_again(turn: Turn, verdict: Verdict) -> Plan | None:
    """Leave a job alone whose ranks keep diverging from the same trusted step.

    Rolling back does not cure it, and the program may intend it. A job that trains is not ended for that."""
    if verdict.code not in trust.CORRUPTIONS or trust.why_not_back(turn.state) or turn.incident.facts.anomaly is None:
        return None  # a job that ended because of it is not left alone
    choice = flow.choose(turn, verdict)
    if turn.incident.examination is not None or (choice is not None and choice.stage in flow.REMEDIES):
        return None  # the faulty machine, or the faulty code, may still be found
    count = trust.times_before(turn, verdict.ranks) + 1
    if count < turn.policy.max_same_failure:
        return None
    limit = f"policy max_same_failure = {turn.policy.max_same_failure}"
    why = f"{count} times from the same trusted step ({limit}; digest_every = 0 does not look): {verdict.sentence}"
    refused = (Refusal(what="go back once more", why="it would come again: suspect the program, or all machines"),)
    return _plan("leave", "leave the job as it is", "corrupted-again", why, refused)


def budget(turn: Turn, verdict: Verdict) -> Plan | None:
    """Not more restarts than allowed."""
    used_up = allowance.used_up_text(turn)
    if not used_up:
        return None
    why = f"{used_up}: {verdict.sentence}"
    return _plan("give-up", "give up", "restart-budget", why, (Refusal(what="restart", why="the budget is used up"),))


def observe_only(turn: Turn, verdict: Verdict) -> Plan | None:
    if turn.spec.mode is not Mode.OBSERVE:
        return None
    why = "mode observe only explains; in mode act all ranks would have been restarted in place"
    refused = (Refusal(what=_restart_text(turn), why="mode is observe"),)
    return _plan("unallowed", "end the run", "mode-observe", why, refused)


def propose(turn: Turn, verdict: Verdict) -> Plan | None:
    """Propose a restart, which an operator has to approve.

    The proposal lists what mode act would do besides and leaves it to people: machines are neither examined nor
    replaced."""
    if turn.spec.mode is not Mode.ADVISE:
        return None
    incident = turn.incident.id
    why = f"mode advise: waits {turn.policy.approval_timeout_s:g} s for `everstep approve {incident}`"
    refused = _no_eviction(turn, verdict) if eviction.suspects(turn, verdict) else ()
    choice = flow.choose(turn, verdict)
    if choice is None:
        return _plan("propose", _restart_text(turn), "mode-advise", why, refused)
    why = f"{why}: {_so_often(choice)}" if choice.count > 1 else why
    refused = (*refused, *choice.skipped)
    by_hand = "mode is advise; `everstep check` on each machine is the part of it that can be done by hand"
    if choice.stage in flow.EXAMINATIONS:
        refused = (Refusal(what=_examination_text(turn, choice), why=by_hand), *refused)
    elif choice.stage is FlowStage.GIVE_UP:
        refused = (Refusal(what="give up", why="mode is advise"), *refused)
    plan = _staged(_plan("propose", _restart_text(turn), "mode-advise", why, refused), choice)
    if choice.stage is FlowStage.ROLL_BACK:
        good = updates.back_to(turn.state)
        chosen = f"roll back to {good}: {_restart_text(turn)}"
        decision = msgspec.structs.replace(plan.decision, chosen=chosen)
        return msgspec.structs.replace(plan, back_to=good, decision=decision)
    return plan


def evict(turn: Turn, verdict: Verdict) -> Plan | None:
    """A machine that is to blame is taken out, and a standby takes its place."""
    nodes = _to_evict(turn, verdict)
    if not nodes:
        return None
    chosen = f"evict {', '.join(nodes)}; {_restart_text(turn)} on a standby"
    plan = _plan("restart", chosen, "evict", verdict.sentence, ())
    return msgspec.structs.replace(plan, evict=nodes)


def drain(turn: Turn, verdict: Verdict) -> Plan | None:
    """An operator takes a machine away. That is no fault: it needs no restart of the budget."""
    nodes = _to_evict(turn, verdict) if eviction.is_asked(verdict) else ()
    if not nodes:
        return None
    where = "with a node less unless another comes" if eviction.why_no_standby(turn, nodes) else "on a standby"
    chosen = f"evict {', '.join(nodes)}; {_restart_text(turn)} {where}"
    plan = _plan("restart", chosen, "drain", verdict.sentence, ())
    return msgspec.structs.replace(plan, evict=nodes)


def _to_evict(turn: Turn, verdict: Verdict) -> tuple[str, ...]:
    """With those that are being evicted."""
    gone = turn.incident.evicting
    if gone and flow.eviction_is_under_way(turn):
        return ()
    more = tuple(n for n in eviction.suspects(turn, verdict) if n not in (*gone, *turn.incident.not_evicted))
    if more and eviction.why_not(turn, more, is_asked=eviction.is_asked(verdict)):
        more = ()
    return (*gone, *more)


def go_back(turn: Turn, verdict: Verdict) -> Plan | None:
    """Replicas differ: nothing since they last agreed can be trusted."""
    if verdict.code not in trust.CORRUPTIONS or trust.why_not_back(turn.state):
        return None
    named = eviction.miscomputing(turn, verdict)
    gone, failed = turn.incident.evicting, turn.incident.not_evicted
    more = tuple(node for node in named if node not in (*gone, *failed))
    why_not = "the engine did not end it in time" if set(named) & set(failed) else eviction.why_replayed(turn, verdict)
    why_not = why_not or (eviction.why_not(turn, more) if more else "")
    evict = (*gone, *(() if why_not else more))
    why = f"{verdict.sentence}; {trust.last_trusted(turn.state)}, so nothing newer is trusted"
    if turn.incident.examination is not None and not evict:
        why = f"{turn.incident.examination.says}; {why}"
    back = f"go back to step {trust.newest_trusted(turn.state)} or before"
    chosen = f"{back}: {_restart_text(turn)}"
    refused = (Refusal(what=f"evict {', '.join(named)}", why=why_not),) if why_not else ()
    choice = flow.choose(turn, verdict) if not evict else None
    if choice is not None and flow.is_examined_next(turn, verdict):
        return _examine(turn, verdict, choice)
    if choice is not None and choice.stage in (FlowStage.ROLL_BACK, FlowStage.GIVE_UP):
        return None  # what is restored is a trusted step all the same
    if evict:
        chosen = f"evict {', '.join(evict)}; {back}: {_restart_text(turn)} on a standby"
    plan = msgspec.structs.replace(_plan("restart", chosen, "go-back", why, refused), evict=evict)
    return plan if choice is None else _staged(plan, choice)


def unexplained(turn: Turn, verdict: Verdict) -> Plan | None:
    """A fault without a culprit goes through the flow, a stage further each time that it comes again."""
    choice = flow.choose(turn, verdict)
    if choice is None:
        return None
    if choice.stage in flow.EXAMINATIONS:
        return _examine(turn, verdict, choice)
    if choice.stage is FlowStage.EVICT_GROUP:
        return _evict_group(turn, verdict, choice)
    if choice.stage is FlowStage.ROLL_BACK:
        good = updates.back_to(turn.state)
        why = f"{_so_often(choice)}: {verdict.sentence}"
        plan = _plan("restart", f"roll back to {good}: {_restart_text(turn)}", "roll-back", why, choice.skipped)
        return _staged(msgspec.structs.replace(plan, back_to=good), choice)
    if choice.stage is FlowStage.GIVE_UP:
        why = f"{_so_often(choice)}, without a new step since the last stage: {verdict.sentence}"
        return _staged(_plan("give-up", "give up", "flow-exhausted", why, choice.skipped), choice)
    in_place = restart_in_place(turn, verdict)
    decision = msgspec.structs.replace(in_place.decision, refused=(*in_place.decision.refused, *choice.skipped))
    return _staged(msgspec.structs.replace(in_place, decision=decision), choice)


def _examine(turn: Turn, verdict: Verdict, choice: flow.Choice) -> Plan:
    """The examination that is due, or the restart after one that identified no machine."""
    examination = turn.incident.examination
    if examination is not None and examination.is_over:
        refused = (*_no_eviction(turn, verdict), *examination.unclear) if examination.failed else examination.unclear
        outcome = "" if examination.failed or examination.unclear else ": treated as transient"
        why = f"{examination.says}{outcome}; {verdict.sentence}"
        return _staged(_plan("restart", _restart_text(turn), "reattempt", why, refused), choice)
    why = f"{_so_often(choice)}: {verdict.sentence}"
    chosen = f"{_examination_text(turn, choice)}; {_restart_text(turn)}"
    if choice.stage is FlowStage.REPLAY:
        return _staged(_plan("examine", chosen, "replay", why, choice.skipped), choice)
    return _staged(_plan("examine", chosen, "examine", why, choice.skipped), choice)


def _examination_text(turn: Turn, choice: flow.Choice) -> str:
    num = len(turn.state.active_nodes)
    machines = {1: "the machine", 2: "both machines"}.get(num, f"all {num} machines")
    return f"replay the job on {machines}" if choice.stage is FlowStage.REPLAY else f"examine {machines}"


def _evict_group(turn: Turn, verdict: Verdict, choice: flow.Choice) -> Plan:
    """Evict the whole group: one of its machines is at fault and it is unknown which. Isolation goes before
    localisation."""
    gone = turn.incident.evicting
    nodes = gone or flow.group_nodes(turn, verdict)
    rack = flow.shared_rack(turn, verdict, nodes)
    shared = f"rack {rack}, where all suspects are," if rack else verdict.group
    whose = f"the machines of {shared}" if shared and len(nodes) > 1 else "the suspect's machine"
    why = f"{_so_often(choice)}; {whose} {'are' if len(nodes) > 1 else 'is'} replaced: {verdict.sentence}"
    chosen = f"evict {', '.join(nodes)}; {_restart_text(turn)} on standbys"
    plan = _plan("restart", chosen, "evict-group", why, choice.skipped)
    return _staged(msgspec.structs.replace(plan, evict=nodes), choice)


def _staged(plan: Plan, choice: flow.Choice) -> Plan:
    return msgspec.structs.replace(
        plan, stage=choice.stage, decision=msgspec.structs.replace(plan.decision, then=choice.then)
    )


def _so_often(choice: flow.Choice) -> str:
    if choice.count == 1:
        return "nothing says who is at fault"
    return f"{choice.count} faults that nothing explains, one after the other"


def restart_in_place(turn: Turn, verdict: Verdict) -> Plan:
    why = f"{verdict.sentence}; {allowance.next_text(turn)}"
    if verdict.code == "ES-P06":
        chosen = f"{_restart_text(turn)}, on another node for {verdict.node}"
        wait = Refusal(what="wait for the lost node", why="its workers ended with its agent, and ids never come back")
        return _plan("restart", chosen, "replace-lost-node", why, (wait,))
    if verdict.code == "ES-P08" and rereading.is_read_again(turn.state):
        other = Refusal(what="take something older", why="it could not be read, which may pass, and may be whole")
        chosen = f"{_restart_text(turn)} from the same step, {rereading.attempt_text(turn.state)}"
        return _plan("restart", chosen, "read-again", why, (other,))
    if verdict.code == "ES-P08" and (flaw := flaws.why_none(turn.state)):
        other = Refusal(what="restore another snapshot", why="the program loads none that it saved")
        chosen = f"{_restart_text(turn)} without snapshots; the program begins as it does under torchrun"
        return _plan("restart", chosen, "restore-none", f"{flaw}; {why}", (other,))
    if verdict.code == "ES-P08":
        again = Refusal(what="try that one again", why="it would be as damaged")
        return _plan("restart", f"{_restart_text(turn)} from what else there is", "restore-another", why, (again,))
    return _plan("restart", _restart_text(turn), "restart-in-place", why, _no_eviction(turn, verdict))


def _no_eviction(turn: Turn, verdict: Verdict) -> tuple[Refusal, ...]:
    nodes = eviction.suspects(turn, verdict)
    if nodes:
        failed = set(nodes) <= set(turn.incident.not_evicted)
        why = "the engine did not end it in time" if failed else eviction.why_not(turn, nodes)
        return (Refusal(what=f"evict {', '.join(nodes)}", why=why),)
    if verdict.node is None:
        return ()
    only = "it is the job's only node, and " if turn.spec.num_slots == 1 and verdict.code.startswith("ES-H") else ""
    return (Refusal(what=f"evict {verdict.node}", why=f"{only}nothing shows that the machine is at fault"),)


RULES: tuple[Rule, ...] = (
    all_finished,
    merge_update,
    roll_back,
    cannot_run,
    cannot_begin,
    failed_start,
    same_place,
    corrupted_again,
    drain,
    budget,
    observe_only,
    propose,
    go_back,
    evict,
    unexplained,
    restart_in_place,
)


def _restart_text(turn: Turn) -> str:
    return f"restart all {turn.spec.world_size} ranks as generation {turn.state.generation + 1}"


def _plan(kind: Kind, chosen: str, rule: str, why: str, refused: tuple[Refusal, ...]) -> Plan:
    return Plan(kind=kind, decision=Decision(chosen=chosen, rule=rule, why=why, refused=refused))
