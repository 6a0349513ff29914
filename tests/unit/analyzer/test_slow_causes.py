"""What the kernel says of one rank is found where the vote sees nothing, and what all ranks share is nobody's own."""

import random

import msgspec
import pytest

from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.slowness.cpu.overload import find_overload
from everstep.analyzer.slowness.cpu.starving import find_starving
from everstep.analyzer.slowness.grown import find_grown
from everstep.analyzer.slowness.links.sending import find_slow_link
from everstep.analyzer.slowness.slow import judge

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


@pytest.mark.parametrize("part", ["throttled_s", "io_s", "slept_s"])
@pytest.mark.parametrize("share", [0.0, 0.5, 2.0])
def test_waiting_that_all_ranks_share_changes_nobodys_name(part, share):
    """As much for each of them in each round, changing from round to round: a busy machine. With a fault or without."""
    dice = random.Random(11)
    for fault in ({part: 0.16}, {}):
        now, usual = rounds(5, 2, **fault), rounds(9)
        busy = []
        for timings in now:
            more = share * 0.1 * dice.uniform(0.2, 1.8)
            busy.append([_longer(t, part, more) for t in timings])
        before, after = find_grown(now, usual, 4), find_grown(busy, usual, 4)
        assert (before is not None) is bool(fault)
        if part == "throttled_s":  # counted by the kernel, and compared round by round
            assert (after and after.rank) == (before and before.rank)
        assert after is None or (fault and after.rank == 2), "no innocent"


def _longer(t: RankTiming, part: str, more_s: float) -> RankTiming:
    own = {} if part == "slept_s" else {part: getattr(t, part) + more_s}
    return RankTiming(**{**_dict(t), "compute_s": t.compute_s + more_s, **own})


def test_a_quota_that_stops_a_rank_for_long_is_certain_after_three_rounds():
    """The rounds grow with the steps; and the first one is half healthy, so a scatter over all of them says nothing."""
    usual = rounds(6, delay_s=0.2)
    now = [*rounds(2, 3, 0.2), *rounds(1, 4, 0.2, throttled_s=0.23), *rounds(2, 5, 0.2, throttled_s=0.15)]
    found = find_grown(now, usual, 4)
    assert found is not None
    assert (found.code, found.rank) == ("ES-S09", 2)
    little = [*rounds(2, 3, 0.2), *rounds(3, 4, 0.2, throttled_s=0.04)]
    assert find_grown(little, usual, 4) is None, "little may be chance: four rounds"


def test_a_link_that_loses_much_is_certain_after_three_rounds():
    usual, clear = rounds(6), rounds(2, 3)
    lossy = [
        [RankTiming(**{**_dict(t), "compute_s": t.compute_s + 0.08}) for t in timings]
        for timings in rounds(3, 4, send_s=0.1)
    ]
    assert find_slow_link([*clear, *lossy], usual, 4) is None, "slow by itself: four rounds"
    lost = [[RankTiming(**{**_dict(t), "lost": 7 if t.rank == 2 else 0}) for t in timings] for timings in lossy]
    found = find_slow_link([*clear, *lost], usual, 4)
    assert found is not None
    assert (found.rank, found.lost) == (2, 21)
    lost[1] = [RankTiming(**{**_dict(t), "lost": None}) for t in lost[1]]
    assert find_slow_link([*clear, *lost], usual, 4) is None, "unknown is not lost"


def test_what_is_sent_again_after_a_timer_makes_few_steps_long():
    """A round of a real lossy link: data on its way for 900 ms per step, and steps that are longer by a sixth."""
    usual = rounds(6)
    lossy = [
        [RankTiming(**{**_dict(t), "compute_s": t.compute_s + 0.02, "lost": 90 if t.rank == 2 else 0}) for t in timings]
        for timings in rounds(5, 4, send_s=0.9)
    ]
    found = find_slow_link(lossy, usual, 4)
    assert found is not None
    assert found.rank == 2
    as_ever = [[RankTiming(**{**_dict(t), "compute_s": t.compute_s - 0.02}) for t in timings] for timings in lossy]
    assert find_slow_link(as_ever, usual, 4) is None, "it costs nothing"


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


def _asleep(num: int, seed: int, slept_s: float, **parts: float) -> list[list[RankTiming]]:
    """All ranks sleep 30 ms per step by their program, rank 2 as long as is asked for. Whether they wait for each other
    is not known: then waiting counts as computing, and the sleep cannot be told by subtraction."""
    dice = random.Random(seed)
    found = []
    for _ in range(num):
        step_s = 0.4 + slept_s * dice.uniform(0.5, 3.0)
        found.append(
            [
                RankTiming(
                    rank=rank,
                    compute_s=step_s,
                    wait_s=0.0,
                    delay_s=0.2 * dice.uniform(0.5, 1.5),
                    host="a",
                    held={"timer": (slept_s if rank == 2 else 0.03) * dice.uniform(0.95, 1.05)},
                    **({"cpu_s": 0.06} | parts),
                )
                for rank in RANKS
            ]
        )
    return found


@pytest.mark.parametrize("seed", range(10))
def test_a_sleep_is_named_where_waiting_for_others_cannot_be_told_from_computing(seed):
    found = find_grown(_asleep(5, seed, 0.09), _asleep(9, seed + 100, 0.03), 4)
    assert found is not None
    assert (found.code, found.rank) == ("ES-S10", 2)
    assert "sleeps on a timer" in found.says
    assert find_grown(_asleep(5, seed, 0.035), _asleep(9, seed + 100, 0.03), 4) is None


@pytest.mark.parametrize("part", ["cpu_s", "fsync"])
def test_who_sleeps_until_another_rank_is_done_is_not_named(part):
    """It asks for a file again and again, which rank 1 writes later than before."""
    late = [
        [
            msgspec.structs.replace(t, cpu_s=0.11)
            if t.rank == 1 and part == "cpu_s"
            else msgspec.structs.replace(t, held={**t.held, **({"fsync": 0.05} if t.rank == 1 else {})})
            for t in timings
        ]
        for timings in _asleep(5, 1, 0.09)
    ]
    found = find_grown(late, _asleep(9, 101, 0.03), 4)
    assert found is None or found.rank == 1


def test_who_sleeps_while_a_device_computes_is_not_named():
    asleep = [_asleep(num, 1, slept_s, cpu_s=None) for num, slept_s in ((5, 0.09), (9, 0.03))]
    assert find_grown(*asleep, 4) is None


@pytest.mark.parametrize(
    ("kind", "code"), [("file lock", "ES-S10"), ("fsync", "ES-S07"), ("timer", "ES-S01"), ("", "ES-S01")]
)
def test_beside_a_device_a_rank_that_waits_for_a_lock_or_a_file_is_no_slow_machine(kind, code):
    """How much CPU time a step needs says nothing there. A thread that sleeps may wait for its own slow device."""
    rng = random.Random(8)
    slow = [
        [
            RankTiming(
                rank=rank,
                compute_s=(0.15 if rank == 2 else 0.1) * rng.uniform(0.99, 1.01),
                wait_s=0.0 if rank == 2 else 0.05,
                host="ab"[rank % 2],
                held={kind: 0.045} if rank == 2 and kind else {},
            )
            for rank in RANKS
        ]
        for _ in range(5)
    ]
    assert judge(slow).code == code
