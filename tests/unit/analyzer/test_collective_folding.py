"""Streams of what ranks entered become a table: complete operations only, the last to come, times known or unknown."""

import random

import pytest

from everstep.analyzer.collective.calls import durations
from everstep.analyzer.collective.folding import FIRST, Folding
from everstep.analyzer.collective.volume import bus_share, num_bytes
from everstep.model.collective import RankOps

MB = 1 << 20
WORLD = (("0", "all_reduce", MB),)


def stream(rank: int, ops: list[tuple[int, float, float]], **more: object) -> RankOps:
    """(sequence number, when, how long) in the whole job's group."""
    listed = tuple((0, seq, at, took_s) for seq, at, took_s in ops)
    kinds = more.pop("kinds", WORLD)
    return RankOps(rank=rank, kinds=kinds, ops=listed, titles={"0": "default_pg"}, **more)  # type: ignore[arg-type]


def test_times_and_bandwidths_of_one_operation() -> None:
    folding = Folding()
    folding.add([stream(0, [(1, 10.0, 0.5)]), stream(1, [(1, 10.3, 0.2)])], at=11.0, world_size=2)
    (group,) = folding.table().groups
    (row,) = group.rows
    assert (group.ranks, group.num_ops, group.num_seen, row.count) == ((0, 1), 1, 1, 1)
    assert row.time_s.value == pytest.approx(0.35)
    assert row.transfer_s.value == pytest.approx(0.2)  # of rank 1, which nobody made wait
    assert row.skew_s.value == pytest.approx(0.3)
    assert row.algbw.value == pytest.approx(MB / 0.35)
    assert row.busbw.value == pytest.approx(MB / 0.35)  # of two ranks
    assert row.last == ((1, 1),)
    assert row.usual_bw.why == FIRST


def test_each_of_a_thousand_delays_is_found() -> None:
    drawn = random.Random(7)
    folding, expected = Folding(), {}
    for look in range(4):
        ops: dict[int, list[tuple[int, float, float]]] = {rank: [] for rank in range(4)}
        for seq in range(look * 250, look * 250 + 250):
            late = expected[seq] = drawn.randrange(4)
            for rank in ops:
                at = 100.0 + seq + drawn.uniform(0, 0.0009) + (rank == late) * drawn.uniform(0.002, 0.05)
                ops[rank].append((seq, at, 0.01))
        order = drawn.sample(range(4), 4)
        folding.add([stream(rank, ops[rank]) for rank in order], at=look * 10.0, world_size=4)
    assert {each.seq: each.rank for each in folding.table().late} == expected


def test_an_operation_whose_rest_comes_with_the_next_look() -> None:
    folding = Folding()
    folding.add([stream(0, [(1, 1.0, 0.1), (2, 2.0, 0.1)]), stream(1, [(1, 1.0, 0.1)])], at=2.0, world_size=2)
    assert folding.table().groups[0].rows[0].count == 1
    folding.add([stream(0, [(2, 2.0, 0.1)]), stream(1, [(1, 1.0, 0.1), (2, 2.5, 0.1)])], at=12.0, world_size=2)
    row = folding.table().groups[0].rows[0]
    assert (row.count, row.num_late, row.last) == (2, 1, ((1, 1),))


def test_an_operation_without_one_member_counts_for_nothing() -> None:
    folding = Folding()
    for look in range(4):
        folding.add([stream(0, [(look, 1.0 + look, 0.1)]), stream(1, [])], at=float(look), world_size=2)
    assert folding.table().groups[0].rows == ()
    assert folding.table().groups[0].num_ops == 4


def test_a_row_is_compared_with_its_own_past() -> None:
    folding = Folding()
    for look, took_s in enumerate((0.1, 0.1, 0.2, 0.4)):
        folding.add([stream(r, [(look, float(look), took_s)]) for r in (0, 1)], at=float(look), world_size=2)
    row = folding.table().groups[0].rows[0]
    assert row.usual_bw.value == pytest.approx(MB / 0.1)
    assert row.transfer_bw.value == pytest.approx(MB / 0.4)
    assert row.mean_s.value == pytest.approx(0.2)
    assert [window.transfer_s for window in row.history] == [0.1, 0.1, 0.2, 0.4]


def test_unknown_is_said_and_never_zero() -> None:
    folding = Folding()
    queued = [stream(rank, [(1, 1.0, -1.0)], is_queued=True) for rank in (0, 1)]
    folding.add([*queued, RankOps(rank=2, missing="it is stopped")], at=1.0)
    table = folding.table()
    row = table.groups[0].rows[0]
    for figure in (row.time_s, row.transfer_s, row.algbw, row.busbw, row.transfer_bw, row.skew_s, row.usual_bw):
        assert figure.value is None
        assert figure.why
    assert row.num_late is None
    assert row.last == ()
    assert table.missing == {"it is stopped": (2,)}


def test_clocks_of_machines_are_compared_with_doubt() -> None:
    folding = Folding()
    ops = [stream(0, [(1, 1.0, 0.1), (2, 2.0, 0.1)]), stream(1, [(1, 6.003, 0.1), (2, 7.050, 0.1)])]
    folding.add(ops, at=2.0, world_size=2, ahead_s={0: 0.0, 1: 5.0})
    table = folding.table()
    assert table.is_rough
    assert [(each.seq, each.rank) for each in table.late] == [(2, 1)]


def test_groups_of_one_name_and_other_ranks_are_two() -> None:
    folding = Folding()
    pairs = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
    kinds = (("7", "all_gather", MB),)
    streams = [stream(r, [(1, 1.0 + r, 0.1)], kinds=kinds, groups={"7": pair}) for r, pair in pairs.items()]
    folding.add(streams, at=2.0, world_size=4)
    assert [group.ranks for group in folding.table().groups] == [(0, 1), (2, 3)]


def test_another_generation_begins_anew() -> None:
    folding = Folding()
    for generation in (0, 1):
        streams = [stream(rank, [(1, 1.0, 0.1)]) for rank in (0, 1)]
        folding.add(streams, at=1.0, generation=generation, world_size=2)
    table = folding.table()
    assert (table.generation, table.groups[0].rows[0].count) == (1, 1)


@pytest.mark.parametrize("seed", range(20))
def test_a_lying_rank_costs_nobody_the_table(seed: int) -> None:
    drawn = random.Random(seed)
    strange = [float("nan"), float("inf"), -1e300, 0.0, 1e308]
    folding = Folding()
    for look in range(3):
        lies = tuple((drawn.randrange(-3, 9), drawn.randrange(-9, 99), drawn.choice(strange), -1.0) for _ in range(50))
        liar = RankOps(rank=1, kinds=(("0", "x", -5), ("9", "", MB)), ops=lies)
        honest = [stream(rank, [(look, float(look), 0.1)]) for rank in (0, 2)]
        folding.add([*honest, liar], at=float(look))
    folding.table()


def test_calls_are_matched_by_thread_and_time() -> None:
    calls = [(1, 100, 200), (1, 300, 900), (1, 400, 500), (1, 600, 700), (2, 0, 1000)]
    entered = [(1, 150), (1, 450), (1, 650), (1, 250), (2, 5), (2, 7), (3, 150)]
    got = durations(entered, calls)
    assert got[:4] == [1e-7, 1e-7, 1e-7, -1.0]  # inner calls, and one outside of all
    assert got[4:] == [-1.0, -1.0, -1.0]  # two operations in one call; a thread without calls


def test_bytes_as_nccl_tests_count_them() -> None:
    assert num_bytes("all_reduce", [[3, 4]], ["Float"], [[3, 4]], ["Float"]) == 48
    assert num_bytes("all_gather", [[10]], ["BFloat16"], [[2, 10]], ["BFloat16"]) == 40
    assert num_bytes("reduce_scatter", [[8]], ["Double"], [[2]], ["Double"]) == 64
    assert num_bytes("barrier", [], [], [], []) == 0
    assert num_bytes("all_reduce", [[3]], ["Strange"], [], []) == -1
    assert num_bytes("all_reduce", [[3]], [], [], []) == -1
    assert [bus_share("all_reduce", n) for n in (1, 2, 4)] == [0.0, 1.0, 1.5]
    assert bus_share("_all_gather_base", 4) == 0.75
    assert bus_share("barrier", 4) is None


def test_groups_without_end_are_bounded_and_the_one_in_use_stays() -> None:
    folding = Folding()
    for look in range(40):
        kinds = (("whole", "all_reduce", 8), *((f"{look}-{number}", "all_reduce", 8) for number in range(100)))
        ops = tuple((kind, look, look + kind / 1000, 0.5) for kind in range(len(kinds)))
        alone = tuple((f"alone-{look}-{number}", "all_reduce", 8) for number in range(100))
        lying = RankOps(rank=1, kinds=(*kinds, *alone), ops=(*ops, *((101 + n, look, look, 0.5) for n in range(100))))
        folding.add([RankOps(rank=0, kinds=kinds, ops=ops), lying], at=float(look), world_size=2)
    table = folding.table()
    assert len(table.groups) <= 1024
    assert {late.group for late in table.late} <= set(range(len(table.groups)))
    (whole,) = [group for group in table.groups if group.name == "whole"]
    assert whole.num_seen == 40
    assert "39-99" in {group.name for group in table.groups}
    assert "0-0" not in {group.name for group in table.groups}
