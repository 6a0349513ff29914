"""What patience costs: both mistakes, under the policy's own rule and beside rules of one time."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.core.state.policy import Policy
from everstep.report.foresee.policies import policies_page, price_lines
from everstep.simulate.price import RESTART_S, RULES, VERDICT_S, Rule, Standstill, fleet_prices, price, prices
from everstep.simulate.standstills import benchmarked

OURS, TWO, THIRTY, NEVER = RULES
POLICY = Policy()
WAIT = Standstill(what="upload", lasted_s=60.0, at_risk_steps=1000, times=5)
SAVED_WAIT = Standstill(what="upload", lasted_s=45.0, saved=True, times=5)
STOPPED = Standstill(what="stopped", certain=True, at_risk_steps=1000)
DEAD_SERVER = Standstill(what="server", limit_s=600.0, at_risk_steps=1000)


def of(rule, *standstills, policy=POLICY):
    return price(standstills, policy, rule)


def test_a_plain_program_that_waits_for_a_minute_is_left_alone_by_its_price_and_never_ends_under_one_time_for_all():
    assert (of(OURS, WAIT).num_hurt, of(OURS, WAIT).steps_lost) == (0, 0)
    for rule in (TWO, THIRTY):
        hurt = of(rule, WAIT)
        assert (hurt.num_hurt, hurt.num_restarts, hurt.num_ended) == (1, POLICY.max_restarts, 1)
        assert hurt.steps_lost == POLICY.max_restarts * 1000
    assert of(NEVER, WAIT).num_hurt == 0


def test_with_state_a_place_costs_at_most_one_restart_and_no_step():
    ours = of(OURS, SAVED_WAIT)
    assert (ours.num_restarts, ours.steps_lost, ours.num_ended) == (1, 0, 0)
    assert ours.lost_to_mistakes_s == POLICY.hang_outside_s + VERDICT_S + RESTART_S
    assert of(TWO, SAVED_WAIT).num_ended == 1


def test_what_is_certain_is_found_at_once_plain_or_not_and_what_is_doubtful_when_its_price_allows():
    assert of(OURS, STOPPED).found_median_s == POLICY.hang_window_s + VERDICT_S
    assert of(OURS, DEAD_SERVER).found_median_s == 600.0
    saved = Standstill(what="server", saved=True)
    assert of(OURS, saved).found_median_s == POLICY.hang_outside_s + VERDICT_S
    computes = Standstill(what="loop", saved=True, computes=True)
    assert of(OURS, computes).found_median_s == POLICY.hang_computing_s + VERDICT_S
    assert of(NEVER, STOPPED).found_median_s == POLICY.hang_limit_s


def test_another_time_moves_both_prices():
    hasty = Policy(hang_outside_s=10.0, hang_plain_s=20.0)
    assert of(OURS, Standstill(what="server", saved=True), policy=hasty).found_median_s == 10.5
    assert of(OURS, WAIT, policy=hasty).num_hurt == 1
    patient = Policy(hang_outside_s=90.0)
    assert of(OURS, SAVED_WAIT, policy=patient).num_hurt == 0


def test_nothing_recorded_is_not_measured_and_never_zero():
    empty = of(OURS, WAIT)
    assert (empty.found_median_s, empty.found_p95_s) == (None, None)
    assert price_lines(prices((), POLICY)) == []
    assert "no standstill with a known end is on record" in policies_page("run r1", POLICY, prices((), POLICY), {})
    assert fleet_prices([WAIT], POLICY, num_hangs=3, num_waits=1, wall_s=100.0, resubmit_s=0.0) == ()


def test_a_fleets_price_is_its_hangs_and_waits_times_their_means():
    ours, two, _, never = fleet_prices(
        [STOPPED, WAIT], POLICY, num_hangs=4, num_waits=10, wall_s=1e6, resubmit_s=1800.0
    )
    assert ours.hangs_s == 4 * (2.5 + RESTART_S)
    assert (ours.mistakes_s, ours.num_hurt) == (0.0, 0.0)
    assert (two.num_hurt, two.num_ended) == (10.0, 10.0)
    assert two.mistakes_s == 10 * (POLICY.max_restarts * (2.5 + RESTART_S) + 1800.0)
    assert never.share == never.hangs_s / 1e6


def test_the_benchmarks_standstills_come_with_the_package_and_their_table_shows_both_mistakes():
    standstills = benchmarked()
    assert sum(each.lasted_s is None for each in standstills) >= 20
    assert sum(each.lasted_s is not None for each in standstills) >= 40
    by_rule = {each.rule: each for each in prices(standstills, POLICY)}
    ours, two, never = (by_rule[rule.name] for rule in (OURS, TWO, NEVER))
    assert (ours.num_ended, ours.num_restarts) == (0, ours.num_hurt)  # at most one per place
    assert ours.num_hurt < two.num_hurt == two.num_ended
    assert ours.steps_lost == 0
    assert ours.lost_to_hangs_s < never.lost_to_hangs_s


ONE = st.builds(
    Standstill,
    what=st.just("x"),
    lasted_s=st.none() | st.floats(0.1, 4000),
    certain=st.booleans(),
    computes=st.booleans(),
    saved=st.booleans(),
    at_risk_steps=st.integers(0, 10_000),
    limit_s=st.none() | st.floats(10, 3600),
    times=st.integers(1, 6),
)


@given(st.lists(ONE, max_size=12), st.floats(0, 3000))
def test_more_patience_never_hurts_more_and_less_never_finds_later(standstills, after_s):
    less = price(standstills, POLICY, Rule(name="less", after_s=after_s))
    more = price(standstills, POLICY, Rule(name="more", after_s=after_s + 10))
    assert more.num_hurt <= less.num_hurt
    assert more.num_restarts <= less.num_restarts
    assert more.lost_to_hangs_s >= less.lost_to_hangs_s
    assert all(each.num_restarts <= each.num_healthy * POLICY.max_restarts for each in prices(standstills, POLICY))


@given(st.lists(ONE, max_size=12))
def test_by_the_price_a_doubtful_plain_program_is_never_hurt_before_its_collectives_limit(standstills):
    plain = [
        each
        for each in standstills
        if not each.saved
        and not each.certain
        and each.lasted_s is not None
        and each.lasted_s <= (POLICY.hang_limit_s if each.limit_s is None else each.limit_s)
    ]
    assert price(plain, POLICY, OURS).num_hurt == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_price_is_plain_json(rule):
    text = json.dumps({name: getattr(price([STOPPED, WAIT], POLICY, rule), name) for name in ("rule", "num_hangs")})
    assert rule.name in text
    assert rule.after_s is None or rule.after_s > 0
    assert math.isfinite(price([STOPPED, WAIT], POLICY, rule).lost_to_hangs_s)
