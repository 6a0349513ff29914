"""A rank whose watch thread has not looked for a while is given up soon, unless it turns out to be only late."""

import asyncio
import os
import time
import types

import pytest

from everstep.agent.copies import stopping
from everstep.agent.memory.board import Board
from everstep.worker.process.board import BoardLine

LATE_S = 0.05
LIMIT_S = 60.0


class LateWatch:
    """Looks after a while if it is only late, and answers once it was given more time than a deaf one gets."""

    has_spoken = True

    def __init__(self, line: BoardLine, *, is_deaf: bool) -> None:
        self._line = line
        self._is_deaf = is_deaf

    async def save(self, _limit_s: float) -> str:
        await asyncio.sleep(LATE_S)
        if self._is_deaf:
            await asyncio.sleep(LIMIT_S)
        self._line.set_communication(1, time.time())
        await asyncio.sleep(2 * stopping.DEAF_LIMIT_S)
        return "answered"


@pytest.fixture
def rank():
    board = Board(1)
    board.reset(0, rank=0, generation=0)
    line = BoardLine(board.fd, 0)
    line.set_communication(1, time.time() - 10)
    line.step_done(7, time.time())
    yield board, line
    board.close()


def save(rank, *, is_deaf: bool) -> str:
    board, line = rank
    worker = types.SimpleNamespace(pid=os.getpid(), rank=0, local_rank=0, watch=LateWatch(line, is_deaf=is_deaf))
    return asyncio.run(stopping._save(worker, board, LIMIT_S))


def test_one_that_looks_meanwhile_gets_all_of_the_time(rank, monkeypatch):
    monkeypatch.setattr(stopping, "DEAF_LIMIT_S", 1.0)
    assert save(rank, is_deaf=False) == "answered"


def test_one_that_does_not_is_given_up(rank):
    began = time.monotonic()
    assert save(rank, is_deaf=True) == "its watch thread does not answer"
    assert time.monotonic() - began < LIMIT_S / 2
