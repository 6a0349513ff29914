"""Snapshot memory outlives its agent, is kept once, and reaches whoever comes next."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from everstep.checkpoint import arena
from everstep.engines.memory_keeper import MemoryKeeper
from everstep.model.facts import Held
from everstep.wire.local import recv, send


def memory(text: bytes) -> int:
    fd = os.memfd_create("arena")
    os.write(fd, text)
    return fd


def keep(line: socket.socket, rank: int, fd: int) -> None:
    send(line, {"keep": {"rank": rank}}, (fd,))
    os.close(fd)


def read_all(line: socket.socket) -> list[tuple[int, bytes]]:
    """Rank and content of everything up to the end mark."""
    found = []
    while True:
        frame, fds = recv(line)
        if "kept" in frame:
            return found
        found.append((frame["keep"]["rank"], os.pread(fds[0], 100, 0)))
        os.close(fds[0])


@pytest.fixture
def run():
    """Runs a story with a keeper, and checks that no descriptor is left."""

    def run_story(story):
        async def main():
            keeper = MemoryKeeper()
            try:
                await story(keeper)
            finally:
                keeper.close()

        before = len(list(Path("/proc/self/fd").iterdir()))
        asyncio.run(main())
        assert len(list(Path("/proc/self/fd").iterdir())) == before

    return run_story


def test_a_successor_finds_the_memory_in_its_line(run):
    async def story(keeper):
        with keeper.open_line("n0") as line:
            assert read_all(line) == []
            keep(line, 0, memory(b"old"))
            keep(line, 0, memory(b"new"))
            keep(line, 1, memory(b"one"))
        keeper.close_line("n0")  # killed: what it sent last is taken all the same
        with keeper.open_line("n1", ("n0",)) as line:
            assert read_all(line) == [(0, b"old"), (0, b"new"), (1, b"one")]

    run(story)


def test_only_the_last_two_of_a_rank_are_kept(run):
    async def story(keeper):
        with keeper.open_line("n0") as line:
            for text in (b"1", b"2", b"3"):
                keep(line, 0, memory(text))
        keeper.close_line("n0")
        with keeper.open_line("n1", ("n0",)) as line:
            assert read_all(line) == [(0, b"2"), (0, b"3")]

    run(story)


def test_memory_goes_on_to_the_next_one_and_the_next_one(run):
    async def story(keeper):
        with keeper.open_line("n0") as line:
            keep(line, 0, memory(b"x"))
        keeper.close_line("n0")
        for number in (1, 2, 3):
            with keeper.open_line(f"n{number}", (f"n{number - 1}",)) as line:
                assert read_all(line) == [(0, b"x")]
            keeper.close_line(f"n{number}")

    run(story)


def test_the_same_memory_sent_twice_is_kept_once(run):
    async def story(keeper):
        fd = memory(b"x")
        with keeper.open_line("n0") as line:
            keep(line, 0, os.dup(fd))
            keep(line, 0, fd)
        keeper.close_line("n0")
        with keeper.open_line("n1", ("n0",)) as line:
            assert read_all(line) == [(0, b"x")]

    run(story)


def test_nobody_is_given_what_it_has(run):
    async def story(keeper):
        with keeper.open_line("n0") as line, keeper.open_line("n1") as other:
            keep(line, 0, memory(b"x"))
            await asyncio.sleep(0)
            keeper.close_line("n0")
            keeper.offer("n0", "n1")
            keeper.offer("n0", "n1")
            assert [read_all(other) for _ in range(3)] == [[], [(0, b"x")], []]

    run(story)


def test_what_a_lost_node_held_is_read_from_the_headers(run):
    async def story(keeper):
        fd = arena.create(arena.arena_bytes(100), rank=3, world_size=4)
        arena.format_arena(fd, rank=3, world_size=4)
        written = arena.Arena(fd)
        written.begin(7, 0)
        written.publish(10, 1, 0)
        with keeper.open_line("n0") as line:
            keep(line, 3, fd)
        keeper.close_line("n0")
        assert keeper.held_of("n0") == (Held(rank=3, steps=(7,), generations=(0,), world_size=4),)
        assert keeper.held_of("n1") == ()

    run(story)


def test_a_running_agent_is_offered_a_lost_nodes_memory(run):
    async def story(keeper):
        with keeper.open_line("n0") as line, keeper.open_line("n1") as standby:
            keep(line, 0, memory(b"x"))
            await asyncio.sleep(0)
            keeper.close_line("n0")
            assert read_all(standby) == []
            keeper.offer("n0", "n1")
            assert read_all(standby) == [(0, b"x")]

    run(story)


@pytest.mark.parametrize("junk", [b"\xff\xff\xff\xff", b"\x02\0\0\0{x", b"\x02\0\0\0[]", b"\x05\0"])
def test_garbage_costs_only_the_line(run, junk):
    async def story(keeper):
        with keeper.open_line("n0") as line:
            keep(line, 0, memory(b"x"))
            line.sendall(junk)
        keeper.close_line("n0")
        with keeper.open_line("n1", ("n0",)) as line:
            assert read_all(line) == [(0, b"x")]

    run(story)


def test_a_frame_without_memory_is_ignored_and_one_too_many_is_closed(run):
    async def story(keeper):
        with keeper.open_line("n0") as line:
            send(line, {"keep": {"rank": 0}})
            fd = memory(b"x")
            send(line, {"keep": {"rank": "zero"}}, (fd, fd))
            os.close(fd)
        keeper.close_line("n0")
        assert keeper.held_of("n0") == ()

    run(story)
