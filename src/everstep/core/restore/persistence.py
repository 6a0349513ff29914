"""Steps on their way to the persistent tier: which step, when, and what happens if it does not get there.

Every `checkpoint_every_s` a future step is announced to all nodes, so that each can pin it; when all parts are there,
one node makes the whole visible. One at a time. A failure is reported and retried with the next timer; training never
waits. Before a run ends, the newest step in memory is written first. A part that arrives for another step than the
current one belongs to an abandoned attempt, and is ignored. A commit is not: however late it happened and whoever did
it, the checkpoint is there now, and what retention dropped is not.
"""

import math

import msgspec

from everstep.core.restore import trust
from everstep.core.restore.holdings import floors, newest_checkpoint
from everstep.core.state.frozenmap import Names
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Ending, Persisting, State
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Action, CommitCheckpoint, PersistSnapshot, Refused
from everstep.model.events import CheckpointCommitted, ReplicasAgreed, SnapshotPersisted
from everstep.model.facts import RankAccount

NEXT_TIMER = TimerKind.PERSIST_NEXT
LIMIT_TIMER = TimerKind.PERSIST_LIMIT

MIN_LEAD_STEPS = 2
LEAD_S = 1.0
"""From the decision until every agent has pinned the step, with a slow disk under the journal. A step that has gone by
when its pin comes may be gone; a longer lead only makes the checkpoint that much newer."""

MAX_AGE_S = 4.0
"""Agents report progress every two seconds. A rank that is silent for longer is not assumed to step on meanwhile."""

YOUNG_S = 30.0
"""A generation that is younger may just not have reported a step yet."""

RETRY_S = 10.0
"""Delay if one is due in the middle of a recovery, or before every rank has reported a snapshot."""

COMMIT_LIMIT_S = 300.0
"""Time limit from when all parts are there. The same as agents give to the process that commits: what is abandoned
earlier here might still succeed there."""

MAX_UNCOMMITTED = 16
"""Commits without an answer that are remembered; agents give up on each of them within their limit."""

MIN_LIMIT_S = 60.0
SLACK_S = 5.0
"""On top of an agent's limit, for its answer."""


def start_clock(turn: Turn) -> None:
    """Every rank is through. Restarts do not move the time at which the next step is due."""
    if not turn.spec.checkpoint_dir or NEXT_TIMER in turn.state.timers:
        return
    if turn.state.persist_at is None:
        turn.set(persist_at=turn.at + turn.spec.checkpoint_every_s)
    after_s = max(0.0, (turn.state.persist_at or 0.0) - turn.at)
    turn.start_timer(Timer(NEXT_TIMER), after_s, "the next step is due in the persistent tier")


def on_next_timer(turn: Turn, _subject: str, _due_at: float) -> None:
    is_too_early = turn.state.phase is not Phase.RUNNING or not _begin_next(turn)
    every_s = turn.spec.checkpoint_every_s
    turn.set(persist_at=turn.at + (min(RETRY_S, every_s) if is_too_early else every_s))
    start_clock(turn)


def on_limit_timer(turn: Turn, _subject: str, _due_at: float) -> None:
    if turn.state.persisting is not None:
        missing = tuple(turn.state.persisting.missing) or (turn.state.persisting.committer,)
        limit_s = turn.state.persisting.limit_s
        _fail(turn, f"no answer of {', '.join(missing[:4])} within {limit_s:.0f} s")


def on_snapshot_persisted(turn: Turn, event: SnapshotPersisted) -> None:
    now = turn.state.persisting
    if now is None or event.step != now.step or event.node not in now.missing:
        return
    if event.why:
        _fail(turn, f"{event.node}: {event.why}")
        return
    missing = now.missing.without(event.node)
    written, total = now.written_bytes + event.written_bytes, now.total_bytes + event.total_bytes
    is_trusted = turn.state.trusted_step is not None and now.step <= turn.state.trusted_step
    turn.set(
        persisting=msgspec.structs.replace(
            now, missing=missing, written_bytes=written, total_bytes=total, is_trusted=is_trusted
        )
    )
    if not missing:
        _ask_to_commit(turn, "every node's part is there")


def on_replicas_agreed(turn: Turn, event: ReplicasAgreed) -> None:
    """A checkpoint that was committed before its step was compared is marked now; once, whether that works or not."""
    trust.on_replicas_agreed(turn, event)
    trusted, newest = turn.state.trusted_step, newest_checkpoint(turn.state)
    if trusted is None or newest is None or newest.is_trusted or newest.step > trusted or _is_busy(turn.state):
        return
    if turn.state.phase is not Phase.RUNNING or newest.step <= turn.state.marked_step or not turn.spec.checkpoint_dir:
        return
    turn.set(marked_step=newest.step)
    _begin(turn, newest.step, COMMIT_LIMIT_S, f"all replicas held the same after step {trusted}", only_mark=True)


def on_checkpoint_committed(turn: Turn, event: CheckpointCommitted) -> None:
    """Record what a commit did to the tier, also if its attempt was abandoned (`now` is None then)."""
    now = turn.state.persisting
    if now is not None and (event.step != now.step or event.node != now.committer or now.missing):
        now = None
    begun_at = now.begun_at if now is not None else turn.state.uncommitted.get(event.step, -math.inf)
    is_taken = event.checkpoint is not None and not trust.strike_if_tainted(turn, event.checkpoint, begun_at)
    _note_tier(turn, event, is_taken=is_taken, is_late=now is None)
    if now is None:
        return
    if event.checkpoint is None:
        _fail(turn, f"{event.node}: {event.why}")
    elif not is_taken:
        _fail(turn, "replicas differed while it was written, so it is never restored")
    else:
        _end(turn)


def _note_tier(turn: Turn, event: CheckpointCommitted, *, is_taken: bool, is_late: bool) -> None:
    """Record which checkpoints the tier has now. Unless this one is late, newer ones are of a history that the job went
    back on."""
    uncommitted = {step: at for step, at in turn.state.uncommitted.items() if step != event.step}
    left = [c for c in turn.state.checkpoints if c.step not in event.dropped]
    if is_taken and event.checkpoint is not None:
        left = [c for c in left if c.step < event.step or (is_late and c.step > event.step)]
        left = sorted((*left, event.checkpoint), key=lambda each: each.step)
    turn.set(checkpoints=tuple(left), uncommitted=uncommitted)


def on_node_lost(turn: Turn, node: str) -> None:
    """A part that is there stays there, and any node can commit."""
    now, others = turn.state.persisting, turn.state.active_nodes
    if now is None or (node not in now.missing and node != now.committer):
        return
    if node in now.missing or not now.missing or not others:
        _fail(turn, f"{node} was lost meanwhile")
    else:
        turn.set(persisting=msgspec.structs.replace(now, committer=others[0]))


def hurry(turn: Turn, by: float) -> None:
    """Shorten the time for the step under way: the run is to end by `by`."""
    now, due_at = turn.state.persisting, turn.state.timers.get(LIMIT_TIMER)
    if now is None or (due_at is not None and due_at <= by):
        return
    turn.set(persisting=msgspec.structs.replace(now, limit_s=max(0.0, by - turn.at - SLACK_S)))
    turn.start_timer(
        Timer(LIMIT_TIMER), max(0.0, by - turn.at), f"step {now.step} has to be in the persistent tier by then"
    )


def save_first(turn: Turn, end: Ending) -> bool:
    """Before the run ends like this: send the newest step in memory on its way, if there is one that is not there yet.
    `ending.finish` is called again when it has arrived, or cannot."""
    if not turn.spec.checkpoint_dir or turn.state.phase is Phase.SAVING or turn.state.generation < 0:
        return False
    step, why_not = _last_step(turn)
    newest = newest_checkpoint(turn.state)
    if step is None or (newest is not None and newest.step >= step):
        if why_not:
            turn.do(Refused(what="write the last step to the persistent tier", why=why_not))
        return False
    limit_s = max(MIN_LIMIT_S, turn.policy.last_save_s)
    if end.save_by is not None:
        limit_s = end.save_by - turn.at - SLACK_S
        if limit_s <= 0:
            why = "no time is left of the notice (policy notice_s)"
            turn.do(Refused(what=f"write step {step} to the persistent tier", why=why))
            return False
    turn.enter(Phase.SAVING, ending=end, waiting=Names())
    _begin(turn, step, limit_s, f"the last step before the end: {end.why}")
    return True


def pending_actions(state: State, why: str) -> list[Action]:
    """List the actions that are asked for and not answered. Also used to ask again."""
    now, spec = state.persisting, state.spec
    if now is None or spec is None or now.generation != state.generation:
        return []
    if not now.missing:
        return [
            CommitCheckpoint(
                node=now.committer,
                step=now.step,
                world_size=spec.world_size,
                root=spec.checkpoint_dir,
                keep=spec.checkpoint_keep,
                is_trusted=now.is_trusted,
                generation=now.generation,
                resumed=tuple(floors(state)),
                why=why,
            )
        ]
    ranks_of_node: dict[str, list[int]] = {}
    for rank, worker in sorted(state.workers.items()):
        ranks_of_node.setdefault(worker.node, []).append(rank)
    return [
        PersistSnapshot(
            node=node,
            generation=now.generation,
            step=now.step,
            ranks=tuple(ranks_of_node.get(node, ())),
            world_size=spec.world_size,
            root=spec.checkpoint_dir,
            limit_s=now.limit_s,
            is_last=state.phase is Phase.SAVING,
            why=why,
        )
        for node in now.missing
    ]


def _begin_next(turn: Turn) -> bool:
    """False: it is too early to say whether there is something to write."""
    now = turn.state.persisting
    if now is not None and _is_busy(turn.state):
        if not now.is_late:  # once
            turn.set(persisting=msgspec.structs.replace(now, is_late=True))
            why = f"step {now.step} is still on its way, for {turn.at - now.begun_at:.0f} s"
            turn.do(Refused(what="write another step to the persistent tier", why=why))
        return True
    accounts = [worker.account for worker in turn.state.workers.values()]
    without = [rank for rank, worker in turn.state.workers.items() if not _has_snapshot(worker.account)]
    if without:
        if _is_young(turn):
            return False
        _refuse_once(turn, f"rank {without[0]} has reported no snapshot (a program without everstep.State takes none)")
        return True
    turn.set(persist_refused="")
    step, wait_s = step_to_come([a for a in accounts if a is not None], turn.at)
    limit_s = max(MIN_LIMIT_S, turn.spec.checkpoint_every_s) + 3 * wait_s
    when = f"; done in about {wait_s:.1f} s" if wait_s > 0 else ""
    _begin(turn, step, limit_s, f"due every {turn.spec.checkpoint_every_s:g} s{when}")
    return True


def _is_young(turn: Turn) -> bool:
    return turn.state.formation is not None and turn.at - turn.state.formation.at <= YOUNG_S


def _refuse_once(turn: Turn, why: str) -> None:
    """Not again with every timer."""
    if turn.state.persist_refused != why:
        turn.set(persist_refused=why)
        turn.do(Refused(what="write a step to the persistent tier", why=why))


def step_to_come(accounts: list[RankAccount], now: float) -> tuple[int, float]:
    """A step that no rank has done when every agent knows of it, and in how many seconds it is about done."""
    step_s = max((_step_s(account) for account in accounts), default=0.0)
    fastest_s = min((_step_s(account) for account in accounts), default=0.0)
    newest = max((_step_by_now(account, fastest_s, now) for account in accounts), default=0)
    lead = max(MIN_LEAD_STEPS, math.ceil(LEAD_S / fastest_s) if fastest_s > 0 else MIN_LEAD_STEPS)
    return newest + lead, lead * step_s


def _is_busy(state: State) -> bool:
    return state.persisting is not None and state.persisting.generation == state.generation


def _begin(turn: Turn, step: int, limit_s: float, why: str, *, only_mark: bool = False) -> None:
    nodes = turn.state.active_nodes
    _note_uncommitted(turn)
    turn.set(
        persisting=Persisting(
            step=step,
            generation=turn.state.generation,
            begun_at=turn.at,
            limit_s=limit_s,
            missing=Names(() if only_mark else nodes),
            committer=nodes[0],
            is_trusted=only_mark,
        )
    )
    turn.do(*pending_actions(turn.state, why))
    turn.start_timer(Timer(LIMIT_TIMER), limit_s + SLACK_S, f"step {step} has to be in the persistent tier by then")


def _fail(turn: Turn, why: str) -> None:
    now = turn.state.persisting
    assert now is not None, "only called while a step is on its way"
    newest = newest_checkpoint(turn.state)
    kept = "there is no earlier one" if newest is None else f"the newest one there stays step {newest.step}"
    is_there = newest is not None and newest.step == now.step
    what = f"mark step {now.step} as trusted" if is_there else f"write step {now.step} to the persistent tier"
    turn.do(Refused(what=what, why=f"{why}; training continues, {kept}" if turn.state.ending is None else why))
    _note_uncommitted(turn)
    _end(turn)


def _ask_to_commit(turn: Turn, why: str) -> None:
    """It has a limit of its own, and a run that must end has one besides."""
    now, ending = turn.state.persisting, turn.state.ending
    assert now is not None, "only called while a step is on its way"
    turn.do(*pending_actions(turn.state, why))
    wait_s = COMMIT_LIMIT_S + SLACK_S
    if ending is not None and ending.save_by is not None:
        wait_s = min(wait_s, max(0.0, ending.save_by - turn.at))
    turn.set(persisting=msgspec.structs.replace(now, limit_s=max(0.0, wait_s - SLACK_S)))
    turn.start_timer(Timer(LIMIT_TIMER), wait_s, f"step {now.step} has to be committed by then")


def _note_uncommitted(turn: Turn) -> None:
    """Remember when an abandoned attempt began: if it is committed after all, taint is judged from that time."""
    now = turn.state.persisting
    if now is None or now.missing or now.step in turn.state.uncommitted:
        return
    newest = [*turn.state.uncommitted.items(), (now.step, now.begun_at)][-MAX_UNCOMMITTED:]
    turn.set(uncommitted=dict(newest))


def _end(turn: Turn) -> None:
    turn.set(persisting=None)
    turn.drop_timer(Timer(LIMIT_TIMER))


def _last_step(turn: Turn) -> tuple[int | None, str]:
    """The newest step that all nodes still hold in memory, and why it is not to be written."""
    state = turn.state
    if state.num_vacant:
        return None, "a node is lost, and with it the memory of its ranks"
    if trust.is_corrupted(state.incident):
        return None, "replicas differed, and what memory holds may be wrong"
    if not state.tally.unsuccessful:
        published = [w.account.published_step if w.account else None for w in state.workers.values()]
        known = [step for step in published if step is not None]
        return (min(known), "") if known and len(known) == len(published) else (None, "")
    damaged = {(struck.rank, struck.step) for struck in state.struck if not struck.path}
    held = [set(state.held[rank].steps) if rank in state.held else set() for rank in state.workers]
    common = set.intersection(*held) if held else set()
    return max(
        (step for step in common if not any((rank, step) in damaged for rank in state.workers)), default=None
    ), ""


def _has_snapshot(account: RankAccount | None) -> bool:
    return account is not None and account.published_step is not None and account.last_step is not None


def _step_s(account: RankAccount) -> float:
    if account.first_step_at is None or account.last_step_at is None or account.num_steps < 2:
        return 0.0
    return max(0.0, account.last_step_at - account.first_step_at) / (account.num_steps - 1)


def _step_by_now(account: RankAccount, step_s: float, now: float) -> int:
    """The rank's estimated step, from its last report."""
    done, at = account.last_step or 0, account.last_step_at
    if at is None or step_s <= 0:
        return done
    return done + math.ceil(min(max(0.0, now - at), MAX_AGE_S) / step_s)
