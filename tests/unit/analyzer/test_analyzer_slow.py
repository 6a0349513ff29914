"""Stragglers, change points, and what may not be blamed on a machine."""

import random

import pytest

from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.slowness import excuses
from everstep.analyzer.slowness.change import find_change
from everstep.analyzer.slowness.slow import flag_round, judge, judge_history

PP = tuple(ParallelGroup(name=f"p{i}", kind="pp", ranks=(i, i + 2)) for i in range(2))
DP = tuple(ParallelGroup(name=f"d{i}", kind="dp", ranks=(2 * i, 2 * i + 1)) for i in range(2))


def rounds(slow=(), factor=1.3, seed=0, num_ranks=8, num_rounds=5, **more):
    source = random.Random(seed)
    made = []
    for _ in range(num_rounds):
        compute = {r: (factor if r in slow else 1.0) * source.gauss(0.1, 0.002) for r in range(num_ranks)}
        longest = max(compute.values()) + 0.005
        made.append(
            [
                RankTiming(rank=r, compute_s=c, wait_s=longest - c, **{k: v(r) for k, v in more.items()})
                for r, c in compute.items()
            ]
        )
    return made


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("num_ranks", [4, 8, 64])
def test_a_steady_straggler_of_thirty_percent_is_named(seed, num_ranks):
    found = judge(rounds(slow=[seed % num_ranks], seed=seed, num_ranks=num_ranks))
    assert (found.code, found.ranks, found.refusal) == ("ES-S01", (seed % num_ranks,), None)
    assert "30%" in found.sentence or "% longer" in found.sentence


@pytest.mark.parametrize("seed", range(50))
def test_equal_ranks_accuse_nobody(seed):
    found = judge(rounds(seed=seed))
    assert found.code in ("ES-S00", "ES-S04")
    assert found.code == "ES-S00" or found.refusal


def test_all_stragglers_of_one_group_name_the_group():
    found = judge(rounds(slow=[2, 3], num_ranks=8), groups=DP)
    assert (found.code, found.group) == ("ES-S02", DP[1])


def test_too_few_rounds_decide_nothing():
    assert judge(rounds(slow=[1], num_rounds=4)).code == "ES-S00"


def test_work_that_moves_from_rank_to_rank_evicts_nobody():
    made = [r for k in range(5) for r in rounds(slow=[k], seed=k, num_rounds=1)]
    found = judge(made)
    assert (found.code, found.refusal is not None) == ("ES-S04", True)


def test_longer_sequences_excuse_the_machine():
    found = judge(rounds(slow=[3], work=lambda r: 1300 if r == 3 else 1000))
    assert (found.code, found.refusal is not None) == ("ES-S04", True)
    same = judge(rounds(slow=[3], work=lambda r: 1000))
    assert same.code == "ES-S01"


@pytest.mark.parametrize("seed", range(20))
def test_a_long_last_stage_in_all_replicas_excuses_the_machines(seed):
    found = judge(rounds(slow=[2, 3], num_ranks=4, seed=seed), groups=PP)
    # Chance flags neither four times with one seed; then nothing is said at all.
    assert (found.code, found.refusal is not None) == (("ES-S00", False) if seed == 15 else ("ES-S05", True))
    one = judge(rounds(slow=[3], num_ranks=4), groups=PP)
    assert (one.code, one.ranks) == ("ES-S01", (3,))


@pytest.mark.parametrize("members", [((0,), (1,), (2,), (3,)), ((0, 1), (1, 2), (2, 3), (3, 0))], ids=str)
def test_groups_that_are_no_pipelines_excuse_nobody(members):
    """Of one rank each, or such that every rank is in every stage."""
    groups = tuple(ParallelGroup(name=f"p{i}", kind="pp", ranks=ranks) for i, ranks in enumerate(members))
    slow = 3 if len(members[0]) == 1 else 0
    found = judge(rounds(slow=[slow], num_ranks=4), groups=groups)
    assert (found.code, found.ranks) == ("ES-S01", (slow,))


def test_a_stage_of_all_ranks_has_nobody_to_be_compared_with():
    means = {rank: RankTiming(rank=rank, compute_s=0.1) for rank in range(2)}
    groups = tuple(ParallelGroup(name=f"p{i}", kind="pp", ranks=(i, i)) for i in range(2))
    assert excuses._whole_stage((0,), means, groups, 0.1) == ""


@pytest.mark.parametrize(("part", "code"), [("gc_s", "ES-S06"), ("data_s", "ES-S07")])
def test_measured_causes_excuse_the_machine(part, code):
    found = judge(rounds(slow=[5], **{part: lambda r: 0.03 if r == 5 else 0.0}))
    assert (found.code, found.refusal is not None) == (code, True)
    unrelated = judge(rounds(slow=[5], **{part: lambda r: 0.004 if r == 5 else 0.0}))
    assert unrelated.code == "ES-S01"


def test_what_was_so_from_the_beginning_did_not_become_slow():
    found = judge(rounds(slow=[5]), first_rounds=rounds(slow=[5], seed=9))
    assert (found.code, found.refusal is not None) == ("ES-S08", True)
    assert judge(rounds(slow=[5]), first_rounds=rounds(seed=9)).code == "ES-S01"


def test_who_waits_as_long_as_the_others_is_no_straggler():
    timings = [RankTiming(rank=r, compute_s=0.13 if r == 1 else 0.1, wait_s=0.05) for r in range(4)]
    assert flag_round(timings) == ()


@pytest.mark.parametrize("seed", range(30))
def test_a_change_of_level_is_found_where_it_is(seed):
    source = random.Random(seed)
    at = source.randrange(30, 170)
    series = [source.gauss(0.1 if i < at else 0.115, 0.003) for i in range(200)]
    found = find_change(series)
    assert found is not None
    assert abs(found.index - at) <= 10
    assert judge_history(series, first_step=1000).since_step == pytest.approx(1000 + at, abs=10)


@pytest.mark.parametrize("seed", range(200))
def test_a_level_series_has_no_change(seed):
    source = random.Random(seed)
    series = [source.lognormvariate(-2.3, 0.2) + (1.0 if i % 50 == 0 else 0.0) for i in range(200)]
    assert find_change(series) is None


def test_growing_times_are_a_change_and_shrinking_ones_are_not_slow():
    growing = [0.1 + 0.0005 * i for i in range(100)]
    assert judge_history(growing).code == "ES-S03"
    assert judge_history(growing[::-1]).code == "ES-S00"


@pytest.mark.parametrize("series", [[], [0.1], [0.1] * 100, [float("nan")] * 50, [0.0] * 50])
def test_degenerate_series(series):
    assert find_change(series) is None
