"""A node's part in a round: a real watch thread, a real socket, and flight records as torch writes them."""

import asyncio
import json
import os
import socket
import sys
import threading
import time
import types
from pathlib import Path

import pytest

from everstep.agent.memory.board import Board
from everstep.agent.ranks.watch_link import WatchLink
from everstep.agent.watching import slow_rounds
from everstep.agent.watching.slow_rounds import SlowRounds
from everstep.analyzer.slowness.off_cpu import KernelView, Sleep, Taker, ThreadView
from everstep.linux import proc
from everstep.model.facts import Taken
from everstep.probes.rank.rivals import Rivals
from everstep.worker.link import watch
from everstep.worker.process.board import BoardLine, FloatCell

BEGAN = 1_700_000_000.0
MODULE = "torch._C._distributed_c10d"


def entry(number: int, op: str = "gloo:all_reduce", **changes) -> dict:
    return {
        "record_id": number,
        "collective_seq_id": number + 1,
        "process_group": ["0", "default_pg"],
        "profiling_name": op,
        "input_sizes": [[64]],
        "time_created_ns": 1_700_000_000_000_000_000 + number * 50_000_000,
        "is_p2p": False,
        "state": "scheduled",
        **changes,
    }


class Recorder:
    """Stands where torch's module does."""

    def __init__(self) -> None:
        self.entries: list[dict] = []
        self.data: bytes | None = None
        self.pause_s = 0.0
        self.goes_on = threading.Event()
        self.goes_on.set()

    def _dump_fr_trace_json(self, collectives: bool, only_active: bool) -> bytes:
        assert (collectives, only_active) == (True, False)
        assert self.goes_on.wait(60)
        end = time.thread_time() + self.pause_s
        while time.thread_time() < end:
            pass
        return json.dumps({"version": "2.10", "entries": self.entries}).encode() if self.data is None else self.data


@pytest.fixture(autouse=True)
def _no_spill(monkeypatch):
    """A rank keeps the file for its frames as long as it lives; here many ranks live in one process."""

    def spill():
        raise OSError("none here")

    monkeypatch.setattr(watch.sampler, "spill", spill)


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    monkeypatch.setattr(slow_rounds, "ANSWER_LIMIT_S", 60.0)


@pytest.fixture
def recorder(monkeypatch):
    made = Recorder()
    monkeypatch.setitem(sys.modules, MODULE, made)
    return made


class Rank:
    """A rank whose process is this one: its board line, its watch thread, and the agent's worker."""

    def __init__(self) -> None:
        self.board = Board(2)
        self.board.reset(0, rank=3, generation=0)
        self.line = BoardLine(self.board.fd, 0)
        agent, self.link = socket.socketpair()
        # A line of the thread's own: it sees no process groups here, and would say so at any moment.
        self.others = set(Path("/proc/self/task").iterdir())
        watch.start(BoardLine(self.board.fd, 1), self.link)
        self.watch = WatchLink(agent)
        self.worker = types.SimpleNamespace(rank=3, local_rank=0, pid=os.getpid(), is_alive=True, watch=self.watch)
        self.group = types.SimpleNamespace(generation=7, workers={3: self.worker})
        self.rounds = SlowRounds("n0", self.board, 10.0)
        self.number = 0

    async def round(self, world_size: int = 4):
        self.number += 1
        self.line.set_communication(self.number, 100.0 + 10 * self.number)  # as the thread does
        return await self.rounds.look(self.group, self.number, world_size, 100.0 + 10 * self.number)

    async def only(self, world_size: int = 4):
        (found,) = (await self.round(world_size)).ranks
        return found

    async def close(self) -> None:
        self.watch.close()
        deadline = time.monotonic() + 60
        while not self.others.issuperset(Path("/proc/self/task").iterdir()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        self.link.close()
        self.board.close()


def play(work) -> None:
    async def main() -> None:
        rank = Rank()
        try:
            await work(rank)
        finally:
            await rank.close()

    num_fds = len(list(Path("/proc/self/fd").iterdir()))
    asyncio.run(main())
    assert len(list(Path("/proc/self/fd").iterdir())) == num_fds, "descriptors left open"


def test_a_round_has_what_came_since_the_one_before(recorder):
    async def work(rank: Rank) -> None:
        assert (await rank.round()).ranks == (), "no step yet"
        rank.line.step_done(10, BEGAN + 0.5)  # the tenth collective was on its way
        rank.line.step_done(30, BEGAN + 1.5)
        recorder.entries = [entry(i) for i in range(30)]
        first = await rank.only()
        assert (first.num_steps, first.num_entered, len(first.arrivals)) == (20, 19, 19), (
            "what came after the first step"
        )
        rank.line.step_done(50, BEGAN + 2.5)
        for cell, value in ((FloatCell.DATA_S, 1.5), (FloatCell.GC_S, 0.5), (FloatCell.WORK, 900.0)):
            rank.line._floats[cell] = value
        recorder.entries = [entry(i) for i in range(20, 70)]
        second = await rank.only()
        assert (second.rank, second.num_steps, second.window_s, second.num_entered) == (3, 20, 10.0, 40)
        assert second.kinds == (("0", "all_reduce [[64]]"),)
        assert second.arrivals[0] == (0, 31, pytest.approx(1_700_000_001.5))
        assert len(second.arrivals) == 40
        assert second.titles == {"0": "default_pg"}
        assert (second.data_s, second.gc_s, second.work) == (None, None, None), "not measured before"
        rank.line.step_done(70, BEGAN + 3.5)
        rank.line._floats[FloatCell.DATA_S] = 2.0
        recorder.entries = [entry(i) for i in range(70, 2000)]
        third = await rank.only(world_size=10_000)
        assert (third.data_s, third.gc_s, third.work) == (0.5, 0.0, 0.0)
        assert third.delay_s is not None
        assert (len(third.arrivals), third.num_entered) == (slow_rounds.MIN_ARRIVALS, 1930)
        assert (await rank.only()).missing == "no step since the round before"

    play(work)


@pytest.mark.parametrize(
    ("entries", "data", "why"),
    [
        ([], None, "flight record is empty"),
        ([entry(0, "nccl:all_reduce")], None, "when the host queued them"),
        ([entry(0, "gloo:send 0->1", is_p2p=True)], None, "flight record is empty"),
        (None, b"", "truncated"),
        (None, b'{"entries": [{"record_id": "x"}]}', "Expected"),
        (None, b"\xff\x00 garbage", ""),
        (None, b'{"entries": 5}', "Expected"),
    ],
)
def test_what_cannot_be_had_is_said_with_the_reason(recorder, entries, data, why):
    async def work(rank: Rank) -> None:
        rank.line.step_done(1, 1.0)
        recorder.entries, recorder.data = entries or [], data
        found = await rank.only()
        assert found.missing
        assert why in found.missing
        assert not found.arrivals

    play(work)


def test_a_torch_without_a_flight_recorder(monkeypatch):
    monkeypatch.delitem(sys.modules, MODULE, raising=False)

    async def work(rank: Rank) -> None:
        rank.line.step_done(1, 1.0)
        assert "KeyError" in (await rank.only()).missing

    play(work)


def test_a_rank_that_does_not_answer_is_named(recorder, monkeypatch):
    monkeypatch.setattr(slow_rounds, "ANSWER_LIMIT_S", 0.05)

    async def work(rank: Rank) -> None:
        rank.line.step_done(1, 1.0)
        recorder.goes_on.clear()
        assert "did not answer within 0.05 s" in (await rank.only()).missing
        rank.worker.watch = None
        assert "no watch thread" in (await rank.only()).missing
        recorder.goes_on.set()

    play(work)


def test_a_thread_that_does_not_look_is_not_asked(recorder):
    """It would answer everything at once when it comes back, with the interpreter lock held all the time."""

    async def work(rank: Rank) -> None:
        rank.line.step_done(1, 1.0)
        rank.watch.entered = None
        for looked_at in (90.0, float("nan")):
            rank.line.set_communication(0, looked_at)
            (found,) = (await rank.rounds.look(rank.group, 1, 4, 100.0)).ranks
            assert "sees no process groups" in found.missing

    play(work)


def test_an_expensive_record_is_asked_for_in_fewer_rounds(recorder):
    async def work(rank: Rank) -> None:
        recorder.entries = [entry(i) for i in range(5)]
        recorder.pause_s = 0.05  # of ten seconds: more than two thousandths
        asked = []
        for number in range(1, 10):
            rank.line.step_done(number, 1.0)
            asked.append(len((await rank.round()).ranks))
        assert asked[0] == 1
        assert sum(asked) <= 1 + 9 // 2

    play(work)


def test_steps_that_are_counted_anew_begin_another_count(recorder):
    async def work(rank: Rank) -> None:
        recorder.entries = [entry(i) for i in range(5)]
        rank.line.step_done(500, 1.0)
        await rank.round()
        rank.line.set_counts_own_steps()
        rank.line.step_done(3, BEGAN + 0.1)
        rank.line.step_done(4, BEGAN + 0.2)
        found = await rank.only()
        assert (found.num_steps, found.num_entered) == (1, 2)


def test_where_the_first_step_is_overwritten_the_round_begins_with_the_record(recorder):
    """Two collectives per step of 0.1 s; the record has the newest hundred."""

    async def work(rank: Rank) -> None:
        rank.line.step_done(0, BEGAN)
        rank.line.step_done(100, BEGAN + 10)
        recorder.entries = [entry(i) for i in range(100, 200)]
        found = await rank.only()
        assert (found.num_steps, found.num_entered, len(found.arrivals)) == (50, 99, 99)


def test_a_single_step_is_no_round(recorder):
    async def work(rank: Rank) -> None:
        rank.line.step_done(5, BEGAN)
        recorder.entries = [entry(i) for i in range(5)]
        assert (await rank.only()).missing == "the first round"

    play(work)


def test_groups_come_from_torchs_own_book_keeping(recorder, monkeypatch):
    class Group(types.SimpleNamespace):
        __hash__ = object.__hash__

    whole, tp = Group(group_desc="default_pg"), Group(group_desc="mesh_tp")
    names, ranks = {whole: "0", tp: "1"}, {whole: {r: r for r in range(4)}, tp: {2: 0, 3: 1}}
    world = types.SimpleNamespace(pg_names=names, pg_group_ranks=ranks, pg_map={})
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", types.SimpleNamespace(_world=world))

    async def work(rank: Rank) -> None:
        recorder.entries = [entry(i) for i in range(5)]
        rank.line.step_done(1, 1.0)
        await rank.round()
        rank.line.step_done(2, 120.0)
        recorder.entries = [entry(i) for i in range(9)]
        found = await rank.only()
        assert (found.groups, found.titles) == ({"1": (2, 3)}, {"0": "default_pg", "1": "mesh_tp"})

    play(work)


def test_waiting_for_a_processor_is_measured():
    ran = proc.sched_ns(os.getpid())
    assert ran is not None
    assert min(ran) >= 0
    assert proc.sched_ns(2**22 + 1) is None


MINER = Rivals(text="a miner", bound=(Taken(4711, "miner", 0.4),))


@pytest.mark.parametrize(("waited_s", "takers"), [(0.2, ()), (None, None)])
def test_a_rank_that_hardly_waits_loses_its_cpu_to_nobody(recorder, monkeypatch, waited_s, takers):
    """And where it is not known how long it waits, nothing is known of that either."""
    waited = iter(range(1000))
    asked = lambda pid: None if waited_s is None else (0, int(next(waited) * waited_s * 1e9))  # noqa: E731
    monkeypatch.setattr(slow_rounds.proc, "sched_ns", asked)
    monkeypatch.setattr(slow_rounds, "find_rivals", lambda *_: MINER)

    async def work(rank: Rank) -> None:
        for step in (10, 30):
            rank.line.step_done(step, BEGAN + step / 20)
            recorder.entries = [entry(i) for i in range(step)]
            found = await rank.only()
        assert found.takers == takers

    play(work)


def test_who_has_the_cpu_is_looked_for_by_a_thread_that_ends(recorder, monkeypatch):
    """The loop's own threads would stay, and an agent that ends would wait for one that a process's files hold up."""
    waited = iter(range(0, 1000, 5))
    monkeypatch.setattr(slow_rounds.proc, "sched_ns", lambda pid: (0, next(waited) * 10**9))
    by = []
    monkeypatch.setattr(slow_rounds, "find_rivals", lambda *_: by.append(threading.get_native_id()) or MINER)

    async def work(rank: Rank) -> None:
        for step in (10, 30, 50):
            rank.line.step_done(step, BEGAN + step / 20)
            recorder.entries = [entry(i) for i in range(step)]
            found = await rank.only()
        assert found.delay_s >= 5
        assert found.rivals == "a miner"
        assert found.takers == (Taken(4711, "miner", pytest.approx(0.4 * found.delay_s / found.window_s)),)
        for thread in by:
            await gone(thread)

    play(work)


@pytest.mark.parametrize("is_seen", [True, False])
def test_a_round_says_which_bound_processes_had_the_cpu_and_what_it_slept_for(recorder, monkeypatch, is_seen):
    """Where nobody looked, that is unknown, and not nobody."""
    burn, floating, pid = 4711, 4712, os.getpid()
    monkeypatch.setattr(slow_rounds, "is_bound", lambda other: other == burn)
    monkeypatch.setattr(slow_rounds.proc, "sched_ns", lambda pid: None)
    taken = tuple(Taker(taker, "burn", wait_s, 9) for taker, wait_s in ((burn, 1.5), (floating, 4.0), (pid, 1.0)))
    slept = (Sleep("write", 2.0, 9, 0.5, "/data/log"),)
    seen = KernelView(window_s=10.0, threads=(ThreadView(pid=pid, tid=pid, takers=taken, sleeps=slept),))

    class Views:
        async def look(self, pids):
            return seen if is_seen else None

    async def work(rank: Rank) -> None:
        rank.rounds._views = Views()
        for step in (10, 30):
            rank.line.step_done(step, BEGAN + step / 20)
            recorder.entries = [entry(i) for i in range(step)]
            found = await rank.only()
        if is_seen:
            assert found.takers == (Taken(burn, "burn", 0.15),)
            assert found.held == {"write": 0.2}
        else:
            assert (found.takers, found.held) == (None, None)

    play(work)


async def gone(thread: int) -> None:
    deadline = time.monotonic() + 10
    while Path(f"/proc/self/task/{thread}").exists():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_a_rank_that_stands_still_is_not_asked(recorder):
    """Its answer would use the processor, and a job that hangs would look alive."""

    async def work(rank: Rank) -> None:
        recorder.entries = [entry(i) for i in range(30)]
        rank.line.step_done(10, 109.9)
        await rank.round()
        recorder.entries = [entry(i) for i in range(60)]
        rank.line.step_done(110, 119.0)  # a hundred steps in ten seconds, and none in the last one
        assert (await rank.only()).missing == "it stands still at the moment"
        rank.line.step_done(120, 130.0)
        assert not (await rank.only()).missing

    play(work)
