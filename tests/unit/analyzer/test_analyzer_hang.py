"""The hang rule: two of four silent in the job's own window; unknown counts for nothing; who computes is not hung."""

import math

import pytest

from everstep.analyzer.hangs.hang import HangPolicy, judge, judge_rank, window_s
from everstep.analyzer.hangs.signals import Phase, RankSample, Rhythm, Signal, WaitsOn, phase_seen
from everstep.analyzer.observations.clusters import Activity

FAST = Rhythm(step_s=(0.1,) * 60)  # a job of 100 ms steps


def sample(rank=0, log=9.0, stack=9.0, device=9.0, communication=9.0, **more):
    return RankSample(rank=rank, log_s=log, stack_s=stack, device_s=device, communication_s=communication, **more)


@pytest.mark.parametrize(
    ("silent", "hung"),
    [({}, False), ({"log"}, False), ({"log", "stack"}, True), ({"communication", "device"}, True)],
)
def test_two_of_four(silent, hung):
    ages = {str(signal): 9.0 if str(signal) in silent else 0.1 for signal in Signal}
    ages["stack"] = 9.0 if "stack" in silent or hung else 0.1
    assert judge_rank(sample(**ages), FAST).hung is hung


def test_unknown_is_neither_silent_nor_healthy():
    only_one = judge_rank(sample(stack=None, device=None, communication=None), FAST)
    assert not only_one.hung
    assert (
        only_one.why
        == "not hung: only log 9.0 s silent within 2.0 s (stack, device, communication not known); 2 are needed"
    )
    two = judge_rank(sample(stack=None, device=None), FAST)
    assert two.hung
    assert two.known == (Signal.LOG, Signal.COMMUNICATION)
    none = judge_rank(RankSample(rank=0), FAST)
    assert (none.hung, none.known) == (False, ())


@pytest.mark.parametrize("broken", [math.nan, math.inf, -1.0])
def test_a_measurement_that_cannot_be_is_unknown(broken):
    assert judge_rank(sample(log=broken), FAST).known == (Signal.STACK, Signal.DEVICE, Signal.COMMUNICATION)


def aged(rank: int, age: float, **more):
    return sample(rank=rank, **{**dict.fromkeys(("log", "stack", "device", "communication"), age), **more})


def test_a_rank_that_computes_shelters_the_others_for_a_while_and_is_named_then():
    def seen(age: float):
        return judge([aged(0, age), aged(1, age, stack=0.2, device=0.1), aged(2, age)], FAST)

    soon, later = seen(4.0), seen(9.0)
    assert (soon.hung, soon.culprit) == (False, None)
    assert soon.why == "not hung: ranks 0,2 are silent, but rank 1 computes: a long step"
    assert (later.hung, later.culprit) == (True, 1)
    assert later.why == "rank 1 computes; ranks 0,2 are silent"


def test_a_long_step_of_all_keeps_nobody_waiting():
    everybody = [aged(rank, 250.0, stack=0.2, device=0.1) for rank in range(3)]
    assert not judge(everybody, FAST).hung
    assert judge([aged(rank, 301.0, stack=0.2, device=0.1) for rank in range(3)], FAST).hung


def test_a_loop_uses_the_processor_with_a_stack_that_stays():
    verdict = judge([sample(), sample(rank=1, device=0.1)], FAST)
    assert verdict.hung
    assert verdict.ranks == (0, 1)


def test_not_even_computing_may_take_for_ever():
    forever = sample(rank=1, log=301, stack=0.1, device=0.1, communication=301)
    assert judge([sample(), forever], FAST).hung


def test_a_debugger_is_not_a_hang():
    verdict = judge([sample(paused=True), sample(rank=1)], FAST)
    assert not verdict.hung
    assert "paused" in verdict.why


@pytest.mark.parametrize("phase", [Phase.EVALUATION, Phase.CHECKPOINT, Phase.STARTUP])
def test_long_phases_have_their_own_window_and_shelter_the_others(phase):
    verdict = judge([sample(phase=phase, log=60, stack=60, device=60, communication=60), sample(rank=1)], FAST)
    assert not verdict.hung
    assert str(phase) in verdict.why
    later = {"log": 700, "stack": 700, "device": 700, "communication": 700}
    assert judge([sample(phase=phase, **later), sample(rank=1, **later)], FAST).hung


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ((), 300.0),  # Baige's five minutes
        ((0.1,) * 9, 300.0),
        ((0.1,) * 50, 2.0),
        ((5.0,) * 50, 20.0),
        ((0.1,) * 50 + (60.0,), 2.0),  # one freak
        ((0.1,) * 50 + (6.0, 7.0), 28.0),  # evaluation every k steps: comes again
        ((0.1,) * 50 + (math.nan, -3.0, math.inf), 2.0),
    ],
)
def test_the_window_follows_the_job(steps, expected):
    assert window_s(Rhythm(step_s=steps), Phase.TRAIN) == pytest.approx(expected)


def test_known_checkpoints_set_their_window():
    assert window_s(Rhythm(checkpoint_s=(12.0,)), Phase.CHECKPOINT) == 48.0
    assert window_s(Rhythm(checkpoint_s=(0.6,)), Phase.CHECKPOINT) == 30.0, "the next one may be on a busy server"
    assert window_s(Rhythm(), Phase.STARTUP) == HangPolicy().startup_s


def test_a_log_that_is_always_quiet_is_not_silent():
    quiet = sample(log=50, log_gap_s=60, stack=0.1, device=0.1)
    assert judge_rank(quiet, FAST).silent == (Signal.COMMUNICATION,)


def test_a_save_that_nobody_announced_is_still_a_save():
    assert phase_seen(Phase.TRAIN, [Activity.SAVING]) is Phase.CHECKPOINT
    assert phase_seen(Phase.EVALUATION, [Activity.SAVING]) is Phase.EVALUATION
    assert phase_seen(Phase.TRAIN, [Activity.PYTHON]) is Phase.TRAIN


def test_nobody_looked_at_is_not_hung():
    assert not judge([], FAST).hung


OUTSIDE = {"waits_on": WaitsOn.OUTSIDE, "waits_for": "waits for a socket"}


def test_a_rank_that_waits_for_something_outside_shelters_the_others_for_a_while_and_is_named_then():
    soon = judge([aged(0, 4.0), aged(1, 4.0, **OUTSIDE)], FAST)
    assert not soon.hung
    assert soon.why == "not hung: rank 0 is silent, but rank 1 waits for a socket, which may take longer than 5.0 s"
    late = judge([aged(0, 6.0), aged(1, 6.0, **OUTSIDE)], FAST)
    assert (late.hung, late.culprit, late.ranks) == (True, 1, (0, 1))
    assert late.why == "rank 1 waits for a socket; rank 0 is silent"


def test_who_works_is_named_before_who_waits():
    verdict = judge([aged(0, 9.0, **OUTSIDE), aged(1, 9.0, stack=0.1, device=0.1), aged(2, 9.0)], FAST)
    assert verdict.culprit == 1


def test_without_history_the_evidence_is_looked_at_early_and_the_patience_stays():
    early = judge([aged(0, 21.0), aged(1, 21.0)], Rhythm())
    assert (early.hung, early.window_s) == (True, 300.0)
    assert not judge([aged(0, 19.0), aged(1, 19.0)], Rhythm()).hung


def test_a_loader_that_works_is_no_loop():
    """The main thread waits, its processes compute: the same signals as of a loop but for what it waits on."""
    assert judge([sample(), sample(rank=1, device=0.1)], FAST).culprit is None
    assert judge([sample(), sample(rank=1, device=0.1, waits_on=WaitsOn.OWN)], FAST).culprit == 1
    assert judge([sample(), sample(rank=1, waits_on=WaitsOn.OWN)], FAST).hung, "they do not work"


def test_waiting_outside_says_nothing_of_a_rank_that_is_not_silent():
    verdict = judge([sample(), sample(rank=1, log=0.1, stack=0.1, device=0.1, communication=0.1, **OUTSIDE)], FAST)
    assert verdict.hung, "it lives and takes part; it keeps nobody waiting"


@pytest.mark.parametrize("late", [{"device": 0.1, "stack": None}, OUTSIDE], ids=["computes", "waits"])
def test_who_keeps_the_others_waiting_may_be_seen_a_moment_younger(late):
    """Ages are known to half a second: a rank whose own are just below the window is the reason all the same."""
    verdict = judge(
        [
            sample(log=2.1, stack=2.1, device=2.1, communication=2.1),
            sample(rank=1, log=None, communication=1.8, **{"device": 1.8, "stack": 1.8, **late}),
        ],
        FAST,
    )
    assert not verdict.hung, verdict.why


def test_after_the_loop_the_evidence_is_looked_at_within_a_minute_or_what_is_long_here():
    def seen(age: float, rhythm: Rhythm):
        return judge([aged(rank, age, phase=Phase.FINISH) for rank in (0, 1)], rhythm)

    assert not seen(50.0, FAST).hung
    assert (seen(61.0, FAST).hung, seen(61.0, FAST).window_s) == (True, 300.0)
    slow = Rhythm(step_s=(0.1,) * 60, checkpoint_s=(40.0,))
    assert not seen(150.0, slow).hung
    assert seen(161.0, slow).hung
