"""The watch thread of a rank: what it answers, what it writes to the board, how it ends. A real thread and socket."""

import socket
import sys
import time
import types

import pytest

from everstep.agent.board import Board
from everstep.wire import local
from everstep.worker import watch
from everstep.worker.board import BoardLine

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
    agent.settimeout(5)
    watch.start(BoardLine(board.fd, 0), link)
    yield types.SimpleNamespace(board=board, agent=agent, link=link)
    agent.close()
    until(lambda: board.communication(0)[1] is None)
    link.close()
    board.close()


def until(condition, limit_s: float = 5.0) -> None:
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
