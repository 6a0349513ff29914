"""Trust is not recency: which step is known to be free of corruption, and what to do when replicas differ.

A step is trusted when all replicas were compared after it and held the same. It belongs to one history: going back
takes trust along. A comparison that could not be made is no event, so it never gets here. Pure; read by the rules of
recovery and by the choice of what to restore.
"""

from everstep.core.restore import holdings
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Corruption, Incident, State, Struck
from everstep.core.state.turn import Turn
from everstep.model.actions import StrikeCheckpoint, TrustStep
from everstep.model.events import AnomalyFound, ReplicasAgreed
from everstep.model.facts import Checkpoint, RankAccount
from everstep.model.verdict import Verdict

DIFFERENT = ("ES-N04", "ES-N05")
"""Replicas that were equal hold different parameters."""

LASTING_NAN = "ES-N07"
"""Losses stay not a number, so the parameters are none: every further step is for nothing."""

NOT_NUMBERS = (LASTING_NAN, "ES-TR01", "ES-TR02")
"""... or the program itself ended because of it."""

CORRUPTIONS = (*DIFFERENT, *NOT_NUMBERS)
"""What is held now is wrong, and a restart from it would be as wrong."""

_COMPARING = (Phase.FORMING, Phase.RUNNING, Phase.SETTLING, Phase.STOPPING)


def on_replicas_agreed(turn: Turn, event: ReplicasAgreed) -> None:
    """Trust the step. It is of this generation (others are fenced off), so of the history that the job is in."""
    state = turn.state
    is_news = state.trusted_step is None or event.step > state.trusted_step
    if state.phase not in _COMPARING or not is_news or is_corrupted(state.incident):
        return
    turn.set(trusted_step=event.step)
    turn.do(*trust_actions(turn))


def note_agreed(turn: Turn, event: AnomalyFound) -> None:
    """Replicas differ, but were equal at a later step than the trusted one known so far.

    Nodes are not asked to keep that step now: they would drop the older ones they keep, and which ranks still have it
    becomes known when they have exited."""
    trusted = turn.state.trusted_step
    if event.agreed_step is not None and (trusted is None or event.agreed_step > trusted):
        turn.set(trusted_step=event.agreed_step)


def trust_actions(turn: Turn) -> list[TrustStep]:
    """TrustStep for every node; also for nodes that are new in a generation, and to issue it again."""
    step = turn.state.trusted_step
    if step is None:
        return []
    why = f"all replicas held the same after step {step}: a corruption that is found later goes back to it"
    generation = turn.state.generation
    return [TrustStep(node=node, generation=generation, step=step, why=why) for node in turn.state.active_nodes]


def is_corrupted(incident: Incident | None) -> bool:
    """Return whether what was completed since the newest trusted step may be wrong: replicas differ, or numbers are not
    finite."""
    if incident is None:
        return False
    anomaly, verdict = incident.facts.anomaly, incident.verdict
    return any(found is not None and found.code in CORRUPTIONS for found in (anomaly, verdict))


def why_not_back(state: State) -> str:
    """Why a corrupted job cannot go back; empty when there is a trusted step, as far as is known while it runs."""
    if newest_trusted(state) is not None:
        return ""
    if state.trusted_step is not None:
        return "the program keeps no snapshots (everstep.State would), so a restart would begin where it began"
    return "there is no step yet after which all replicas are known to have agreed, so none to go back to"


def newest_trusted(state: State) -> int | None:
    """The newest trusted step as far as is known; whether every rank still has it is only known when it has ended."""
    in_memory = state.trusted_step if _keeps_snapshots(state) else None
    checkpoint = holdings.newest_checkpoint(state, only_trusted=True)
    known = [step for step in (in_memory, checkpoint.step if checkpoint is not None else None) if step is not None]
    return max(known, default=None)


def last_trusted(state: State) -> str:
    """For sentences."""
    if state.trusted_step is not None:
        return f"all replicas last agreed at step {state.trusted_step}"
    checkpoint = holdings.newest_checkpoint(state, only_trusted=True)
    return (
        f"the newest trusted step is {checkpoint.step}, a checkpoint"
        if checkpoint is not None
        else "nothing is trusted"
    )


def times_before(turn: Turn, ranks: tuple[int, ...]) -> int:
    """How often these ranks, or unidentified ones, have computed wrongly lately without a newer trusted step since."""
    now = -1 if turn.state.trusted_step is None else turn.state.trusted_step
    return sum(
        (bool(set(ranks) & set(each.ranks)) or not (ranks or each.ranks))
        and (-1 if each.trusted_step is None else each.trusted_step) >= now
        for each in _recent(turn)
    )


def has_differed(turn: Turn, node: str) -> bool:
    """Whether a replica on this node differed from the others lately, before this incident."""
    return any(each.node == node for each in _recent(turn))


def note_corruption(turn: Turn, verdict: Verdict | None) -> None:
    """The job goes back because of it."""
    ranks = verdict.ranks if verdict is not None else ()
    node = verdict.node if verdict is not None and verdict.code == "ES-N04" else None
    corruption = Corruption(at=turn.at, ranks=ranks, trusted_step=turn.state.trusted_step, node=node or "")
    turn.set(corruptions=(*_recent(turn), corruption))


def strike_untrusted(turn: Turn) -> None:
    """Checkpoints that were written between the trusted step and now: no later fault may bring them back."""
    state = turn.state
    trusted = state.trusted_step
    code = state.incident.verdict.code if state.incident is not None and state.incident.verdict is not None else ""
    if code in NOT_NUMBERS and trusted is None:
        return  # without replicas nothing is ever trusted, and most checkpoints are from before it happened
    bad = [c for c in state.checkpoints if not c.is_trusted and (trusted is None or c.step > trusted)]
    what = "numbers were not finite" if code in NOT_NUMBERS else "replicas differed"
    why = f"{what}, and {last_trusted(state)}"
    for checkpoint in bad:
        _strike(turn, checkpoint, why)


def strike_if_tainted(turn: Turn, checkpoint: Checkpoint, begun_at: float) -> bool:
    """A checkpoint whose last part was under way when the job went back before it because of a corruption."""
    since = [each for each in turn.state.corruptions if each.at >= begun_at]
    if not any(each.trusted_step is None or checkpoint.step > each.trusted_step for each in since):
        return False
    _strike(turn, checkpoint, "replicas differed while it was written")
    return True


def strike_actions(state: State) -> list[StrikeCheckpoint]:
    """To issue them again, as long as what was struck is what is there."""
    root, nodes = state.spec.checkpoint_dir if state.spec is not None else "", state.active_nodes
    coming = state.persisting.step if state.persisting is not None else None
    return [
        StrikeCheckpoint(node=nodes[0], root=root, step=checkpoint.step, why=struck.why)
        for checkpoint in state.checkpoints
        for struck in state.struck
        if struck.is_untrusted and holdings.strikes(struck, checkpoint) and checkpoint.step != coming and nodes and root
    ]


def _strike(turn: Turn, checkpoint: Checkpoint, why: str) -> None:
    """Strike a checkpoint in the state, and in the persistent tier for later runs."""
    state, at = turn.state, max(turn.at, checkpoint.at)
    struck = Struck(
        step=checkpoint.step, generation=state.generation, at=at, why=why, path=checkpoint.path, is_untrusted=True
    )
    if any(each.is_untrusted and holdings.strikes(each, checkpoint) for each in state.struck):
        return
    turn.set(struck=(*state.struck, struck))
    if turn.spec.checkpoint_dir and state.active_nodes:
        root, node = turn.spec.checkpoint_dir, state.active_nodes[0]
        turn.do(StrikeCheckpoint(node=node, root=root, step=checkpoint.step, why=why))


def _keeps_snapshots(state: State) -> bool:
    if state.formation is not None and state.formation.resume_step is not None:
        return True
    return all(_may_keep(worker.account) for worker in state.workers.values())


def _may_keep(account: RankAccount | None) -> bool:
    """Whether the rank may keep snapshots. After its first reported step it is still unknown whether State has
    published it."""
    if account is None:
        return False
    is_first_word = account.counts_own_steps and account.num_steps <= 1
    return account.published_step is not None or is_first_word


def _recent(turn: Turn) -> tuple[Corruption, ...]:
    since = turn.at - turn.policy.budget_window_s
    return tuple(each for each in turn.state.corruptions if each.at > since)
