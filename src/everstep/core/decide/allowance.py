"""How many restarts are left, and how long the next one waits.

`--max-restarts N` is the user's word: N over the whole run, and nothing else ends it (`exact_restarts`). Without it
`max_restarts` counts within a sliding window.

Restarts in a row without a new step wait longer and longer: what is wrong outside may pass, and a program that fails
at once must not burn through its budget in seconds. The first two do not wait: most faults need one restart. Where the
user said how many there are, no wait grows: a rank that was killed from outside is restarted at once, and a program
that ended by itself after a moment, which torchrun would not restart faster either.
"""

import signal

from everstep.core.state.course import FruitlessRestarts
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Refused

WAITING_RULES = ("restart-in-place", "reattempt", "read-again")
"""Nothing has changed but the time. Other rules take another node, another snapshot, another version."""

FREE = 2
LONGEST_S = 60.0

FORGET_S = 600.0
"""A restart at least so long after the one before follows a job that ran, whether or not it reports steps."""


def counted(turn: Turn) -> tuple[float, ...]:
    """Times of the restarts that count."""
    if turn.policy.exact_restarts:
        return turn.state.restarts
    return tuple(at for at in turn.state.restarts if at > turn.at - turn.policy.budget_window_s)


def used_up_text(turn: Turn) -> str:
    """Empty as long as there are restarts left."""
    used, limit = len(counted(turn)), turn.policy.max_restarts
    if used < limit:
        return ""
    if turn.policy.exact_restarts:
        return f"{used} restart{'' if used == 1 else 's'}, {limit} allowed (--max-restarts)"
    allowed = f"{limit} allowed (policy max_restarts, budget_window_s)"
    return f"{used} restarts within {turn.policy.budget_window_s:g} s, {allowed}"


def next_text(turn: Turn) -> str:
    """ "restart 3 of 10 in 3600 s": the one that is decided now."""
    text = f"restart {len(counted(turn)) + 1} of {turn.policy.max_restarts}"
    return f"{text} (--max-restarts)" if turn.policy.exact_restarts else f"{text} in {turn.policy.budget_window_s:g} s"


def spend(turn: Turn) -> float:
    """One more restart, now. Seconds for which it waits."""
    turn.set(restarts=(*counted(turn), turn.at))
    decision = turn.state.incident.decision if turn.state.incident is not None else None
    return _wait_s(turn) if decision is not None and decision.rule in WAITING_RULES else 0.0


def begin_wait(turn: Turn, after_s: float) -> None:
    """The next generation waits for so long."""
    assert turn.state.fruitless is not None, "counted before"
    row = f"{turn.state.fruitless.count} restarts in a row"
    if turn.state.has_own_steps or not turn.state.has_stepped:
        row += " without a new step"
    why = f"{row}: this one waits {after_s:g} s (policy backoff_s)"
    turn.set(is_backing_off=True)
    incident = turn.state.incident.id if turn.state.incident is not None else None
    turn.do(Refused(what="restart at once", why=why, incident=incident))
    turn.start_timer(Timer.of_generation(TimerKind.BACKOFF, turn.state.generation + 1), after_s, why)


def _wait_s(turn: Turn) -> float:
    """Counts it in the row that it is part of."""
    before, best_step = turn.state.fruitless, turn.state.best_step
    goes_on = before is not None and before.best_step == best_step and turn.at - before.at <= FORGET_S
    count = before.count + 1 if goes_on and before is not None else 1
    turn.set(fruitless=FruitlessRestarts(count=count, at=turn.at, best_step=best_step))
    if count <= FREE:
        return 0.0
    if turn.policy.exact_restarts:
        return 0.0 if _is_from_outside(turn) else turn.policy.backoff_s
    return min(LONGEST_S, turn.policy.backoff_s * 2.0 ** min(count - FREE - 1, 16))


def _is_from_outside(turn: Turn) -> bool:
    """No rank ended by itself: those that did not follow others were killed."""
    verdict = turn.state.incident.verdict if turn.state.incident is not None else None
    exits = [] if verdict is None else [turn.incident.exits.get(rank) for rank in verdict.ranks]
    return all(end is None or end.signal in (signal.SIGKILL, signal.SIGTERM) for end in exits)
