"""The same failure again, and what is certain from it.

A program that has not made a step yet has nothing that a restart could save: what ends it twice in the same way ends it
a third time, and its side effects come each time. Once it has made steps, more is worth a try, and only the same place
in the user's code counts.
"""

import signal

from everstep.core.decide import allowance, flow
from everstep.core.state.turn import Turn
from everstep.model.facts import Exit
from everstep.model.verdict import Blame, Verdict

FAILED_STARTS = 2
"""Before the first step: the first may have been bad luck."""

USAGE_ERROR = 2
"""What argparse, getopt's users, click and most shells end with for arguments that make no sense."""

FORGET_S = 600.0
"""Between two kills from outside."""

_FROM_OUTSIDE = ("SIGKILL", "SIGTERM")


def ended_at(turn: Turn, verdict: Verdict) -> str:
    """Where the program ended, or how: "train.py:212", "exit code 3", "SIGSEGV". Empty: not by itself."""
    if verdict.place:
        return verdict.place
    end = _first_end(turn, verdict)
    if end is None:
        return ""
    place = end.error.place if end.error is not None else end.place
    if place:
        return place
    if end.signal is not None:
        return _signal_name(end.signal)
    return f"exit code {end.code}" if end.code is not None else ""


def times(turn: Turn, place: str) -> int:
    """How often in a row the run has failed like this without a new step, this time included."""
    before = turn.state.failure
    again = before is not None and before.place == place and before.best_step == turn.state.best_step
    if before is not None and place in _FROM_OUTSIDE and turn.at - before.at > FORGET_S:
        return 1  # the job ran, whether it tells of steps or not, and somebody ended it
    return before.count + 1 if again and before is not None else 1


def is_usage_error(turn: Turn, verdict: Verdict) -> bool:
    """The program refused its arguments before it had begun."""
    end = _first_end(turn, verdict)
    return not turn.state.has_stepped and end is not None and end.error is None and end.code == USAGE_ERROR


def is_failed_start(turn: Turn, verdict: Verdict) -> bool:
    """The program ended by itself before its first step, and neither a machine nor something outside is to blame. Where
    there is a standby, and machines may still be found to be at fault, the flow says what comes."""
    if turn.state.has_stepped or verdict.blame not in (Blame.USER, Blame.OPERATOR, Blame.UNKNOWN):
        return False
    if allowance.is_users_word(turn) or not ended_at(turn, verdict):
        return False
    return not (turn.spec.num_standby and flow.has_more(turn, verdict))


def _first_end(turn: Turn, verdict: Verdict) -> Exit | None:
    """Of the ranks that the verdict names, the first that was not ended by us."""
    exits = turn.incident.exits
    ends = [exits[rank] for rank in verdict.ranks if rank in exits]
    return next((end for end in ends if not end.succeeded and not end.stopped_by_us), None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
