"""The controller's hang watch: what it learns, when it judges, and when it holds its tongue."""

import itertools
import time

import msgspec
import pytest
from hanging_job import OUTSIDE, STATE, Job, signals

from everstep.controller.detectors.hangs import AGAIN_S, MAX_AGAIN_S
from everstep.controller.detectors.together import Detectors
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Worker
from everstep.model.facts import Exit
from everstep.model.observations import SignalsReported


def test_a_job_that_stands_still_is_suspected_once_and_soon():
    job = Job()
    assert job.until(10) == []
    job.stands_at = 10.0
    (suspected,) = job.until(10 + AGAIN_S)
    assert 2.0 <= suspected.at - 10 <= 3.0
    assert (suspected.since, suspected.ranks, suspected.window_s) == (10.0, (0, 1), 2.0)
    assert "device" in suspected.silent[0]
    assert not job.watch.has_moved_on()
    assert job.until(job.now + 3), "still standing after a while: suspected again"


def test_half_a_window_of_silence_says_that_a_suspicion_may_come():
    job = Job()
    job.until(10.0)
    job.stands_at = 10.0
    job.until(10.5)
    assert not job.watch.is_near
    assert not job.until(11.0)
    assert job.watch.is_near
    job.stands_at = 1e9
    job.until(12.0)
    assert not job.watch.is_near


def test_a_rank_that_starts_is_silent_for_as_long_as_it_likes():
    job = Job(phase="startup")
    job.changes[1] = {"phase": "startup"}
    job.stands_at = 1.0
    job.until(9.0)
    assert not job.watch.is_near


def test_a_policy_that_does_not_look_for_hangs_finds_none():
    job = Job(policy=Policy(watch_hangs=False))
    job.until(10)
    job.stands_at = 10.0
    assert job.until(200) == []


@pytest.mark.slow
def test_a_hang_that_is_left_alone_is_told_ever_less_often():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    times = [suspected.at for suspected in job.until(10 + 4 * MAX_AGAIN_S)]
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert pauses[:4] == pytest.approx([AGAIN_S, 2 * AGAIN_S, 4 * AGAIN_S, 8 * AGAIN_S], abs=1)
    assert max(pauses) == pytest.approx(MAX_AGAIN_S, abs=1)
    job.stands_at = job.now + 10
    assert job.until(job.now + 10) == []
    first, second = job.until(job.now + 3 + AGAIN_S)
    assert second.at - first.at == pytest.approx(AGAIN_S, abs=1), "it has moved on: from the beginning"
    job.until(job.now + 4 * AGAIN_S)
    job.state, job.generation = msgspec.structs.replace(STATE, generation=1), 1
    first, second = job.until(job.now + 3 + AGAIN_S)
    assert second.at - first.at == pytest.approx(AGAIN_S, abs=1), "another generation as well"


def test_a_job_without_steps_has_moved_on_when_all_have_communicated():
    job = Job()
    for rank in job.changes:
        job.changes[rank] = {"last_step": None, "last_step_at": None}
    job.stands_at = 1.0
    while not job.watch._num_in_vain > 4:
        job.until(job.now + 10)
    job.stands_at = 1e9
    assert job.until(job.now + 10) == []
    job.stands_at = job.now
    first, second = job.until(job.now + 3 + 1.5 * AGAIN_S)
    assert second.at - first.at == pytest.approx(AGAIN_S, abs=1)


def test_a_clock_that_is_set_back_silences_nothing():
    job = Job()
    job.until(3600)
    job.stands_at = job.now
    for rank in job.changes:
        job.changes[rank] = {"last_step": 36000, "last_step_at": job.now}
    assert job.until(job.now + 5)
    job.now -= 3000.0
    job.stands_at = job.now
    assert job.until(job.now + 10), "neither the last look nor the last suspicion is in the future"


def test_a_report_that_is_a_little_older_is_no_clock_that_was_set():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.until(13)
    while not job.until(job.now + 0.5):
        pass
    job.now -= 1.0
    assert job.until(job.now + 0.5) == [], "half a second before the suspicion"


def test_a_program_without_steps_and_process_groups_is_never_judged():
    job = Job()
    for rank in job.changes:
        job.changes[rank] = {"phase": "startup", "communication_s": None, "last_step": None, "last_step_at": None}
    job.stands_at = 0.0
    assert job.until(2000) == []
    for rank in job.changes:
        del job.changes[rank]["communication_s"]
    assert job.until(2010), "it has process groups, and nothing has moved for longer than a start-up takes"


def test_it_has_moved_on_when_every_rank_has_stepped():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    assert job.until(13)
    job.stands_at = 14.0
    job.until(14)
    assert job.watch.has_moved_on()


@pytest.mark.parametrize(
    "changes",
    [
        {"looking": True},  # a stack is on its way
        {"paused": True},
        {"busy": "says that it is busy: uploading"},
        {"phase": "startup"},
        {"phase": "a phase of the future"},
    ],
    ids=str,
)
def test_what_keeps_it_from_judging(changes):
    job = Job(**changes)
    job.until(10)
    job.stands_at = 10.0
    assert job.until(20) == []


@pytest.mark.parametrize(
    "reason",
    [
        {"device_s": 0.0, "stack_s": None},  # it computes, and its stack cannot be seen
        {"device_s": 0.0, "stack_s": 0.5},  # it computes, and its stack moves
        {"waits_on": "outside", "waits_for": "waits for a socket"},
    ],
    ids=str,
)
def test_who_has_a_reason_is_reported_a_little_later_with_its_place(reason):
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, {**reason, "place": "train.py:88 upload"}
    assert job.until(14.5) == []
    (suspected,) = job.until(30)
    assert (suspected.at - 10, suspected.place) == (pytest.approx(5, abs=0.6), "train.py:88 upload")


def test_a_program_that_keeps_nothing_is_looked_at_as_soon_as_any_other():
    job = Job(has_snapshot=False)
    job.until(10)
    job.stands_at = 10.0
    assert job.until(13.5)


def test_a_loop_is_a_hang_although_the_processor_is_busy():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.changes[0] = {"device_s": 0.0, "stack_s": 5.0, "communication_s": None}
    assert job.until(14)


def test_without_history_the_evidence_is_looked_at_all_the_same_and_minutes_are_usual():
    job = Job()
    job.stands_at = 0.5
    (suspected,) = job.until(40)
    assert 20 <= suspected.at - 0.5 <= 22
    assert suspected.window_s == 300.0


def test_a_rank_that_is_not_seen_is_not_judged_and_one_that_has_ended_is_not_missed():
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    del job.changes[1]
    assert job.until(20) == []
    ended = Worker(rank=1, node="n0", exit=Exit(rank=1, at=15.0, code=0))
    job.state = msgspec.structs.replace(STATE, workers={0: STATE.workers[0], 1: ended})
    assert job.until(21)


@pytest.mark.parametrize("phase", [Phase.FORMING, Phase.SETTLING, Phase.STOPPING])
def test_only_a_running_generation_is_judged(phase):
    job = Job()
    job.until(10)
    job.stands_at = 10.0
    job.state = msgspec.structs.replace(STATE, phase=phase)
    assert job.until(20) == []


def test_signals_of_another_generation_or_node_say_nothing():
    watch = Detectors(Policy())
    for node, generation in (("n0", 1), ("n7", 0)):
        event = SignalsReported(at=1.0, node=node, generation=generation, signals=(signals(0, 1.0, 1.0),))
        assert watch.take(event, STATE) == []
    assert not watch.hangs._newest


@pytest.mark.parametrize("is_starved", [False, True])
def test_the_window_follows_the_jobs_own_steps(is_starved, monkeypatch):
    """Also where the controller waits for a processor while it judges: that is not its work."""
    job = Job()
    if is_starved:
        judge = job.watch._judge

        def judge_late(event, state):
            time.sleep(0.3 if event.at == 29.5 else 0.0)
            return judge(event, state)

        monkeypatch.setattr(job.watch, "_judge", judge_late)
    for rank in job.changes:
        job.changes[rank] = {}
    for number in range(12):  # two-second steps, each seen at its end
        at = 2.0 * number
        seen = tuple(signals(rank, at, at, last_step=number, last_step_at=at) for rank in range(2))
        assert job.watch.take(SignalsReported(at=at, node="n0", generation=0, signals=seen), STATE) == ()
    found = {}
    for look in range(45, 63):  # and then it stands, looked at twice a second
        at = look / 2
        stands = tuple(signals(rank, at, 22.0, last_step=11, last_step_at=22.0) for rank in range(2))
        found[at] = job.watch.take(SignalsReported(at=at, node="n0", generation=0, signals=stands), STATE)
    assert not any(found[at] for at in found if at < 30)
    assert found[30.0], "four steps of two seconds"


def test_what_a_newer_agent_says_of_waiting_is_no_excuse():
    job = Job(waits_on="a friend")
    job.until(10)
    job.stands_at = 10.0
    assert job.until(14)


@pytest.mark.parametrize("jump_s", [15.0, 3600.0])
def test_a_machine_that_slept_or_a_clock_that_was_set_is_no_hang(jump_s):
    """Everything has been silent for as long as nobody looked."""
    job = Job()
    job.until(10)
    job.now += jump_s  # the next look comes half a second after, of the time that ranks feel
    job.stands_at = 10.0
    assert job.until(job.now + 0.6) == []
    job.stands_at = 1e9
    assert job.until(job.now + 10) == []
    job.stands_at = job.now
    assert job.until(job.now + 4), "and it sees hangs again"
    asleep = Job()
    asleep.until(10)
    asleep.stands_at = 10.0
    asleep.now += jump_s
    (suspected,) = asleep.until(asleep.now + 4)
    assert suspected.at - (10 + jump_s) >= 2.0, "one that never woke up is found a window later"


OWN = {"waits_on": "own", "device_s": 0.0}


@pytest.mark.parametrize("apart", [{"phase": "evaluation"}, {"paused": True}, OUTSIDE, OWN], ids=str)
def test_what_is_no_part_of_a_step_does_not_make_steps_longer(apart):
    """Every ten seconds twenty that explain themselves: a hang in between is found as soon as without them."""
    job = Job()
    for number in range(3):
        begin = 30.0 * number
        job.stands_at = 1e9
        job.until(begin + 10)
        job.stands_at, job.changes[0] = begin + 10, dict(apart)
        assert all(found.place or "rank 0" in found.why for found in job.until(begin + 30))
        job.changes[0] = {}
    job.stands_at = 1e9
    job.until(100)
    job.stands_at = 100.0
    (suspected,) = job.until(108)
    assert suspected.window_s < 5
    assert suspected.at < 106


UNSEEN = {"last_step": None, "last_step_at": None}


def after_long_steps(ranks: tuple[int, ...], times: int = 4) -> Job:
    """Every ten seconds these ranks compute for a minute, and the others wait for them; its steps are not seen."""
    job = Job()
    job.changes = {0: dict(UNSEEN), 1: dict(UNSEEN)}
    for number in range(times):
        begin = 70.0 * number
        job.stands_at = 1e9
        job.until(begin + 10)
        job.stands_at = begin + 10
        for rank in ranks:
            job.changes[rank] = {**UNSEEN, "device_s": 0.0, "stack_s": 0.5}
        job.until(begin + 70)
        job.changes = {0: dict(UNSEEN), 1: dict(UNSEEN)}
    job.stands_at = 1e9
    job.until(job.now + 20)
    return job


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
def test_who_was_seen_to_compute_for_long_does_not_hide_who_has_no_reason(ranks):
    job = after_long_steps(ranks)
    job.stands_at = begin = job.now
    (suspected,) = job.until(begin + 8)
    assert suspected.at - begin < 6
    assert suspected.window_s > 200, "what is usual here decides how long a doubtful one is left alone"


@pytest.mark.parametrize("changes", [{}, {"phase": "evaluation"}, {"phase": "checkpoint"}, {"looking": True}])
def test_who_is_stopped_is_looked_at_within_the_window_however_long_steps_take(changes):
    job = after_long_steps((1,))
    job.stands_at = begin = job.now
    job.changes = {0: {**UNSEEN, **changes}, 1: {**UNSEEN, "state": "T", **changes}}
    (suspected,) = job.until(begin + 10)
    assert suspected.at - begin < 4
    assert (suspected.ranks, suspected.why) == ((1,), "rank 1 is stopped")


def test_a_job_that_never_does_anything_but_evaluate_teaches_nothing_of_steps():
    job = Job(phase="evaluation")
    job.until(60)
    job.stands_at, job.changes[0] = 60.0, {}
    (suspected,) = job.until(82)
    assert suspected.window_s == 300.0, "nothing is known of its steps: minutes of patience"


@pytest.mark.parametrize(
    "excuse", [{"phase": "evaluation"}, {"paused": True}, OUTSIDE, {"waits_on": "own", "device_s": 0.0}], ids=str
)
def test_the_end_of_an_excuse_is_a_sign_of_life(excuse):
    """What was silent meanwhile moves a moment later: the rank's own thread looks every half second."""
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, dict(excuse)
    assert job.until(14.5) == []
    job.changes[0] = {}
    assert job.until(16) == [], "it has just come back"
    (suspected,) = job.until(18.5)
    assert suspected.at >= 16.5, "and does nothing then"


@pytest.mark.parametrize("seen", [1.6, None], ids=["late", "not seen meanwhile"])
def test_when_one_rank_has_come_back_the_others_are_about_to(seen):
    """A rank collects garbage with the interpreter lock held; its own thread sees first that all go on."""
    job = Job()
    job.until(10)
    job.stands_at, job.changes[0] = 10.0, {"device_s": 0.0, "stack_s": 0.0, "communication_s": seen}
    assert job.until(13) == []
    job.changes[0] = {"device_s": 0.0, "stack_s": 0.0, "communication_s": 0.01}
    assert job.until(13.6) == [], "the other one was silent for three seconds"
    job.changes[0] = {"device_s": 0.0, "stack_s": 0.0, "communication_s": 0.3}
    assert job.until(17), "it goes on by itself: it is no reason any more"


def test_a_rank_that_is_stopped_is_found_whatever_it_says():
    job = Job(busy="says that it is busy: uploading")
    job.until(10)
    job.stands_at = 10.0
    job.changes[0]["state"] = "T"
    assert job.until(20)


@pytest.mark.parametrize("letter", ["S", "R", "T"])
def test_programs_that_are_over_are_left_to_end(letter):
    """An upload at the end may take an hour, and a restart would do everything again."""
    job = Job(is_over=True, phase="startup")
    job.changes[0]["state"] = letter
    job.changes[1] = {"is_over": True, "phase": "startup"}
    job.until(10)
    job.stands_at = 10.0
    assert job.until(4000) == []


def test_a_program_that_is_over_excuses_no_other_rank():
    job = Job(is_over=True, phase="startup")
    job.until(10)
    job.stands_at = 10.0
    assert job.until(900)
