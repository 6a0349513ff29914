"""How far all ranks had come when a generation ended, also those whose node was lost before its last report.

A node reports every two seconds how far its ranks are, and once more when they end. A lost node never sends the last
one, so its own reports lag. Its copies on other nodes and what the others had done show more.
"""

from collections.abc import Iterable

from everstep.core.restore import holdings
from everstep.core.state.schema import State
from everstep.core.state.turn import Turn
from everstep.core.state.workers import completed_of
from everstep.model.facts import Held, RankAccount

RECENTLY_S = 2.0
"""Collectives are looked at a few times in a second."""

BESIDE = 1
"""Ranks that go together may be so many steps apart. A snapshot that is older says nothing of the steps since: not
every step has one."""


def note_unheard(turn: Turn, node: str, ranks: Iterable[int], kept: Iterable[Held]) -> None:
    """The node of these ranks is lost. What outlived it says of a rank how far it had come."""
    told = {item.rank: max(item.steps, default=-1) for item in kept}
    silent = [
        worker.rank
        for worker in turn.own_workers(node, ranks)
        if worker.exit is None and told.get(worker.rank, -1) < _at_least(worker.account)
    ]
    turn.set_incident(unheard=tuple(sorted({*turn.incident.unheard, *silent})))


def note_at_end(turn: Turn) -> None:
    """No rank of the generation is left: what is lost from here counts against the step that all of them had done."""
    state = turn.state
    best, unheard = _best(state, turn.incident.unheard)
    known = [step for step in (turn.incident.best_step, best) if step is not None]
    turn.set_incident(best_step=max(known, default=None), unheard=unheard)
    if best is not None and (state.best_step is None or best > state.best_step):
        turn.set(best_step=best)


def _best(state: State, unheard: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    """The newest step that all had completed, and the ranks for which that is unknown: at least this one."""
    resumed = state.formation.resume_step if state.formation is not None else None
    newest = holdings.newest_by_rank(state) if any(worker.exit is None for worker in state.workers.values()) else {}
    told: list[int | None] = []
    lost: list[int | None] = []
    for worker in state.workers.values():
        done = completed_of(worker.account)
        if worker.exit is None:
            copy = newest.get(worker.rank)
            lost.append(_newer(done, None if copy is None else copy[0]))
        else:
            told.append(done)
    told_step, least = _by_all(told), _by_all([*told, *lost])
    if told and told_step is None:  # one that is known had done none
        return _newer(least, resumed), ()
    if not unheard and (told_step is None or least is None or told_step - least <= BESIDE):
        return _newer(least, resumed), ()
    if told_step is not None and (least == told_step or _goes_together(state)):
        return _newer(told_step, resumed), ()
    return _newer(least, resumed), unheard


def _by_all(steps: list[int | None]) -> int | None:
    known = [step for step in steps if step is not None]
    return min(known) if known and len(known) == len(steps) else None


def _newer(one: int | None, other: int | None) -> int | None:
    return max((step for step in (one, other) if step is not None), default=None)


def _at_least(account: RankAccount | None) -> int:
    done = completed_of(account)
    return 0 if done is None else done


def _goes_together(state: State) -> bool:
    """Whether collectives ended during the last steps of the remaining ranks: no rank was further behind than that."""
    return any(worker.exit is not None and _communicated(worker.account) for worker in state.workers.values())


def _communicated(account: RankAccount | None) -> bool:
    if account is None or account.communicated_at is None or account.last_step_at is None:
        return False
    step_s = 0.0
    if account.num_steps > 1 and account.first_step_at is not None:
        step_s = (account.last_step_at - account.first_step_at) / (account.num_steps - 1)
    return account.communicated_at >= account.last_step_at - max(RECENTLY_S, 2 * step_s)
