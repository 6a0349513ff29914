"""What the kernel saw of a rank, in words: what is foreign is named, what is the run's own doing is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.slowness.off_cpu import IDLE, UNKNOWN, KernelView, Taker, ThreadView, says, waits_text

RANK, NEIGHBOUR, BURN = 500, 501, 4711


def view(*takers: Taker, window_s: float = 10.0) -> KernelView:
    return KernelView(window_s=window_s, threads=(ThreadView(pid=RANK, tid=RANK, takers=takers),))


def text(*takers: Taker) -> str:
    return waits_text(view(*takers), (RANK,), {RANK, NEIGHBOUR})


def test_who_took_the_cpu_is_named_with_the_share() -> None:
    said = text(Taker(BURN, "burn", 3.0, 700), Taker(NEIGHBOUR, "python", 0.1, 9))
    assert said == "it was ready and not scheduled for 31% of the last 10 s, CPU taken by burn (pid 4711)"


def test_several_have_a_share_each() -> None:
    said = text(Taker(9, "b", 1.0, 9), Taker(8, "a", 3.0, 9), Taker(7, "c", 0.5, 9))
    assert said.endswith("CPU taken by a (pid 8) (30%), CPU taken by b (pid 9) (10%)")


@pytest.mark.parametrize(
    "takers",
    [
        (),
        (Taker(BURN, "burn", 0.4, 80),),  # the noise of any machine
        (Taker(NEIGHBOUR, "python", 6.0, 900),),  # another rank: more ranks than CPUs
        (Taker(IDLE, "swapper/0", 0.9, 90_000),),  # woken up within microseconds, very often
        (Taker(UNKNOWN, "", 5.0, 100),),  # unknown is nobody
        (Taker(NEIGHBOUR, "python", 4.0, 900), Taker(BURN, "burn", 1.0, 9)),  # most of it is our own doing
    ],
)
def test_nothing_is_said_of_a_healthy_rank(takers: tuple[Taker, ...]) -> None:
    assert text(*takers) == ""


def test_a_quota_is_told_from_another_process() -> None:
    said = text(Taker(IDLE, "swapper/1", 4.0, 100))
    assert said.endswith("40% of the last 10 s, held back by a CPU quota: no other process had its CPU")


def test_of_several_threads_the_one_that_waited_longest_speaks() -> None:
    threads = tuple(
        ThreadView(pid=RANK, tid=RANK + n, takers=(Taker(BURN + n, "burn", float(n), 9),)) for n in range(4)
    )
    assert "(pid 4714)" in waits_text(KernelView(window_s=10.0, threads=threads), (RANK,), {RANK})


def test_other_processes_of_the_node_are_not_the_ranks() -> None:
    assert says(view(Taker(BURN, "burn", 9.0, 9)), (NEIGHBOUR,), {RANK, NEIGHBOUR}) == ()


@given(
    st.lists(st.tuples(st.sampled_from([IDLE, UNKNOWN, RANK, NEIGHBOUR, BURN]), st.floats(0, 1e4), st.integers(0, 99))),
    st.floats(-1, 1e4),
)
def test_any_view_gives_a_share_within_bounds_and_blames_no_rank(
    listed: list[tuple[int, float, int]], window_s: float
) -> None:
    takers = [Taker(pid, "x", wait_s, count) for pid, wait_s, count in listed]
    for line in says(view(*takers, window_s=window_s), (RANK,), {RANK, NEIGHBOUR}):
        assert "(pid 500)" not in line
        assert "(pid 501)" not in line
        assert 5 <= int(line.split("for ")[1].split("%")[0]) <= 100
