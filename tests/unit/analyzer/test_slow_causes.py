"""What the kernel says of one rank is found where the vote sees nothing, and what all ranks share is nobody's own."""

import random

import pytest

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.slowness.grown import find_grown
from everstep.analyzer.slowness.overload import find_overload
from everstep.analyzer.slowness.sending import find_slow_link
from everstep.analyzer.slowness.starving import find_starving

RANKS = range(4)


def timing(rank: int, rng: random.Random, *, delay_s: float = 0.0, **parts: float) -> RankTiming:
    """A step of 100 ms: 60 ms of CPU, some sleep, and what is asked for, each scattered a little."""
    noise = rng.uniform(0.9, 1.1)
    slept_s, wait_s = parts.pop("slept_s", 0.03), parts.pop("wait_s", 0.01)
    own = {"cpu_s": 0.06, "throttled_s": 0.0, "io_s": 0.001, "send_s": 0.004} | parts
    compute_s = (own["cpu_s"] + slept_s * noise + delay_s + own["io_s"]) if rank >= 0 else 0.0
    return RankTiming(rank=rank, compute_s=compute_s, wait_s=wait_s, delay_s=delay_s, host="ab"[rank % 2], **own)


def rounds(num: int, seed: int = 1, delay_s: float = 0.0, **of_rank_2: float) -> list[list[RankTiming]]:
    rng = random.Random(seed)
    return [
        [
            timing(rank, rng, delay_s=delay_s * rng.uniform(0.8, 1.2), **(of_rank_2 if rank == 2 else {}))
            for rank in RANKS
        ]
        for _ in range(num)
    ]


@pytest.mark.parametrize(
    ("parts", "code"),
    [({"io_s": 0.09}, "ES-S07"), ({"throttled_s": 0.05}, "ES-S09"), ({"slept_s": 0.16}, "ES-S10")],
)
@pytest.mark.parametrize("delay_s", [0.0, 0.4])
def test_the_part_that_grew_names_rank_and_cause_also_where_all_wait_for_cpus(parts, code, delay_s):
    found = find_grown(rounds(5, 2, delay_s, **parts), rounds(6, delay_s=delay_s), 4)
    assert found is not None, parts
    assert (found.code, found.rank) == (code, 2)
    assert "usually" in found.says


@pytest.mark.parametrize("delay_s", [0.0, 0.4])
def test_nothing_is_found_where_nothing_grew_or_all_of_them_did(delay_s):
    usual = rounds(6, delay_s=delay_s)
    assert find_grown(rounds(5, 2, delay_s), usual, 4) is None
    rng = random.Random(3)
    slower = [[timing(rank, rng, delay_s=delay_s, slept_s=0.16) for rank in RANKS] for _ in range(5)]
    assert find_grown(slower, usual, 4) is None


@pytest.mark.parametrize(("cpu_s", "is_starved"), [(0.06, True), (0.12, False)])
def test_who_needs_more_of_a_busy_cpu_waits_longer_and_is_not_starved(cpu_s, is_starved):
    """A machine that became slow, of 60 to 120 ms per step, where all ranks wait: nobody took its CPU."""
    rng = random.Random(5)
    slower = [
        [timing(r, rng, delay_s=0.8 if r == 2 else 0.4, cpu_s=cpu_s if r == 2 else 0.06) for r in RANKS]
        for _ in range(5)
    ]
    found = find_starving(slower, rounds(6, delay_s=0.4), 4)
    assert (found is not None and found.rank == 2) is is_starved


def test_two_rounds_do_not_say_what_is_usual():
    """The start of a job on a busy machine: rank 1 had slept 0 ms by them, and was named (a healthy run)."""
    assert find_grown(rounds(5, 2, slept_s=0.16), rounds(2), 4) is None


def test_a_slow_link_names_the_sender_and_only_where_steps_became_longer():
    slow = {"send_s": 0.07, "wait_s": 0.01}
    longer = [
        [RankTiming(**{**_dict(t), "compute_s": t.compute_s + 0.065}) for t in timings]
        for timings in rounds(5, 2, **slow)
    ]
    found = find_slow_link(longer, rounds(6), 4)
    assert found is not None
    assert found.rank == 2
    assert find_slow_link(rounds(5, 2, **slow), rounds(6), 4) is None, "it costs nothing"
    assert find_slow_link(rounds(5, 2, 0.4, **slow), rounds(6, delay_s=0.4), 4) is not None, "whether it does is hidden"
    assert find_slow_link(rounds(5, 2), rounds(6), 4) is None


def test_a_machine_with_more_to_run_than_cpus_is_said():
    assert find_overload(rounds(5), 4) is None
    found = find_overload(rounds(5, delay_s=0.3), 4)
    assert found is not None
    assert found.ranks in ((0, 2), (1, 3))
    assert "more to run than CPUs" in found.says


def _dict(t: RankTiming) -> dict[str, object]:
    return {name: getattr(t, name) for name in RankTiming.__struct_fields__}
