"""Compute and wait from arrivals: simulated jobs whose truth is known."""

import random
import statistics

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.analyzer.slowness.arrivals import MIN_STEPS, is_synchronous, join, measure, trimmed_mean
from everstep.model.facts import RankRound

COMM_S = 0.0002


class Op:
    """Compute for so long, then enter a collective of the group that the rank is in under this name."""

    def __init__(self, compute_s, *, waits=True, group="0", kind="all_reduce [64]"):
        self.compute_s, self.waits, self.group, self.kind = compute_s, waits, group, kind


WORLD = {"0": [(0, 1, 2, 3)]}
MESH = {"0": [(0, 1, 2, 3)], "tp": [(0, 1), (2, 3)], "dp": [(0, 2), (1, 3)]}


def simulate(ops, *, factors, num_steps=40, jitter=0.05, seed=0, groups=WORLD, stalls=None, extra_every=0, ahead=()):
    """Rounds of all ranks, and what each really computed per step."""
    dice = random.Random(seed)
    ranks = range(len(factors))
    now = dict.fromkeys(ranks, 100.0)
    ready = dict.fromkeys(ranks, 0.0)  # when everything that the rank has entered is done
    truth = {rank: [] for rank in ranks}
    arrivals = {rank: [] for rank in ranks}
    kinds, seqs = [], {}

    def enter(op):
        for number, members in enumerate(groups[op.group]):
            name = f"{op.group}{number}" if len(groups[op.group]) > 1 else op.group
            kind = (name, op.kind)
            if kind not in kinds:
                kinds.append(kind)
            seqs[name] = seqs.get(name, 0) + 1
            done = max(now[rank] for rank in members) + COMM_S
            for rank in members:
                offset = ahead[rank] if ahead else 0.0
                arrivals[rank].append((kinds.index(kind), seqs[name], now[rank] + offset))
                ready[rank] = max(ready[rank], done)
                if op.waits:
                    now[rank] = ready[rank]

    for step in range(num_steps):
        for rank in ranks:
            truth[rank].append(0.0)
        for op in ops:
            for rank in ranks:
                took_s = op.compute_s * factors[rank] * dice.lognormvariate(0, jitter)
                now[rank] += took_s + ((stalls or {}).get((rank, step), 0.0) if op is ops[0] else 0.0)
                truth[rank][-1] += took_s
            enter(op)
        if extra_every and step % extra_every == 0:
            for rank in ranks:
                now[rank] += 0.5
            enter(Op(0, kind="barrier []"))
    rounds = [
        RankRound(
            rank=rank,
            num_steps=num_steps,
            window_s=now[0] - 100.0,
            num_entered=len(arrivals[rank]),
            kinds=tuple(kinds),
            arrivals=tuple(arrivals[rank]),
        )
        for rank in ranks
    ]
    return rounds, {rank: statistics.fmean(listed) for rank, listed in truth.items()}


def assert_close(measured, truth, share=0.03, extra_s=0.002):
    assert not measured.why_not
    for timing in measured.timings:
        assert timing.compute_s == pytest.approx(truth[timing.rank], rel=share, abs=extra_s), (timing, truth)


DDP = [Op(0.06, waits=False), Op(0.01, waits=False), Op(0.01)]  # three buckets of one size
EXPLICIT = [Op(0.05), Op(0.03, kind="all_reduce [7]")]
TP_DP = [*(Op(0.02, group="tp") for _ in range(4)), Op(0.001, group="dp", kind="all_reduce [128]")]


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(("ops", "groups"), [(DDP, WORLD), (EXPLICIT, WORLD), (TP_DP, MESH)], ids=["ddp", "ar", "2x2"])
@pytest.mark.parametrize("jitter", [0.02, 0.2])
def test_compute_is_what_the_program_really_did(ops, groups, jitter, seed):
    rounds, truth = simulate(ops, factors=[1, 1, 1.3, 1], jitter=jitter, seed=seed, groups=groups, num_steps=60)
    measured = measure(rounds)
    assert_close(measured, truth, share=0.04)
    waits = {timing.rank: timing.wait_s for timing in measured.timings}
    assert waits[2] < min(waits[rank] for rank in (0, 1, 3))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    computes=st.lists(st.floats(0.005, 0.08), min_size=1, max_size=5),
    asynchronous=st.lists(st.booleans(), min_size=5, max_size=5),
    factors=st.lists(st.floats(0.8, 1.5), min_size=2, max_size=6),
    distinct=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_mixture_of_waiting_and_overlap(computes, asynchronous, factors, distinct, seed):
    """Irregular enough that waiting can be told from overlap; the last collective of a step is waited for."""
    ops = [
        Op(c, waits=not a or i == len(computes) - 1, kind=f"all_reduce [{i if distinct else 64}]")
        for i, (c, a) in enumerate(zip(computes, asynchronous, strict=False))
    ]
    groups = {"0": [tuple(range(len(factors)))]}
    rounds, truth = simulate(ops, factors=factors, jitter=0.2, seed=seed, groups=groups, num_steps=80)
    assert_close(measure(rounds), truth, share=0.06, extra_s=0.008)


@pytest.mark.parametrize("seed", range(5))
def test_without_any_variation_the_slow_rank_still_stands_out(seed):
    rounds, _ = simulate(DDP, factors=[1, 1.3, 1, 1], jitter=0.0, seed=seed)
    timings = measure(rounds).timings
    assert max(timings, key=lambda t: t.compute_s).rank == 1
    assert min(timings, key=lambda t: t.wait_s).rank == 1


def test_saves_and_evaluations_do_not_count_as_computing():
    stalls = {(0, step): 2.0 for step in range(5, 40, 12)}  # rank 0 saves, the others wait
    rounds, truth = simulate(EXPLICIT, factors=[1] * 4, stalls=stalls, extra_every=10)
    assert_close(measure(rounds), truth)


def test_foreign_collectives_do_not_shift_the_places_in_a_step():
    rounds, truth = simulate(DDP, factors=[1, 1, 1.3, 1], jitter=0.1, extra_every=7, num_steps=70)
    measured = measure(rounds)
    assert_close(measured, truth, share=0.04)
    assert measured.num_waits == 1


def test_sizes_that_change_from_step_to_step():
    rounds, truth = simulate(EXPLICIT, factors=[1, 1.2, 1, 1], num_steps=50)
    kinds = [(group, f"{op.split()[0]} [{n}]") for n in range(200) for group, op in rounds[0].kinds[:1]]
    varied = [
        msgspec.structs.replace(
            each, kinds=tuple(kinds), arrivals=tuple((seq % 200, seq, at) for _, seq, at in each.arrivals)
        )
        for each in rounds
    ]
    assert_close(measure(varied), truth)


def test_clocks_of_machines_are_set_right():
    ahead = {0: 0.0, 1: 0.0, 2: 0.01, 3: 0.01}
    rounds, truth = simulate(EXPLICIT, factors=[1] * 4, ahead=list(ahead.values()))
    assert_close(measure(rounds, ahead), truth)
    wrong = {timing.rank: timing.compute_s for timing in measure(rounds).timings}
    assert wrong[2] > 1.1 * wrong[0], "uncorrected, the clock looks like a slow machine"


def test_an_incomplete_round_is_judged_as_far_as_it_is_complete():
    """A rank whose report is missing is not waited for by anybody who can be seen: nobody is blamed for it."""
    rounds, _ = simulate(EXPLICIT, factors=[1, 1, 1, 1.5])
    compute = {timing.rank: timing.compute_s for timing in measure(rounds[:3]).timings}
    assert set(compute) == {0, 1, 2}
    assert max(compute.values()) < 1.05 * min(compute.values())


def test_reports_that_were_cut_at_different_places():
    rounds, truth = simulate(DDP, factors=[1, 1, 1.3, 1], jitter=0.1, num_steps=80)
    cut = [
        msgspec.structs.replace(each, arrivals=each.arrivals[3 * each.rank + 1 : 230 - 5 * each.rank])
        for each in rounds
    ]
    assert_close(measure(cut), truth, share=0.05)


def test_too_few_steps_are_not_measured_until_rounds_are_joined():
    rounds, truth = simulate(EXPLICIT, factors=[1, 1.3, 1, 1], num_steps=12, jitter=0.0)
    parts = [[_part(each, i) for each in rounds] for i in range(3)]
    assert not measure(parts[0]).timings
    assert set(measure(parts[0]).why_not) == {0, 1, 2, 3}
    joined = [join(join(a, b), c) for a, b, c in zip(*parts, strict=True)]
    assert [each.num_steps for each in joined] == [12] * 4
    assert_close(measure(joined), truth)


def _part(each, i):
    """A third of a round, with kinds in an order of its own."""
    arrivals = each.arrivals[8 * i : 8 * i + 8]
    kinds = each.kinds[::-1] if i == 1 else each.kinds
    moved = tuple((kinds.index(each.kinds[kind]), seq, at) for kind, seq, at in arrivals)
    return msgspec.structs.replace(each, kinds=kinds, arrivals=moved, num_steps=4, num_entered=8, work=1.0)


def test_what_was_not_measured_in_one_part_is_not_measured_in_the_whole():
    one = RankRound(rank=0, num_steps=1, window_s=1.0, data_s=1.0, gc_s=None, work=5.0)
    both = join(one, msgspec.structs.replace(one, gc_s=1.0))
    assert (both.data_s, both.gc_s, both.work) == (2.0, None, 10.0)


def test_a_break_between_joined_rounds_is_no_step():
    """Between two parts collectives are missing; the long gap is nobody's computing."""
    rounds, truth = simulate(EXPLICIT, factors=[1, 1, 1.3, 1], num_steps=40, jitter=0.01)
    holed = [msgspec.structs.replace(e, arrivals=e.arrivals[:11] + e.arrivals[60:71]) for e in rounds]
    assert_close(measure(holed), truth)


def test_data_gc_and_work_are_per_step():
    rounds, _ = simulate(EXPLICIT, factors=[1] * 4)
    timing = measure([msgspec.structs.replace(e, data_s=4.0, gc_s=0.4, work=4000.0) for e in rounds]).timings[0]
    assert (timing.data_s, timing.gc_s, timing.work) == (0.1, 0.01, 100.0)
    assert measure(rounds).timings[0].data_s is None


def test_the_error_covers_uneven_steps():
    even, _ = simulate(EXPLICIT, factors=[1] * 4, jitter=0.01)
    uneven, _ = simulate(EXPLICIT, factors=[1] * 4, jitter=0.4)
    small = measure(even).timings[0].error_s
    large = measure(uneven).timings[0].error_s
    assert 0 < small < 0.001
    assert large > 0.003


@pytest.mark.parametrize(
    "rounds",
    [
        [],
        [RankRound(rank=0, num_steps=9, window_s=1.0, missing="no watch thread")],
        [RankRound(rank=r, num_steps=9, window_s=1.0, kinds=(("0", "x"),), arrivals=((7, 1, 1.0),)) for r in (0, 1)],
        [
            RankRound(
                rank=r,
                num_steps=0,
                window_s=0.0,
                kinds=(("0", "x"),),
                arrivals=tuple((0, n, float("nan")) for n in range(50)),
            )
            for r in (0, 1)
        ],
    ],
)
def test_nothing_is_measured_from_nothing(rounds):
    assert not measure(rounds).timings


def test_declared_members_who_are_missing_make_a_collective_incomplete():
    rounds, _ = simulate(EXPLICIT, factors=[1] * 4)
    declared = [msgspec.structs.replace(each, groups={"0": (0, 1, 2, 3)}) for each in rounds]
    assert len(measure(declared).timings) == 4
    assert not measure(declared[:2]).timings


def test_who_goes_on_before_the_last_one_came_does_not_wait():
    assert not is_synchronous([[0.02] * 20], [[0.01] * 20])
    assert is_synchronous([[0.02] * 20], [[0.03] * 20])


def test_the_mean_leaves_out_either_end():
    assert trimmed_mean([1.0] * 18 + [100.0, 0.0]) == 1.0
    assert trimmed_mean([2.0]) == 2.0
    assert MIN_STEPS == 5
