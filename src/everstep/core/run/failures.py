"""How often in a row the run has failed in one way: at the same place of the program, or by the same signal."""

from everstep.core.state.turn import Turn

FORGET_S = 600.0
"""Between two kills from outside."""

_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")


def times(turn: Turn, place: str) -> int:
    """How many times in a row the run has failed like this without a new step, including this time.

    Steps that are counted anew after each restart do not show whether there were new ones. Then a failure long after
    the one before is another one.
    """
    before, own_steps = turn.state.failure, turn.state.has_own_steps
    if before is None or before.place != place or before.best_step != turn.state.best_step:
        return 1
    age_s = turn.at - before.at
    if place in _FROM_OUTSIDE and age_s > FORGET_S:
        return 1  # the job ran, whether or not it reports steps, and was ended from outside
    return 1 if not own_steps and age_s > turn.policy.course_s else before.count + 1
