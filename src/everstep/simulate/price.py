"""Price of patience: recorded standstills, hangs and healthy waits, under one rule or another. Pure.

Both mistakes have a price. A hang that is acted on late holds all machines meanwhile; a healthy wait that is taken for
a hang costs a restart, the steps that nothing holds, and often comes again at the same place. The rule of a policy is
`patience` of `core.run.standstill`; it is compared with rules that use one time for everything.
"""

import math
from collections.abc import Iterable, Sequence

import msgspec

from everstep.core.run.standstill import patience
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Place
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict

VERDICT_S = 0.5
"""From the end of the window to a verdict with its evidence (docs/benchmarks.md)."""

RESTART_S = 1.0
"""From the decision to the first new step."""


class Standstill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All ranks of a job stood still once, and why. `lasted_s`: of one that ended by itself; None: it never would."""

    what: str
    lasted_s: float | None = None
    certain: bool = False  # what its evidence was taken for
    computes: bool = False
    saved: bool = False  # the job goes on from a snapshot; else a restart costs `at_risk_steps`
    at_risk_steps: int = 0
    limit_s: float | None = None  # of the collective in which the others wait
    times: int = 1  # that the program comes to this place


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """`after_s` None: as the policy says, by evidence and price; infinite: never, torch ends it at the limit."""

    name: str
    after_s: float | None = None


RULES = (
    Rule(name="by the price of a mistake"),
    Rule(name="always 2 s", after_s=2.0),
    Rule(name="always 30 s", after_s=30.0),
    Rule(name="never", after_s=math.inf),
)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of all standstills under one rule. Quantiles of nothing are None."""

    rule: str
    num_hangs: int
    found_median_s: float | None
    found_p95_s: float | None
    lost_to_hangs_s: float  # until they were found, and the restarts after them
    num_healthy: int
    num_hurt: int  # healthy jobs that were restarted at least once
    num_restarts: int  # of healthy jobs
    num_ended: int  # healthy jobs that never get past the place: the budget of restarts is used up
    lost_to_mistakes_s: float
    steps_lost: int  # by restarts of healthy jobs


class _Course(msgspec.Struct):
    """One job at one place."""

    lost_s: float = 0.0
    found_s: float | None = None
    restarts: int = 0
    steps: int = 0
    ended: bool = False


def prices(standstills: Sequence[Standstill], policy: Policy, rules: Iterable[Rule] = RULES) -> tuple[Price, ...]:
    return tuple(price(standstills, policy, rule) for rule in rules)


def price(standstills: Sequence[Standstill], policy: Policy, rule: Rule) -> Price:
    hangs = [_hang(each, policy, rule) for each in standstills if each.lasted_s is None]
    healthy = [_wait(each, policy, rule) for each in standstills if each.lasted_s is not None]
    found = sorted(course.found_s for course in hangs if course.found_s is not None)
    return Price(
        rule=rule.name,
        num_hangs=len(hangs),
        found_median_s=_quantile(found, 0.5),
        found_p95_s=_quantile(found, 0.95),
        lost_to_hangs_s=sum(course.lost_s for course in hangs),
        num_healthy=len(healthy),
        num_hurt=sum(course.restarts > 0 for course in healthy),
        num_restarts=sum(course.restarts for course in healthy),
        num_ended=sum(course.ended for course in healthy),
        lost_to_mistakes_s=sum(course.lost_s for course in healthy),
        steps_lost=sum(course.steps for course in healthy),
    )


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of one rule to a fleet in a run: arithmetic on the mean of each kind of standstill."""

    rule: str
    hangs_s: float
    mistakes_s: float
    num_hurt: float  # waits that were taken for a hang
    num_ended: float  # ... until the run gave up
    share: float  # of the wall time


def fleet_prices(
    standstills: Sequence[Standstill],
    policy: Policy,
    *,
    num_hangs: float,
    num_waits: float,
    wall_s: float,
    resubmit_s: float,
) -> tuple[Fleet, ...]:
    """Price so many hangs and healthy waits in a run, rule by rule; a run that gives up is submitted again. Return
    nothing if no hang or no healthy wait is recorded to take means of."""
    found = []
    for each in prices(standstills, policy):
        if not each.num_hangs or not each.num_healthy:
            return ()
        hangs_s = num_hangs * each.lost_to_hangs_s / each.num_hangs
        per_wait = num_waits / each.num_healthy
        mistakes_s = per_wait * (each.lost_to_mistakes_s + each.num_ended * resubmit_s)
        found.append(
            Fleet(
                rule=each.rule,
                hangs_s=hangs_s,
                mistakes_s=mistakes_s,
                num_hurt=per_wait * each.num_hurt,
                num_ended=per_wait * each.num_ended,
                share=(hangs_s + mistakes_s) / wall_s,
            )
        )
    return tuple(found)


def act_after_s(standstill: Standstill, known: Place, policy: Policy, rule: Rule) -> float:
    """Since the job stood still; infinite: never. The window before which nothing is called a standstill is in it."""
    if rule.after_s is not None:
        return rule.after_s
    given = patience(
        _verdict(standstill),
        known=known,
        step=None,
        has_way_back=standstill.saved,
        window_s=policy.hang_window_s,
        limit_s=standstill.limit_s,
        policy=policy,
    )
    after_s = math.inf if given.act_after_s is None else given.act_after_s
    return max(after_s, policy.hang_window_s)


def _hang(standstill: Standstill, policy: Policy, rule: Rule) -> _Course:
    """It ends with a restart: ours, or the one after torch's own time limit."""
    limit_s = policy.hang_limit_s if standstill.limit_s is None else standstill.limit_s
    found_s = min(act_after_s(standstill, Place(), policy, rule) + VERDICT_S, limit_s)
    return _Course(found_s=found_s, lost_s=found_s + RESTART_S)


def _wait(standstill: Standstill, policy: Policy, rule: Rule) -> _Course:
    """Until the program has come past the place as often as it does, or its restarts are used up. A plain program
    begins anew each time, so it comes to all of them again."""
    assert standstill.lasted_s is not None
    course, known, passed = _Course(), Place(), 0
    while passed < standstill.times:
        acted_s = act_after_s(standstill, known, policy, rule) + VERDICT_S
        if standstill.lasted_s <= acted_s:
            passed += 1
            known = msgspec.structs.replace(known, longest_s=standstill.lasted_s)
            continue
        if course.restarts == policy.max_restarts:
            course.ended = True
            return course
        course.restarts += 1
        course.lost_s += acted_s + RESTART_S
        course.steps += 0 if standstill.saved else standstill.at_risk_steps
        passed = passed if standstill.saved else 0
        known = msgspec.structs.replace(known, times=known.times + 1)
    return course


def _verdict(standstill: Standstill) -> Verdict:
    certainty = Certainty.CERTAIN if standstill.certain else Certainty.DOUBTFUL
    return Verdict(
        code="ES-H02",
        sentence=standstill.what,
        blame=Blame.UNKNOWN,
        confidence=Confidence.HIGH if standstill.certain else Confidence.MEDIUM,
        at=0.0,
        certainty=certainty,
        computes=standstill.computes,
        place=standstill.what,
    )


def _quantile(ordered: Sequence[float], share: float) -> float | None:
    """Nearest rank; None of nothing."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None
