"""The watch thread of a rank: what it answers, what it writes to the board, how it ends. A real thread and socket."""

import contextlib
import faulthandler
import gc
import os
import signal
import socket
import sys
import threading
import time
import types
import weakref
import zlib
from pathlib import Path

import pytest

from everstep.agent.memory.board import Board
from everstep.analyzer.reading.stacks import from_json
from everstep.probes.rank.stack import parse_spill
from everstep.wire import local
from everstep.worker.link import sampler, watch
from everstep.worker.process.board import BoardLine

C10D = "torch.distributed.distributed_c10d"


class Group:
    """As much of a process group as the thread looks at."""

    def __init__(self, seq: int | None) -> None:
        self.seq = seq

    def _get_sequence_number_for_group(self) -> int:
        if self.seq is None:
            raise RuntimeError("this backend does not count")
        return self.seq


@pytest.fixture
def rank():
    board = Board(1)
    board.reset(0, rank=0, generation=0)
    agent, link = socket.socketpair()
    agent.settimeout(60)
    others = set(Path("/proc/self/task").iterdir())
    watch.start(BoardLine(board.fd, 0), link)
    greeting, fds = local.recv(agent)
    assert (set(greeting), len(fds)) == ({"spill", "signal"}, 1)
    yield types.SimpleNamespace(board=board, agent=agent, link=link, spill=fds[0], spill_signal=greeting["signal"])
    faulthandler.unregister(greeting["signal"])
    os.close(fds[0])
    os.close(greeting["spill"])
    agent.close()
    # It polls the number of this socket: closed under it, the number could be the next test's.
    until(lambda: others.issuperset(Path("/proc/self/task").iterdir()))
    assert board.communication(0)[1] is None
    link.close()
    board.close()


def kernel_threads() -> list[tuple[int, str]]:
    """This process's threads: number and name."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            found.append((int(task.name), (task / "comm").read_text().strip()))
    return found


def kernel_names() -> list[str]:
    return [name for _, name in kernel_threads()]


def test_the_program_does_not_find_it_among_its_threads(rank):
    until(lambda: watch.THREAD in kernel_names())
    found = threading.enumerate()  # other tests of this process may have left threads of theirs
    known = {thread.native_id for thread in found}
    ours = {tid for tid, name in kernel_threads() if name == watch.THREAD}
    assert ours
    assert not ours & known
    assert threading.active_count() == len(found)


def test_a_look_at_the_stacks_keeps_nothing_of_the_program(rank):
    class Large:
        pass

    def compute() -> weakref.ref[Large]:
        kept = Large()
        ask_stacks(rank)
        return weakref.ref(kept)

    gc.disable()
    try:
        gone = compute()
        ask_stacks(rank)  # the look before has returned
        assert gone() is None
    finally:
        gc.enable()


def until(condition, limit_s: float = 60.0) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def groups(monkeypatch, *seqs: int | None) -> list[Group]:
    made = [Group(seq) for seq in seqs]
    world = types.SimpleNamespace(pg_map=dict.fromkeys(made))
    monkeypatch.setitem(sys.modules, C10D, types.SimpleNamespace(_world=world))
    return made


def test_the_time_at_which_numbers_move_is_on_the_board(rank, monkeypatch):
    first, _ = groups(monkeypatch, 5, None)
    until(lambda: rank.board.communication(0)[0] is not None)
    moved_at, looked_at = rank.board.communication(0)
    until(lambda: rank.board.communication(0)[1] > looked_at)
    assert rank.board.communication(0)[0] == moved_at, "looked at again, and it had not moved"
    first.seq = 6
    until(lambda: rank.board.communication(0)[0] > moved_at)


def test_no_group_that_counts_is_unknown(rank, monkeypatch):
    groups(monkeypatch, 5)
    until(lambda: rank.board.communication(0)[1] is not None)
    groups(monkeypatch, None)
    until(lambda: rank.board.communication(0)[1] is None)


def test_a_record_that_cannot_be_had_is_answered_with_the_reason(rank, monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "torch._C._distributed_c10d", raising=False)
    for number, frame in enumerate(({"path": str(tmp_path / "r.json")}, {"path": str(tmp_path / "no/r.json")}, {})):
        local.send(rank.agent, {"do": "dump", "id": number, **frame})
        answer, _ = local.recv(rank.agent)
        assert answer["dumped"] == number
        assert "Error" in answer["why"]
    monkeypatch.setitem(
        sys.modules, "torch._C._distributed_c10d", types.SimpleNamespace(_dump_fr_trace_json=lambda *_: b"{}")
    )
    local.send(rank.agent, {"do": "dump", "id": 7, "path": str(tmp_path / "r.json")})
    assert local.recv(rank.agent)[0] == {"dumped": 7}
    assert (tmp_path / "r.json").read_bytes() == b"{}"


def test_garbage_ends_the_thread_and_nothing_else(rank):
    rank.agent.sendall(b"\xff\xff\xff\xff garbage")
    until(lambda: rank.board.communication(0)[1] is None)


def ask_stacks(rank) -> dict[str, dict]:
    local.send(rank.agent, {"do": "stacks", "id": 9})
    answer, _ = local.recv(rank.agent)
    assert answer["sampled"] == 9
    return {thread["thread_name"]: thread for thread in answer["threads"]}


def test_the_sampler_tells_who_waits_who_runs_python_and_who_computes(rank):
    """The test's own thread waits in recv. Others: a Python loop, and a long call without the lock."""
    over = threading.Event()

    def loop() -> None:
        count = 0
        while not over.is_set():
            count += 1

    def compute() -> None:
        data = bytes(1 << 25)  # made once: to make it is work with the lock
        while not over.is_set():
            zlib.crc32(data)

    answers = []

    def is_asked_in_its_wait() -> bool:  # and not before it came there
        answers.append(ask_stacks(rank))
        frames = answers[-1]["MainThread"]["frames"]
        return [frame["name"] for frame in frames[:3]] == ["receive", "recv", "ask_stacks"]

    until(is_asked_in_its_wait)
    waits = answers[-1]["MainThread"]
    assert (waits["active"], waits["owns_gil"]) == (False, False)
    assert "everstep-watch" not in answers[-1]
    for target, owns_gil in ((loop, True), (compute, False)):
        over.clear()
        thread = threading.Thread(target=target, name=target.__name__)
        thread.start()
        try:
            until(lambda t=target: ask_stacks(rank)[t.__name__]["active"])
            seen = [ask_stacks(rank)[target.__name__] for _ in range(5)]
        finally:
            over.set()
            thread.join()
        assert sum(one["owns_gil"] for one in seen) >= 3 if owns_gil else sum(one["owns_gil"] for one in seen) <= 1, (
            seen
        )
        assert any(frame["name"] == target.__name__ for frame in seen[0]["frames"])


def test_frames_are_spilled_without_the_lock(rank):
    os.kill(os.getpid(), rank.spill_signal)
    until(lambda: b"(most recent call first)" in os.pread(rank.spill, 1 << 20, 0))
    threads = parse_spill(os.pread(rank.spill, 1 << 20, 0).decode(), 7, is_running=False)
    main = threads[-1]
    assert (main["thread_name"], main["pid"], main["active"], main["owns_gil"]) == ("MainThread", 7, False, True)
    assert any(f["name"] == "test_frames_are_spilled_without_the_lock" for f in main["frames"])
    assert from_json(threads)[0].threads[-1].frames
    assert int(signal.SIGRTMIN) < rank.spill_signal <= int(signal.SIGRTMAX)


def test_a_signal_that_the_program_uses_itself_is_left_to_it():
    heard = []
    before = signal.signal(sampler.SPILL_SIGNAL, lambda *_: heard.append(1))
    try:
        with pytest.raises(OSError, match="handles signal"):
            sampler.spill()
        signal.raise_signal(sampler.SPILL_SIGNAL)
        assert heard == [1]
    finally:
        signal.signal(sampler.SPILL_SIGNAL, before)


def test_a_spill_that_is_garbage_is_no_thread():
    assert parse_spill("", 1, is_running=True) == []
    assert parse_spill('  File "x.py", line 3 in f\nThread 0xzz (most recent', 1, is_running=True) == []
