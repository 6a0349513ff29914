"""May a suspected machine be taken out, and does that help? Read by the rules of recovery; pure like everything here.

A machine is evicted only when something names it with certainty, another machine would cure the fault, a standby is
ready to take its place, and not too much of the fleet has been taken out lately: a wrong rule must not eat the fleet.
"""

from everstep.core.restore import trust
from everstep.core.run import elastic
from everstep.core.state.schema import Role
from everstep.core.state.turn import Turn
from everstep.model.facts import DRAINED
from everstep.model.spec import Mode
from everstep.model.verdict import Blame, Verdict

SLOW_MACHINE = ("ES-S01", "ES-S02")
REPLACE = ("REPLACE_NODE",)
DRAIN = ("RESET_GPU", "DRAIN_AND_RESTART_NODE", "REBOOT_NODE")
"""Baige's two tiers: a fault is replaced; an error needs the node drained before it can be reset."""


def suspects(turn: Turn, verdict: Verdict) -> tuple[str, ...]:
    """Nodes that another machine in their place would cure; empty when the fault is not a machine's."""
    examined = failed_examination(turn)
    if examined:
        return examined
    if verdict.code in SLOW_MACHINE:
        workers = [turn.state.workers[rank] for rank in verdict.ranks if rank in turn.state.workers]
        return tuple(dict.fromkeys(worker.node for worker in workers))
    is_machine = verdict.blame in (Blame.MACHINE, Blame.NETWORK) and verdict.action in (*REPLACE, *DRAIN)
    is_to_go = is_machine or is_asked(verdict)
    return (verdict.node,) if verdict.node and is_to_go and turn.state.is_active(verdict.node) else ()


def is_asked(verdict: Verdict) -> bool:
    """Whether the node is being drained by its operator. Nothing was diagnosed, so the circuit breaker neither blocks
    nor counts it."""
    return verdict.code == DRAINED


def failed_examination(turn: Turn) -> tuple[str, ...]:
    """Nodes that failed the examination of this incident."""
    examination = turn.state.incident.examination if turn.state.incident is not None else None
    if examination is None or not examination.is_over:
        return ()
    return tuple(node for node in examination.failed if turn.state.is_active(node))


def miscomputing(turn: Turn, verdict: Verdict) -> tuple[str, ...]:
    """The node whose rank alone holds something else than all other replicas, or that failed its examination; empty
    when it is not named exactly."""
    examined = failed_examination(turn)
    if examined:
        return examined
    is_named = verdict.code == "ES-N04" and turn.state.is_active(verdict.node)
    return (verdict.node,) if is_named and verdict.node is not None else ()


def why_replayed(turn: Turn, verdict: Verdict) -> str:
    """Why a machine whose replica differed stays for now; empty where more than that speaks against it. A particle
    flips a bit once, and a broken device again: going back does the same steps once more on the same machine."""
    if failed_examination(turn) or verdict.code != "ES-N04" or verdict.node is None:
        return ""
    is_noticed = any(seen.node == verdict.node for seen in turn.incident.facts.alerts)
    if is_noticed:
        return ""
    if verdict.blame is Blame.UNKNOWN:
        examination = turn.incident.examination
        is_sound = examination is not None and examination.is_over and not examination.unclear
        told = "the examination found nothing wrong with it" if is_sound else "no examination has shown more"
        return f"a line of the program that one rank alone runs does the same, and {told}"
    if trust.has_differed(turn, verdict.node):
        return ""
    return "nothing else speaks against it: the steps are done again on it, and it goes if they differ again"


def why_not(turn: Turn, nodes: tuple[str, ...], *, is_asked: bool = False) -> str:
    """Why they are not evicted; empty when they may be."""
    if turn.spec.mode is not Mode.ACT:
        return f"mode is {turn.spec.mode}"
    if is_asked:
        may_shrink = elastic.can_shrink_by(turn.state, len(nodes))
        is_needed = why_no_standby(turn, nodes) and not may_shrink
        return "no standby is ready: it stays until one joins" if is_needed else ""
    return why_no_standby(turn, nodes) or why_too_many(turn, len(nodes))


def why_no_standby(turn: Turn, nodes: tuple[str, ...]) -> str:
    members = turn.state.members.values()
    ready = sum(member.role is Role.STANDBY and not member.suspected for member in members)
    if ready < len(nodes):
        return f"{len(nodes)} standby needed, {ready} ready; on the same machine it would come again"
    return ""


def why_too_many(turn: Turn, more: int) -> str:
    """The circuit breaker."""
    window_s = turn.policy.budget_window_s
    recent = sum(at > turn.at - window_s for at in turn.state.evictions)
    fleet = turn.spec.num_slots + turn.spec.num_standby
    limit = max(1, int(turn.policy.max_evicted_share * fleet))
    if recent + more > limit:
        share = f"policy max_evicted_share = {turn.policy.max_evicted_share:g} of {fleet} nodes"
        return f"{recent} evicted within {window_s:g} s, {limit} allowed ({share}): too many to be chance"
    return ""


def count(turn: Turn, more: int) -> None:
    """So many nodes are evicted now."""
    since = turn.at - turn.policy.budget_window_s
    recent = tuple(at for at in turn.state.evictions if at > since)
    turn.set(evictions=(*recent, *(turn.at for _ in range(more))))
