"""Who takes a rank's CPU is found by the processes, not by how long ranks wait: on a busy machine all wait alike."""

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.slowness.arrivals import join
from everstep.analyzer.slowness.cpu.starving import find_starving
from everstep.analyzer.slowness.cpu.taken import find_robbed
from everstep.analyzer.slowness.grown import find_grown
from everstep.model.facts import RankRound, Taken

RANKS = range(4)
BURNERS = (71, 72, 73)


def rounds(num: int, seed: int, *, burnt: int | None = None, floating: int = 12) -> list[list[RankTiming]]:
    """Two ranks on each of two machines, on which `floating` processes run now on this core and now on that one.
    Burners on one core drive those to the other: all ranks of that machine wait as long as before, as measured."""
    dice = random.Random(seed)
    return [[_timing(rank, dice, burnt, floating) for rank in RANKS] for _ in range(num)]


def _timing(rank: int, dice: random.Random, burnt: int | None, floating: int) -> RankTiming:
    mine = dict.fromkeys(BURNERS, 0.05) if rank == burnt else {}
    left = 0.5 - sum(mine.values())
    weights = {200 + number: dice.expovariate(1.0) for number in range(floating)}
    total = sum(weights.values())
    mine |= {pid: left * weight / total for pid, weight in weights.items()} if total else {}
    takers = tuple(Taken(pid, "burn" if pid in BURNERS else "cc1", each) for pid, each in mine.items() if each >= 0.01)
    delay_s = 0.18 * dice.uniform(0.95, 1.05)
    return RankTiming(
        rank=rank, compute_s=0.26, wait_s=0.01, delay_s=delay_s, cpu_s=0.04, host="ab"[rank // 2], takers=takers
    )


@pytest.mark.parametrize("seed", range(20))
def test_who_takes_one_ranks_cpu_is_named_where_all_ranks_wait_as_long(seed: int) -> None:
    now, usual = rounds(5, seed, burnt=1), rounds(9, seed + 1000)
    assert find_starving(now, usual, 4) is None, "it waits as long as its neighbour, and as before"
    found = find_robbed(now, usual, 4)
    assert found is not None
    assert (found.ranks, {each.pid for each in found.takers}) == ((1,), set(BURNERS))
    assert "burn (pid 71) (5%)" in found.says
    assert "for 15% of its time" in found.says


@pytest.mark.parametrize("floating", [0, 1, 3, 12, 40])
@pytest.mark.parametrize("seed", range(10))
def test_what_runs_now_here_and_now_there_is_nobodys(seed: int, floating: int) -> None:
    assert find_robbed(rounds(5, seed, floating=floating), rounds(9, seed + 1000, floating=floating), 4) is None


@given(noise=st.dictionaries(st.integers(1000, 1030), st.floats(0.01, 0.5), max_size=20), seed=st.integers(0, 50))
def test_noise_that_is_equal_for_all_ranks_changes_nobodys_name(noise: dict[int, float], seed: int) -> None:
    """New processes that take as much from each rank, with a fault and without."""
    extra = tuple(Taken(pid, "sh", share) for pid, share in noise.items())
    for burnt in (1, None):
        now, usual = rounds(5, seed, burnt=burnt), rounds(9, seed + 1000)
        noisy = [[msgspec.structs.replace(t, takers=(*(t.takers or ()), *extra)) for t in timings] for timings in now]
        before, after = find_robbed(now, usual, 4), find_robbed(noisy, usual, 4)
        assert (before and before.ranks, before and before.takers) == (after and after.ranks, after and after.takers)
        assert (before is None) is (burnt is None)


@pytest.mark.parametrize("seed", range(20))
def test_ranks_that_share_the_cpu_that_is_taken_are_all_named(seed: int) -> None:
    """Four ranks on a machine, two to each of its CPUs: burners on one CPU take as much from both."""
    dice = random.Random(seed)

    def on_one_machine(num: int, burnt: tuple[int, ...], seed: int) -> list[list[RankTiming]]:
        made = rounds(num, seed, burnt=1)
        for timings in made:
            for at, timing in enumerate(timings):
                kept = [each for each in timing.takers or () if each.pid not in BURNERS]
                mine = [Taken(pid, "burn", 0.05 * dice.uniform(0.8, 1.2)) for pid in BURNERS if at in burnt]
                timings[at] = msgspec.structs.replace(timing, host="a", takers=(*kept, *mine))
        return made

    usual = on_one_machine(9, (), seed + 1000)
    found = find_robbed(on_one_machine(5, (1, 3), seed), usual, 4)
    assert found is not None
    assert (found.ranks, {each.pid for each in found.takers}) == ((1, 3), set(BURNERS))
    assert found.says.startswith("ranks 1,3 are ready and not scheduled for 1")
    assert "their CPU is taken by burn" in found.says
    assert find_robbed(on_one_machine(5, (0, 1, 2, 3), seed), usual, 4) is None, "all lose as much"
    assert find_robbed(on_one_machine(5, (), seed), usual, 4) is None


def test_what_ran_there_before_is_usual() -> None:
    assert find_robbed(rounds(5, 1, burnt=1), rounds(9, 2, burnt=1), 4) is None


def test_a_crowd_of_short_lived_processes_is_not_who_takes_it() -> None:
    """A compiler's, each bound and gone within a round: who is named has to be there round after round."""
    now = [
        [msgspec.structs.replace(t, takers=(Taken(500 + number, "cc1", 0.3),) if t.rank == 1 else ()) for t in timings]
        for number, timings in enumerate(rounds(5, 1))
    ]
    assert find_robbed(now, rounds(9, 2), 4) is None


def test_where_each_rank_has_a_process_of_its_own_at_its_cpu_nobody_is_singled_out() -> None:
    """A monitor that was started on each core takes a little more here and a little less there."""
    now = [
        [msgspec.structs.replace(t, takers=(Taken(500 + t.rank, "mon", 0.10 + 0.01 * t.rank),)) for t in timings]
        for timings in rounds(5, 1)
    ]
    assert find_robbed(now, rounds(9, 2), 4) is None


def test_on_another_machine_the_same_number_is_another_process() -> None:
    def beside(timings: list[RankTiming]) -> list[RankTiming]:
        other = Taken(71, "init", 0.2)
        return [msgspec.structs.replace(t, takers=(*(t.takers or ()), other)) if t.rank == 2 else t for t in timings]

    found = find_robbed([*map(beside, rounds(5, 1, burnt=1))], [*map(beside, rounds(9, 2))], 4)
    assert found is not None
    assert (found.ranks, {each.pid for each in found.takers}) == ((1,), set(BURNERS))


def test_who_did_not_look_knows_nothing() -> None:
    """Neither that nobody took a CPU, nor that somebody did."""
    now, usual = rounds(5, 1, burnt=1), rounds(9, 2)
    blind = [[msgspec.structs.replace(t, takers=None) for t in timings] for timings in now]
    assert find_robbed(blind, usual, 4) is None
    half = [*blind[:2], *now[2:]]
    assert find_robbed(half, usual, 4) is None, "three rounds are too few"
    assert (
        find_robbed(now, [[msgspec.structs.replace(t, takers=None) for t in timings] for timings in usual], 4) is None
    )


def test_joined_rounds_keep_the_share_of_both() -> None:
    one = RankRound(rank=0, num_steps=3, window_s=2.0, takers=(Taken(7, "a", 0.2),), held={"write": 0.5})
    two = RankRound(rank=0, num_steps=3, window_s=6.0, takers=(Taken(7, "a", 0.4), Taken(8, "b", 0.1)), held={})
    found = join(one, two)
    assert found.takers is not None
    assert {each.pid: each.share for each in found.takers} == pytest.approx({7: 0.35, 8: 0.075})
    assert found.held == pytest.approx({"write": 0.125})
    unseen = msgspec.structs.replace(two, takers=None, held=None)
    assert (join(one, unseen).takers, join(one, unseen).held) == (one.takers, one.held)
    assert join(unseen, unseen).takers is None


@pytest.mark.parametrize(
    ("kind", "code", "words"),
    [("write", "ES-S07", "a disk"), ("file lock", "ES-S10", "a lock"), ("futex", "ES-S10", "a lock")],
)
def test_sleeps_that_the_kernel_told_are_found_where_looks_see_none(kind: str, code: str, words: str) -> None:
    """Four looks in two seconds miss what the kernel counts; and 40 ms of a step of 600 ms, 500 of which it waits for
    a CPU, are certain all the same."""
    dice = random.Random(3)

    def timings(held_s: float) -> list[RankTiming]:
        return [
            RankTiming(
                rank=rank,
                compute_s=0.6,
                delay_s=0.5 * dice.uniform(0.8, 1.2),
                cpu_s=0.04,
                io_s=0.0,
                held={kind: held_s * dice.uniform(0.9, 1.1)} if rank == 2 else {},
            )
            for rank in RANKS
        ]

    usual = [timings(0.001) for _ in range(8)]
    found = find_grown([timings(0.04) for _ in range(5)], usual, 4)
    assert found is not None
    assert (found.rank, found.code) == (2, code)
    assert words in found.says
    assert find_grown([timings(0.001) for _ in range(5)], usual, 4) is None
    shared = [[msgspec.structs.replace(t, held={kind: 0.04}) for t in timings(0.0)] for _ in range(5)]
    assert find_grown(shared, usual, 4) is None, "all of them wait as long"


def test_what_varies_by_itself_by_as_much_is_not_named() -> None:
    """A rank that writes a log every other round waits for the disk now and then: also four times in five rounds."""

    def timings(held_s: float) -> list[RankTiming]:
        return [RankTiming(rank=rank, compute_s=0.1, held={"write": held_s} if rank == 2 else {}) for rank in RANKS]

    usual = [timings(0.03 * (number % 2)) for number in range(8)]
    assert find_grown([timings(0.0), *(timings(0.03) for _ in range(4))], usual, 4) is None
    assert find_grown([timings(0.2) for _ in range(5)], usual, 4) is not None


@pytest.mark.parametrize("kind", ["reclaim", "cgroup reclaim", "swap"])
def test_memory_is_no_file(kind: str) -> None:
    """A machine without memory makes every rank wait, and which of them first is chance."""
    usual = [[RankTiming(rank=rank, compute_s=0.1, held={}) for rank in RANKS] for _ in range(8)]
    now = [[RankTiming(rank=rank, compute_s=0.1, held={kind: 0.05} if rank == 2 else {}) for rank in RANKS]] * 5
    assert find_grown(now, usual, 4) is None
