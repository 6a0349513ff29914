"""What to do about a fault whose generation has been stopped. Rules in order; the first that applies decides.

A new policy idea is a new rule here, one line in RULES, and a scenario in tests/scenarios.
"""

from collections.abc import Callable
from typing import Literal

import msgspec

from everstep.core.turn import Turn
from everstep.model.spec import Mode
from everstep.model.verdict import Decision, Refusal, Verdict

Kind = Literal["restart", "give-up", "propose", "unallowed"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    kind: Kind
    decision: Decision


Rule = Callable[[Turn, Verdict], Plan | None]


def decide(turn: Turn, verdict: Verdict) -> Plan:
    """The plan for this verdict. Total: the last rule always applies."""
    for rule in RULES:
        plan = rule(turn, verdict)
        if plan is not None:
            return plan
    raise AssertionError("the last rule always applies")


def cannot_run(turn: Turn, verdict: Verdict) -> Plan | None:
    """A program that never ran, and cannot, is not started again."""
    if verdict.code != "ES-U02" or turn.state.has_stepped:
        return None
    why = f"the program cannot run: {verdict.sentence}"
    refused = (Refusal(what="restart", why="starting it again would end the same way"),)
    return _plan("give-up", "give up", "program-cannot-run", why, refused)


def same_place(turn: Turn, verdict: Verdict) -> Plan | None:
    """The same line of the user's code again and again, without a new step in between, is not bad luck."""
    if not verdict.place:
        return None
    before = turn.state.failure
    again = before is not None and before.place == verdict.place and before.best_step == turn.state.best_step
    count = before.count + 1 if again and before is not None else 1
    limit = turn.policy.max_same_failure
    if count < limit:
        return None
    times = f"the same failure {count} times at {verdict.place}"
    why = f"{times} without a new step in between (policy max_same_failure = {limit})"
    refused = (Refusal(what="restart", why="no machine is to blame, and another start would fail there again"),)
    return _plan("give-up", "give up", "same-place-again", why, refused)


def budget(turn: Turn, verdict: Verdict) -> Plan | None:
    """Not more restarts than allowed in the window."""
    window_s, limit = turn.policy.budget_window_s, turn.policy.max_restarts
    used = sum(at > turn.at - window_s for at in turn.state.restarts)
    if used < limit:
        return None
    allowed = f"{limit} allowed (policy max_restarts, budget_window_s)"
    why = f"{used} restarts within {window_s:g} s, {allowed}: {verdict.sentence}"
    return _plan("give-up", "give up", "restart-budget", why, (Refusal(what="restart", why="the budget is used up"),))


def observe_only(turn: Turn, verdict: Verdict) -> Plan | None:
    if turn.spec.mode is not Mode.OBSERVE:
        return None
    why = "mode observe only explains; in mode act all ranks would have been restarted in place"
    refused = (Refusal(what=_restart_text(turn), why="mode is observe"),)
    return _plan("unallowed", "end the run", "mode-observe", why, refused)


def propose(turn: Turn, verdict: Verdict) -> Plan | None:
    if turn.spec.mode is not Mode.ADVISE:
        return None
    incident = turn.incident.id
    why = f"mode advise: waits {turn.policy.approval_timeout_s:g} s for `everstep approve {incident}`"
    return _plan("propose", _restart_text(turn), "mode-advise", why, ())


def restart_in_place(turn: Turn, verdict: Verdict) -> Plan | None:
    used = sum(at > turn.at - turn.policy.budget_window_s for at in turn.state.restarts)
    why = f"{verdict.sentence}; restart {used + 1} of {turn.policy.max_restarts} in {turn.policy.budget_window_s:g} s"
    if verdict.code == "ES-P06":
        chosen = f"{_restart_text(turn)}, on another node for {verdict.node}"
        wait = Refusal(what="wait for the lost node", why="its workers ended with its agent, and ids never come back")
        return _plan("restart", chosen, "replace-lost-node", why, (wait,))
    if verdict.node is None:
        return _plan("restart", _restart_text(turn), "restart-in-place", why, ())
    only = "it is the job's only node, and " if turn.spec.num_slots == 1 and verdict.code.startswith("ES-H") else ""
    evict = Refusal(what=f"evict {verdict.node}", why=f"{only}nothing says that the machine is at fault")
    return _plan("restart", _restart_text(turn), "restart-in-place", why, (evict,))


RULES: tuple[Rule, ...] = (cannot_run, same_place, budget, observe_only, propose, restart_in_place)


def _restart_text(turn: Turn) -> str:
    return f"restart all {turn.spec.world_size} ranks as generation {turn.state.generation + 1}"


def _plan(kind: Kind, chosen: str, rule: str, why: str, refused: tuple[Refusal, ...]) -> Plan:
    return Plan(kind=kind, decision=Decision(chosen=chosen, rule=rule, why=why, refused=refused))
