"""The launcher's keeper: what a lost node's memory holds, and that a machine that is gone leaves nothing."""

import asyncio
import contextlib
import os
import socket

import pytest
from filled_arena import filled

from everstep.checkpoint import arena
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.model.facts import Held
from everstep.wire import local


@pytest.fixture
def fds():
    made: list[int] = []
    yield made
    for fd in made:
        with contextlib.suppress(OSError):
            os.close(fd)


def agent_sends(line: socket.socket, fds: list[int], rank: int, *steps: int, generation: int = 0) -> int:
    fds.append(filled(*steps, rank=rank, world_size=4, generation=generation))
    local.send(line, {"keep": {"rank": rank}}, (fds[-1],))
    return fds[-1]


def test_a_lost_agent_leaves_its_memory_and_a_lost_machine_does_not(fds):
    async def play():
        keeper = MemoryKeeper()
        n0, n1, n2 = (keeper.open_line(node) for node in ("n0", "n1", "n2"))
        with n0, n1, n2:
            agent_sends(n0, fds, 0, 4, 5, generation=1)
            mine = agent_sends(n1, fds, 1, 5, 6, generation=1)
            local.send(n0, {"runs": [0]})
            local.send(n1, {"runs": [1]})
            keeper.close_line("n1")
            assert keeper.held_of("n1") == (Held(rank=1, steps=(5, 6), generations=(1, 1), world_size=4),)
            keeper.offer("n1", "n0")  # ... which may take over its slot
            keeper.offer("n1", "n2")
            local.send(n2, {"runs": [1]})  # but this one does
            keeper.close_line("n0")
            keeper.forget("n0")
            assert keeper.held_of("n0") == (), "its own rank's is gone"
            assert arena.held_steps(mine) == (5, 6), "n0 had a duplicate, but the rank runs on n2"
            keeper.close_line("n2")
            keeper.forget("n2")
            assert arena.held_steps(mine) == (), "whoever has a duplicate has nothing of a machine that is gone"
            assert [keeper.held_of(node) for node in ("n0", "n1", "n2")] == [(), (), ()]
        keeper.close()

    asyncio.run(play())


def test_a_step_that_two_generations_wrote_is_the_newer_ones(fds):
    async def play():
        keeper = MemoryKeeper()
        with keeper.open_line("n0") as n0:
            agent_sends(n0, fds, 0, 7, generation=1)
            agent_sends(n0, fds, 0, 7, 8, generation=2)
            keeper.close_line("n0")
            assert keeper.held_of("n0") == (Held(rank=0, steps=(7, 8), generations=(2, 2), world_size=4),)
        keeper.close()

    asyncio.run(play())
