"""Whatever a journal says, however wrong its clocks are: every second of every rank is in exactly one bucket."""

import math

from hypothesis import given
from hypothesis import strategies as st

from everstep.goodput.account import account_rank
from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import goodput_of
from everstep.goodput.history import Ending, EndKind, GenerationHistory, History
from everstep.model.facts import RankAccount

BEGIN = 1_763_700_000.0

times = st.floats(min_value=-50.0, max_value=500.0).map(lambda s: BEGIN + s)
maybe_times = st.none() | times | st.just(math.nan) | st.just(math.inf)
steps = st.none() | st.integers(min_value=0, max_value=50)
seconds = st.floats(min_value=0.0, max_value=1000.0)


@st.composite
def accounts(draw: st.DrawFn, rank: int) -> RankAccount:
    return RankAccount(
        rank=rank,
        spawned_at=draw(times),
        entered_at=draw(maybe_times),
        restore_s=draw(seconds),
        loop_at=draw(maybe_times),
        first_step=draw(steps),
        last_step=draw(steps),
        first_step_at=draw(maybe_times),
        last_step_at=draw(maybe_times),
        stall_s=draw(seconds),
        counts_own_steps=draw(st.booleans()),
    )


@st.composite
def endings(draw: st.DrawFn) -> Ending:
    return Ending(
        kind=draw(st.sampled_from(EndKind)),
        at=draw(times),
        detected_at=draw(times),
        decided_at=draw(times),
        incident=draw(st.none() | st.sampled_from(["i1", "i2"])),
        unseen_ranks=draw(st.frozensets(st.integers(0, 2))),
    )


@st.composite
def generations(draw: st.DrawFn, world_size: int) -> GenerationHistory:
    known = draw(st.sets(st.integers(0, world_size - 1)))
    return GenerationHistory(
        spawned={rank: draw(times) for rank in draw(st.sets(st.integers(0, world_size - 1)))},
        accounts={rank: draw(accounts(rank)) for rank in known},
        done_at={rank: draw(times) for rank in draw(st.sets(st.integers(0, world_size - 1), max_size=1))},
        resumed_step=draw(steps),
        ending=draw(st.none() | endings()),
    )


@st.composite
def histories(draw: st.DrawFn) -> History:
    world_size = draw(st.integers(1, 3))
    gaps = draw(st.lists(st.tuples(times, times).map(lambda pair: (min(pair), max(pair))), max_size=2))
    return History(
        begun_at=BEGIN,
        until=draw(times),
        world_size=world_size,
        generations=tuple(draw(st.lists(generations(world_size), max_size=4))),
        is_over=draw(st.booleans()),
        has_runtime=draw(st.booleans()),
        gaps=tuple(gaps),
    )


@given(histories())
def test_every_second_is_in_exactly_one_bucket(history: History) -> None:
    wall_s = max(0.0, history.until - history.begun_at)
    for rank in range(history.world_size):
        spans = account_rank(history, rank)
        edge_s = 0.0
        for span in spans:
            assert span.begin_s == edge_s
            assert span.length_s > 0.0
            assert abs(math.fsum(share for _, share in span.shares) - 1.0) < 1e-12
            assert all(share >= 0.0 for _, share in span.shares)
            edge_s = span.end_s
        assert abs(edge_s - wall_s) < 1e-6
    goodput = goodput_of(history)
    assert set(goodput.seconds) == set(Bucket)
    assert all(value >= 0.0 for value in goodput.seconds.values())
    assert abs(math.fsum(goodput.seconds.values()) - wall_s * history.world_size) < 1e-6


@given(histories())
def test_ratios_are_ratios_and_the_window_of_the_whole_run_is_the_whole_run(history: History) -> None:
    goodput = goodput_of(history, window_s=1e9)
    nothing_known = goodput.seconds[Bucket.PRODUCTIVE] == 0.0 and goodput.seconds[Bucket.NOT_MEASURED] > 0.0
    assert (goodput.ettr is None) == (goodput.wall_s == 0.0 or nothing_known)
    if goodput.ettr is not None and goodput.window_ettr is not None:
        assert 0.0 <= goodput.ettr <= 1.0 + 1e-9
        assert abs(goodput.ettr - goodput.window_ettr) < 1e-9
    hour = goodput_of(history, window_s=10.0)
    assert hour.window_ettr is None or 0.0 <= hour.window_ettr <= 1.0 + 1e-9


@given(histories())
def test_incidents_cost_no_more_than_the_buckets_hold(history: History) -> None:
    goodput = goodput_of(history)
    for bucket in Bucket:
        cost_s = math.fsum(cost.get(bucket, 0.0) for cost in goodput.incidents.values())
        assert cost_s <= goodput.seconds[bucket] + 1e-6
    assert goodput.invalid.invalid_s <= goodput.wall_s * (1 + 1e-9) + 1e-6
