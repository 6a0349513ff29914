"""Snapshot memory: granted, refused, kept over generations, over a killed rank, and over a killed agent."""

import asyncio
import os
import socket

import pytest
from fake_controller import Bench, bench, kill

from everstep.agent.memory import arenas
from everstep.checkpoint import arena
from everstep.model import events
from everstep.model.facts import Held
from everstep.wire import local

BOTH_HELD = tuple(Held(rank=rank, steps=(1, 2), generations=(0, 0), world_size=2) for rank in (0, 1))
FRESH = {"EVERSTEP_TWINS": "off"}

WRITER = """
import os, time
from everstep.checkpoint import arena
from everstep.worker.link import runtime
r = runtime.current()
steps = [arena.held_steps(fd) for fd in r.arenas]
print("resume", r.resume_step, "held", steps, flush=True)
size = int(os.environ.get("SIZE", arena.arena_bytes(1000)))
try:
    fd = r.request_arena(size)
except runtime.ArenaRefused as refused:
    print("refused", refused.free_bytes is not None, refused.why, flush=True)
else:
    mine = arena.Arena(fd)
    first = (r.resume_step + 1) if r.resume_step is not None else 0
    for step in range(first, first + 3):
        mine.buffer(mine.begin(step, r.generation))[:4] = b"data"
        mine.publish(8, 4, 0)
        r.board.set_published_step(step)
    print("published", flush=True)
time.sleep(600)
"""


def write(tmp_path):
    (tmp_path / "train.py").write_text(WRITER)
    return "train.py"


async def wait_log(made: Bench, generation: int, text: str, rank: int = 0) -> str:
    async with asyncio.timeout(60):
        while text not in (log := made.log(generation, rank)):
            await asyncio.sleep(0.01)
    return log


def test_snapshots_outlive_ranks_and_the_future_is_forgotten(tmp_path):
    program = write(tmp_path)

    async def story() -> None:
        async with bench(tmp_path, program, env=FRESH) as made:
            await made.start_workers(0)
            started = await made.controller.wait(events.WorkersStarted)
            assert "held []" in await wait_log(made, 0, "published")
            await wait_log(made, 0, "published", rank=1)
            kill(started.started[0].pid)
            stopped = await made.stop_workers(0)
            assert stopped.held == (
                Held(rank=0, steps=(1, 2), generations=(0, 0), world_size=2),
                Held(rank=1, steps=(1, 2), generations=(0, 0), world_size=2),
            )
            assert {a.published_step for a in stopped.accounts} == {2}
            await made.start_workers(1, resume_step=1)
            assert "resume 1 held [(1,)]" in await wait_log(made, 1, "published")
            stopped = await made.stop_workers(1)
            assert stopped.held[0].steps == (3, 4)
            await made.start_workers(2)  # nothing to resume: what is there belongs to a future that is done again
            assert "resume None held [()]" in await wait_log(made, 2, "published")

    asyncio.run(story())


def test_too_much_memory_is_refused_with_the_figures(tmp_path):
    program = write(tmp_path)

    async def story() -> None:
        env = {**FRESH, "SIZE": str(1 << 45)}
        async with bench(tmp_path, program, nproc=1, env=env) as made:
            await made.start_workers(0)
            refused = await made.controller.wait(events.SnapshotsRefused)
            assert (refused.rank, refused.needed_bytes) == (0, 1 << 45)
            assert 0 < refused.free_bytes < 1 << 45
            assert "refused True needs" in await wait_log(made, 0, "are free")

    asyncio.run(story())


class KeepingLauncher:
    """The launcher's side of the keeper, as docs/architecture.md has it."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, int]] = []
        self.sock: socket.socket | None = None

    def connect(self) -> int:
        self.close()
        self.sock, theirs = socket.socketpair()
        for rank, fd in self.kept:
            local.send(self.sock, {"keep": {"rank": rank}}, (fd,))
        local.send(self.sock, {"kept": "end"})
        return theirs.detach()

    def take(self) -> int:
        self.sock.settimeout(60)
        frame, fds = local.recv(self.sock)
        while "keep" not in frame:  # which ranks are on that machine, and that the agent is there
            frame, fds = local.recv(self.sock)
        self.kept.append((frame["keep"]["rank"], fds[0]))
        return frame["keep"]["rank"]

    def close(self) -> None:
        if self.sock is not None:
            self.sock.close()
            self.sock = None


def test_snapshots_outlive_the_agent(tmp_path):
    program = write(tmp_path)
    launcher = KeepingLauncher()

    async def story() -> None:
        async with bench(tmp_path, program, env=FRESH, start=False) as made:
            made.keeper_fd = launcher.connect()
            agent = made.start_agent()
            os.close(made.keeper_fd)
            await made.controller.wait(events.NodeJoined)
            await made.start_workers(0)
            await wait_log(made, 0, "published")
            await wait_log(made, 0, "published", rank=1)
            assert {launcher.take(), launcher.take()} == {0, 1}
            kill(agent.pid)
            agent.wait()
            skip = len(made.controller.events)
            made.keeper_fd = launcher.connect()
            made.start_agent("n1")
            os.close(made.keeper_fd)
            joined = await made.controller.wait(events.NodeJoined, skip=skip)
            assert joined.held == (
                Held(rank=0, steps=(1, 2), generations=(0, 0), world_size=2),
                Held(rank=1, steps=(1, 2), generations=(0, 0), world_size=2),
            )
            await made.start_workers(1, resume_step=2)
            assert "resume 2 held [(1, 2)]" in await wait_log(made, 1, "published")
            # The memory of a lost node comes to a running agent, which then says what it holds.
            skip = len(made.controller.events)
            fd = arena.create(arena.arena_bytes(100), rank=5, world_size=8)
            other = arena.Arena(fd)
            other.begin(7, 0)
            other.publish(8, 4, 0)
            other.close()
            local.send(launcher.sock, {"keep": {"rank": 5}}, (fd,))
            local.send(launcher.sock, {"kept": "end"})
            os.close(fd)
            again = await made.controller.wait(events.NodeJoined, lambda e: len(e.held) == 3, skip=skip)
            assert again.held[2] == Held(rank=5, steps=(7,), generations=(0,), world_size=8)

    try:
        asyncio.run(story())
    finally:
        launcher.close()
        for _, fd in launcher.kept:
            os.close(fd)


def make(rank: int = 0, *steps: int) -> int:
    fd = arena.create(arena.arena_bytes(100), rank=rank, world_size=2)
    mine = arena.Arena(fd)
    for step in steps:
        mine.begin(step, 0)
        mine.publish(8, 4, 0)
    mine.close()
    return fd


def test_an_old_arena_goes_when_the_new_one_is_complete():
    kept: list[int] = []
    held = arenas.Memory(lambda rank, fd: kept.append(rank))
    held.add(0, make(0, 4, 5))
    new = make(0)
    held.add(0, new)
    assert len(held.for_rank(0)) == 2, "the new one is empty: the old one is all there is"
    assert held.held() == (Held(rank=0, steps=(4, 5), generations=(0, 0), world_size=2),)
    mine = arena.Arena(new)
    for step in (6, 7):
        mine.begin(step, 1)
        mine.publish(8, 4, 0)
        expected = (4, 5, 6) if step == 6 else (6, 7)
        assert [each.steps for each in held.held()] == [expected], (
            "a peer killed now may have nothing newer than step 5"
        )
    mine.close()
    assert held.for_rank(0) == [new]
    assert kept == [0, 0]
    held.close()


@pytest.mark.parametrize("num_bytes", [0, -1, 5, 1 << 62, 1 << 70])
def test_impossible_sizes_are_refused(num_bytes):
    with pytest.raises(arenas.ArenaRefusal):
        arenas.make(num_bytes, 0, 1)


def test_garbage_that_was_kept_holds_nothing():
    held = arenas.Memory(lambda rank, fd: None)
    fd = os.memfd_create("garbage", os.MFD_CLOEXEC)
    os.write(fd, os.urandom(10_000))
    held.adopt(0, fd)
    assert held.held() == ()
    assert held.for_rank(0) == [fd]
    held.close()
