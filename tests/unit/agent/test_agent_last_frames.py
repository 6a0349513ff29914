"""What a rank said before its end is taken, also when its end is noticed first."""

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from everstep.agent.processes.channel import Channel
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.workers import Group, Paths, Worker
from everstep.probes.oom import KernelLog
from everstep.probes.process import usage
from everstep.wire import local

NOWHERE = Path("/nonexistent")
LIMIT_S = 60


def speak_when_told(told: int, link: socket.socket) -> int:
    """A process that waits for a byte, says something, and ends."""
    pid = os.fork()
    if pid == 0:
        os.read(told, 1)
        local.send(link, {"digest": 7})
        os._exit(0)
    return pid


@pytest.mark.parametrize("is_understood", [True, False])
def test_a_rank_that_speaks_and_ends_while_another_ones_end_is_handled(is_understood):
    """Also where what it says breaks who takes it: its end is told all the same."""
    taken, exited = [], []
    first_told, second_told = os.pipe(), os.pipe()
    links = [socket.socketpair(), socket.socketpair()]
    pids = [speak_when_told(told[0], link[1]) for told, link in zip((first_told, second_told), links, strict=True)]
    log = KernelLog()

    def on_exit(worker: Worker) -> None:
        exited.append(worker.rank)
        if worker.rank == 0:
            os.write(second_told[1], b"x")
            os.waitid(os.P_PID, pids[1], os.WEXITED | os.WNOWAIT)

    def take(worker: Worker, frame: local.Frame, _fds: list[int]) -> None:
        taken.append((worker.rank, frame))
        if not is_understood:
            raise AttributeError("a frame that nobody expects")

    async def story() -> None:
        reaper = Reaper()
        group = Group(
            0,
            reaper=reaper,
            frames=SimpleNamespace(take=take),
            on_exit=on_exit,
            twins=SimpleNamespace(is_forking=False),
        )
        for rank, pid in enumerate(pids):
            paths = Paths(stdout=NOWHERE, stderr=NOWHERE, error_file=NOWHERE)
            worker = Worker(rank=rank, local_rank=rank, pid=pid, paths=paths, log=log)
            group.add(worker, lambda take, rank=rank: Channel(links[rank][0], take, lambda _why: None))
        os.write(first_told[1], b"x")
        async with asyncio.timeout(LIMIT_S):
            while len(exited) < len(pids):
                reaper.reap()
                await asyncio.sleep(0.01)

    try:
        asyncio.run(story())
        assert sorted(exited) == [0, 1]
        assert (1, {"digest": 7}) in taken
    finally:
        log.close()
        for fd in (*first_told, *second_told):
            os.close(fd)
        for _, link in links:
            link.close()
        assert all(usage(pid) is None for pid in pids)
