"""What the kernel saw of a rank, in words: what is foreign is named, what is the run's own doing is not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everstep.analyzer.slowness.off_cpu import (
    GROUP_RECLAIM,
    IDLE,
    QUOTA,
    RECLAIM,
    RUN_QUEUE,
    UNKNOWN,
    KernelView,
    Sleep,
    Taker,
    ThreadView,
    held,
    says,
    shares,
    sleeps_text,
    takers,
    waits_text,
)
from everstep.model.facts import Taken

RANK, NEIGHBOUR, CHILD, BURN = 500, 501, 502, 4711


def view(*takers: Taker, window_s: float = 10.0) -> KernelView:
    return KernelView(window_s=window_s, threads=(ThreadView(pid=RANK, tid=RANK, takers=takers),))


def text(*takers: Taker) -> str:
    return waits_text(view(*takers), (RANK,), {RANK, NEIGHBOUR})


def test_who_took_the_cpu_is_named_with_the_share() -> None:
    said = text(Taker(BURN, "burn", 3.0, 700), Taker(NEIGHBOUR, "python", 0.1, 9))
    assert said == "it was ready and not scheduled for 31% of the last 10 s, CPU taken by burn (pid 4711)"


def test_several_have_a_share_each() -> None:
    said = text(Taker(9, "b", 1.0, 9), Taker(8, "a", 3.0, 9), Taker(7, "c", 0.5, 9))
    assert said.endswith("45% of the last 10 s, CPU taken by a (pid 8) (30%), b (pid 9) (10%), c (pid 7) (5%)")


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
    said = text(Taker(QUOTA, "", 4.0, 100), Taker(IDLE, "swapper/1", 0.1, 100))
    assert said.endswith("41% of the last 10 s, CPU taken by the CPU quota of its cgroup")


def test_of_several_threads_the_one_that_waited_longest_speaks() -> None:
    threads = tuple(
        ThreadView(pid=RANK, tid=RANK + n, takers=(Taker(BURN + n, "burn", float(n), 9),)) for n in range(4)
    )
    assert "(pid 4714)" in waits_text(KernelView(window_s=10.0, threads=threads), (RANK,), {RANK})


def test_other_processes_of_the_node_are_not_the_ranks() -> None:
    assert says(view(Taker(BURN, "burn", 9.0, 9)), NEIGHBOUR, (NEIGHBOUR,), {RANK, NEIGHBOUR}) == ()


@given(
    st.lists(
        st.tuples(st.sampled_from([IDLE, QUOTA, UNKNOWN, RANK, NEIGHBOUR, BURN]), st.floats(0, 1e4), st.integers(0, 99))
    ),
    st.floats(-1, 1e4),
)
def test_any_view_gives_a_share_within_bounds_and_blames_no_rank(
    listed: list[tuple[int, float, int]], window_s: float
) -> None:
    takers = [Taker(pid, "x", wait_s, count) for pid, wait_s, count in listed]
    for line in says(view(*takers, window_s=window_s), RANK, (RANK,), {RANK, NEIGHBOUR}):
        assert "(pid 500)" not in line
        assert "(pid 501)" not in line
        assert 5 <= int(line.split("for ")[1].split("%")[0]) <= 100


def slept(*sleeps: Sleep, pid: int = RANK, tid: int = RANK) -> str:
    seen = KernelView(window_s=10.0, threads=(ThreadView(pid=pid, tid=tid, sleeps=sleeps),))
    return sleeps_text(seen, RANK, (RANK, CHILD), {RANK, CHILD, NEIGHBOUR})[0]


def test_a_long_sleep_has_its_file() -> None:
    said = slept(Sleep("fsync", 1.9, 5, 0.6, "/data/a.pt (/dev/sdb)"), Sleep("read", 0.9, 2, 0.5, "/x"))
    assert said == "it slept 1.9 s in fsync of /data/a.pt (/dev/sdb), 5 times, at most 0.6 s, in the last 10 s"


def test_a_lock_has_who_gave_it() -> None:
    held = Sleep("file lock", 4.0, 1, 4.0, "/data/lock", NEIGHBOUR, "python")
    assert slept(held) == "it slept 4 s for a file lock of /data/lock, ended by python (pid 501), in the last 10 s"
    assert "for a lock (futex), ended by holder (pid 4711)" in slept(Sleep("futex", 4.0, 1, 4.0, "", BURN, "holder"))


@pytest.mark.parametrize(
    "sleep",
    [
        Sleep("fsync", 0.4, 5, 0.1, "/data/a.pt"),  # of ten seconds
        Sleep("timer", 9.0, 90, 0.1),  # as its program asked
        Sleep("futex", 9.0, 50, 1.0),  # for a thread of its own, or a timer
        Sleep("futex", 9.0, 50, 1.0, "", RANK, "python"),
        Sleep("futex", 9.0, 50, 1.0, "", NEIGHBOUR, "python"),  # a queue of the program
    ],
)
def test_how_a_healthy_rank_sleeps_is_not_said(sleep: Sleep) -> None:
    assert slept(sleep) == ""


def test_other_threads_may_sleep_and_a_child_is_named() -> None:
    assert slept(Sleep("fsync", 9.0, 1, 9.0, "/a"), tid=RANK + 1) == ""
    assert slept(Sleep("read", 9.0, 1, 9.0, "/a"), pid=CHILD, tid=CHILD).startswith("its process 502 slept 9 s in read")


def test_memory_is_spent_not_slept() -> None:
    assert "it spent 2 s freeing memory, at the limit of its cgroup" in slept(Sleep(GROUP_RECLAIM, 2.0, 9, 0.5))
    assert "direct reclaim" in slept(Sleep(RECLAIM, 2.0, 9, 0.5))


def test_what_is_usual_stands_behind_its_signal() -> None:
    seen = KernelView(
        window_s=10.0,
        threads=(
            ThreadView(
                pid=RANK, tid=RANK, takers=(Taker(BURN, "burn", 3.0, 9),), sleeps=(Sleep("fsync", 2.0, 1, 2.0),)
            ),
            ThreadView(
                pid=RANK, tid=RANK + 1, takers=(Taker(BURN, "burn", 1.0, 9),), sleeps=(Sleep("read", 9.0, 1, 9.0),)
            ),
        ),
    )
    assert shares(seen, (RANK,), {RANK}) == {RUN_QUEUE: pytest.approx(0.3), "fsync": pytest.approx(0.2)}
    waited, slept_for = says(seen, RANK, (RANK,), {RANK}, {RUN_QUEUE: "usually 2%", "fsync": ""})
    assert waited.endswith("(usually 2%)")
    assert slept_for.endswith("in the last 10 s")


def test_takers_are_the_foreign_processes_that_had_the_cpu_of_the_main_thread() -> None:
    listed = (
        Taker(7, "c", 0.5, 9),
        Taker(8, "a", 3.0, 9),
        Taker(9, "b", 0.05, 9),  # too little
        Taker(NEIGHBOUR, "python", 2.0, 9),
        Taker(IDLE, "swapper/0", 2.0, 9),
        Taker(UNKNOWN, "", 2.0, 9),
        Taker(QUOTA, "", 2.0, 9),
    )
    other = ThreadView(pid=RANK, tid=RANK + 1, takers=(Taker(10, "d", 5.0, 9),))
    seen = KernelView(window_s=10.0, threads=(other, *view(*listed).threads))
    assert takers(seen, RANK, {RANK, NEIGHBOUR}) == (Taken(8, "a", 0.3), Taken(7, "c", 0.05))
    assert takers(seen, NEIGHBOUR, {RANK, NEIGHBOUR}) == ()
    assert takers(view(window_s=0.0), RANK, {RANK}) == ()


def test_what_the_main_thread_was_held_by_is_by_kind() -> None:
    slept = (Sleep("write", 1.0, 3, 0.5), Sleep("write", 1.0, 3, 0.5), Sleep("futex", 4.0, 3, 2.0, "", NEIGHBOUR))
    threads = (
        ThreadView(pid=RANK, tid=RANK, takers=(Taker(8, "a", 3.0, 9),), sleeps=slept),
        ThreadView(pid=RANK, tid=RANK + 1, sleeps=(Sleep("read", 9.0, 1, 9.0),)),
        ThreadView(pid=CHILD, tid=CHILD, sleeps=(Sleep("read", 9.0, 1, 9.0),)),
    )
    assert held(KernelView(window_s=10.0, threads=threads), RANK, {RANK, NEIGHBOUR}) == {"write": 0.2}
