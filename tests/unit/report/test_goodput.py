"""The definitions of docs/goodput.md, one by one, on times that can be checked by hand."""

import msgspec
import pytest

from everstep.goodput.account import account_rank
from everstep.goodput.buckets import GLOSSARY, Bucket
from everstep.goodput.figures import goodput_of, ratio_of, sum_spans
from everstep.goodput.history import Ending, EndKind, GenerationHistory, History
from everstep.model.facts import RankAccount
from everstep.report.period.gather import ettr_of
from everstep.report.picture.costs import GROUPS

B = Bucket


def stepped(**changes: object) -> RankAccount:
    """Spawned at 1, entered at 2, loop from 4, steps 0-9 of one second each until 14."""
    account = RankAccount(
        rank=0,
        spawned_at=1.0,
        entered_at=2.0,
        loop_at=4.0,
        first_step=0,
        last_step=9,
        first_step_at=5.0,
        last_step_at=14.0,
        counts_own_steps=True,
    )
    return msgspec.structs.replace(account, **changes)


def fault(at: float = 14.5, detected_at: float = 15.0, decided_at: float = 15.25, **changes: object) -> Ending:
    ending = Ending(kind=EndKind.FAULT, at=at, detected_at=detected_at, decided_at=decided_at, incident="i1")
    return msgspec.structs.replace(ending, **changes)


def resumed(first_step: int, **changes: object) -> RankAccount:
    """The next generation: spawned at 16, half a second of restoring, loop from 18 to 20."""
    return stepped(
        spawned_at=16.0,
        entered_at=16.5,
        restore_s=0.5,
        loop_at=18.0,
        first_step=first_step,
        last_step=first_step + 1,
        first_step_at=19.0,
        last_step_at=20.0,
        **changes,
    )


def generation(account: RankAccount | None, ending: Ending | None = None, **changes: object) -> GenerationHistory:
    found = GenerationHistory(
        accounts={} if account is None else {0: account},
        resumed_step=account.first_step if account is not None and account.counts_own_steps else None,
        ending=ending,
    )
    return msgspec.structs.replace(found, **changes)


def seconds(*generations: GenerationHistory, until: float, **changes: object) -> dict[Bucket, float]:
    history = History(begun_at=0.0, until=until, world_size=1, generations=generations)
    history = msgspec.structs.replace(history, **changes)
    found = sum_spans(account_rank(history, 0))
    assert sum(found.values()) == pytest.approx(until, abs=1e-9)
    return {bucket: round(s, 9) for bucket, s in found.items() if s > 0.0}


def done(at: float) -> Ending:
    return Ending(kind=EndKind.DONE, at=at, detected_at=at, decided_at=at)


def test_a_run_that_ends_well() -> None:
    found = seconds(generation(stepped(restore_s=0.5, stall_s=1.0), done(15.0)), until=15.0, is_over=True)
    assert found == {
        B.SCHEDULE: 1.0,
        B.INITIALISE: 2.5,
        B.RESTORE: 0.5,
        B.PRODUCTIVE: 9.0,
        B.CHECKPOINT_STALL: 1.0,
        B.IDLE: 1.0,
    }


def test_a_fault_that_loses_two_steps() -> None:
    found = seconds(generation(stepped(), fault()), generation(resumed(8)), until=20.0)
    assert found == {
        B.SCHEDULE: 1.0 + 0.75,
        B.INITIALISE: 3.0 + 1.5,
        B.RESTORE: 0.5,
        B.PRODUCTIVE: 8.0 + 2.0,
        B.REDONE: 2.0 + 0.5,
        B.DETECT: 0.5,
        B.DIAGNOSE: 0.25,
    }


def test_a_fault_that_loses_no_step_costs_the_begun_one() -> None:
    found = seconds(generation(stepped(), fault()), generation(resumed(10)), until=20.0)
    assert (found[B.PRODUCTIVE], found[B.REDONE]) == (12.0, 0.5)


def test_a_later_generation_that_goes_back_further_counts() -> None:
    third = resumed(4, rank=0)
    second_ends = fault(at=20.0, detected_at=20.0, decided_at=20.0, incident="i2")
    third = msgspec.structs.replace(third, spawned_at=21.0, loop_at=22.0, last_step_at=23.0, restore_s=0.0)
    found = seconds(generation(stepped(), fault()), generation(resumed(10), second_ends), generation(third), until=23.0)
    assert found[B.PRODUCTIVE] == 4.0 + 1.0
    assert found[B.REDONE] == 6.0 + 0.5 + 2.0


def test_a_survivor_that_stepped_after_the_fault_redoes_nothing_and_is_never_negative() -> None:
    found = seconds(generation(stepped(last_step_at=14.75), fault()), generation(resumed(10)), until=20.0)
    assert B.REDONE not in found
    assert found[B.DETECT] == 0.25


def test_steps_that_nobody_can_place_are_not_measured_once_there_was_a_restart() -> None:
    first, second = stepped(counts_own_steps=False), resumed(0, counts_own_steps=False)
    assert seconds(generation(first), until=14.0)[B.PRODUCTIVE] == 10.0
    found = seconds(generation(first, fault()), generation(second), until=20.0)
    assert (found[B.NOT_MEASURED], found[B.PRODUCTIVE]) == (10.0, 2.0)


def test_a_lost_agent_leaves_not_measured_behind_never_productive() -> None:
    ending = fault(unseen_ranks=frozenset({0}))
    found = seconds(generation(stepped(), ending), generation(resumed(10)), until=20.0)
    assert found[B.NOT_MEASURED] == 0.5
    assert B.REDONE not in found


def test_a_program_that_reports_no_steps_is_not_measured() -> None:
    silent = RankAccount(rank=0, spawned_at=1.0, entered_at=2.0)
    found = seconds(generation(silent, done(12.0), done_at={0: 11.0}), until=12.0, is_over=True)
    assert found == {B.SCHEDULE: 1.0, B.INITIALISE: 1.0, B.NOT_MEASURED: 9.0, B.IDLE: 1.0}


def test_a_program_without_our_runtime_is_not_measured_from_its_start() -> None:
    found = seconds(generation(None, spawned={0: 1.0}), until=5.0, has_runtime=False)
    assert found == {B.SCHEDULE: 1.0, B.NOT_MEASURED: 4.0}


def test_a_rank_that_dies_before_its_first_step_was_initialising() -> None:
    early = RankAccount(rank=0, spawned_at=1.0, entered_at=2.0, restore_s=0.25)
    found = seconds(
        generation(early, fault(at=3.0, detected_at=3.5, decided_at=3.5)), generation(resumed(0)), until=20.0
    )
    assert found[B.INITIALISE] == 1.75 + 1.5
    assert found[B.RESTORE] == 0.25 + 0.5
    assert found[B.SCHEDULE] == 1.0 + 12.5
    assert found[B.PRODUCTIVE] == 2.0


def test_a_rank_that_was_never_spawned_waited() -> None:
    found = seconds(generation(None, fault(at=3.0, detected_at=3.5, decided_at=3.5)), until=5.0)
    assert found == {B.SCHEDULE: 3.0 + 1.5, B.DETECT: 0.5}


def test_giving_up_makes_the_rest_idle() -> None:
    found = seconds(generation(stepped(), fault()), until=16.0, is_over=True)
    assert (found[B.IDLE], found[B.PRODUCTIVE], found[B.REDONE]) == (0.75, 10.0, 0.5)


def test_the_step_in_progress_of_a_live_run_is_not_measured_yet() -> None:
    assert seconds(generation(stepped()), until=14.5)[B.NOT_MEASURED] == 0.5


def test_a_rank_that_ended_before_the_fault_of_another_was_idle() -> None:
    ending = fault(at=18.0, detected_at=18.0, decided_at=18.0)
    found = seconds(generation(stepped(), ending, done_at={0: 15.0}), until=18.0)
    assert found[B.IDLE] == 4.0


def test_a_time_when_nothing_ran_and_nobody_watched_is_not_measured() -> None:
    cut = Ending(kind=EndKind.CUT, at=15.0, detected_at=15.0, decided_at=15.0)
    found = seconds(generation(stepped(), cut), generation(resumed(10)), until=20.0, gaps=((15.0, 15.5),))
    assert (found[B.NOT_MEASURED], found[B.SCHEDULE]) == (1.0 + 0.5, 1.0 + 0.5)


def test_a_clock_that_went_backwards_is_not_measured_and_nothing_is_negative() -> None:
    found = seconds(generation(stepped(spawned_at=4.0, loop_at=3.0), done(14.0)), until=14.0, is_over=True)
    assert found == {B.SCHEDULE: 4.0, B.NOT_MEASURED: 1.0, B.PRODUCTIVE: 9.0}


def test_the_sliding_hour_sees_only_its_part() -> None:
    history = History(
        begun_at=0.0, until=20.0, world_size=1, generations=(generation(stepped(), fault()), generation(resumed(10)))
    )
    goodput = goodput_of(history, window_s=4.0)
    assert goodput.ettr == pytest.approx(12 / 20)
    assert goodput.window_ettr == pytest.approx(2 / 4)
    assert goodput.window_s == 4.0


def test_invalid_time_is_the_interruptions_and_the_checkpoints() -> None:
    history = History(
        begun_at=0.0,
        until=20.0,
        world_size=1,
        generations=(generation(stepped(stall_s=1.0), fault()), generation(resumed(8))),
    )
    invalid = goodput_of(history).invalid
    assert invalid.num_interruptions == 1
    assert (invalid.detect_s, invalid.schedule_s, invalid.initialise_s) == (0.75, 0.75, 2.0)
    assert invalid.recompute_s == pytest.approx(0.5 + 2.0 * 0.9)
    assert invalid.checkpoint_s == 1.0
    assert invalid.invalid_s == pytest.approx(0.75 + 0.75 + 2.0 + 2.3 + 1.0)
    assert goodput_of(msgspec.structs.replace(history, generations=())).invalid.detect_s is None


def test_every_bucket_has_its_text() -> None:
    assert set(GLOSSARY) == set(Bucket)


@pytest.mark.parametrize(
    ("productive", "idle", "unknown", "ratio"),
    [(0.0, 0.0, 5.0, None), (0.0, 4.0, 1.0, None), (0.0, 5.0, 0.0, 0.0), (2.0, 0.0, 3.0, 0.4), (0.0, 0.0, 0.0, None)],
)
def test_what_may_have_been_productive_and_was_not_measured_is_not_none(
    productive: float, idle: float, unknown: float, ratio: float | None
) -> None:
    seconds = dict.fromkeys(Bucket, 0.0) | {Bucket.PRODUCTIVE: productive, Bucket.IDLE: idle}
    assert ratio_of({**seconds, Bucket.NOT_MEASURED: unknown}, productive + idle + unknown) == ratio
    groups = {**dict.fromkeys(GROUPS, 0.0), "productive": productive, "idle": idle, "not measured": unknown}
    assert ettr_of(groups) == ratio
