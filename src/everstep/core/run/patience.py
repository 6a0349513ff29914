"""How long a job that stands still is left alone: as long as the price of a mistake says.

Pure. What is certain is acted on at once. What may end by itself costs, where it is mistaken for a hang, some seconds
of a job that goes on from a snapshot, and everything of a job that has none: so the first gets half a minute or a
minute, the second the time limit of the collective that its ranks wait in, after which torch itself ends it. A place
that was mistaken before, or was seen to take long, gets more (docs/hang-rule.md, ADR 0018).
"""

import msgspec

from everstep.core.state.place import Place
from everstep.core.state.policy import Policy
from everstep.model.verdict import Certainty, Verdict

LIMIT_SLACK_S = 30.0
"""After the time limit of a collective: torch raises first, and its own words say more than ours."""

SEEN_STRETCH = 2.0
"""A place that was seen to take so long, and went on by itself, may take so many times as long."""


STOPPED = "ES-H01"
"""Somebody outside stops processes, and the program has no part in it: never taken for the program's own."""


AGAIN = 5.0
"""Every time that a place was acted on, it gets so many times as long. Twice would mistake an upload of two minutes
once more."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`act_after_s`: since the job stood still; 0: now, None: never, it is only reported."""

    act_after_s: float | None
    why: str


def key_of(verdict: Verdict) -> str:
    """Under which a place is remembered: the same class at the same line."""
    return f"{verdict.certainty or Certainty.DOUBTFUL} {verdict.place or verdict.code}"


def is_repeated(known: Place, step: int | None) -> bool:
    """The same certain hang at the same step, or an earlier one: the job made no progress in between."""
    return known.times > 0 and (step is None or known.step is None or step <= known.step)


def patience(
    verdict: Verdict,
    *,
    known: Place,
    step: int | None,
    has_way_back: bool,
    window_s: float,
    limit_s: float | None,
    policy: Policy,
) -> Patience:
    """For this verdict on a hang. `window_s`: the longest silence that is usual here; `limit_s`: of the collective."""
    limit = policy.hang_limit_s if limit_s is None else limit_s
    name = "the collective's own time limit" if limit_s is not None else "the usual time limit of a collective"
    over = Patience(act_after_s=limit + LIMIT_SLACK_S, why=f"{name} is {limit:g} s")
    if verdict.certainty is Certainty.CERTAIN:
        if is_repeated(known, step) and known.times >= policy.hang_repeats and verdict.code != STOPPED:
            return msgspec.structs.replace(over, why=f"{_so_often(known)} without a new step in between; {over.why}")
        return Patience(act_after_s=0.0, why="nothing can release it")
    if known.times >= policy.hang_repeats:
        return msgspec.structs.replace(over, why=f"{_so_often(known)}, and it came again; {over.why}")
    if not has_way_back and policy.hang_plain_s <= 0:
        return msgspec.structs.replace(over, why=f"nothing is saved, so a mistake costs everything; {over.why}")
    return _of_a_mistake_that_costs_seconds(verdict, known, has_way_back, window_s, over, policy)


def _of_a_mistake_that_costs_seconds(
    verdict: Verdict, known: Place, has_way_back: bool, window_s: float, over: Patience, policy: Policy
) -> Patience:
    if has_way_back:
        usual_s = policy.hang_computing_s if verdict.computes else policy.hang_outside_s
        setting = "hang_computing_s" if verdict.computes else "hang_outside_s"
    else:
        usual_s, setting = policy.hang_plain_s, "hang_plain_s"
    found = max((usual_s * AGAIN**known.times, 0), (window_s, 1), (SEEN_STRETCH * known.longest_s, 2))
    whys = (
        f"policy {setting} = {usual_s:g} s"
        + (f", {AGAIN**known.times:g} times as it came again" if known.times else ""),
        f"up to {window_s:.0f} s are usual here",
        f"this place has taken {known.longest_s:.0f} s before, and continued",
    )
    assert over.act_after_s is not None
    if found[0] > over.act_after_s:
        return over
    return Patience(act_after_s=found[0], why=whys[found[1]])


def _so_often(known: Place) -> str:
    return f"a restart did not help {_times(known.times)}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")
