"""Transfers that are cut, damaged, stopped and killed: never half a snapshot, never a wait without end."""

import asyncio
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lateness import Lateness
from test_transport import SIZE, _nothing_stays, get, source, until_async
from transport_node import PATIENCE_S, SHORT_S, BadLine, Node, content, new_arena, read, send, write

from everstep.checkpoint import arena
from everstep.checkpoint.transport import TransferError, client
from everstep.checkpoint.transport.frames import PIECE_BYTES
from everstep.checkpoint.transport.incoming import Incoming

__all__ = ["_nothing_stays", "source"]  # fixtures of this file as well

SMALL = PIECE_BYTES + 5000


@pytest.fixture
def over(monkeypatch: pytest.MonkeyPatch) -> object:
    """Calls go over this line: a server's proof covers its endpoint, so the line cannot have one of its own."""
    straight = client._connect

    def lay(line: BadLine | None) -> None:
        endpoint = None if line is None else f"127.0.0.1:{line.port}"
        monkeypatch.setattr(client, "_connect", lambda to, *rest: straight(endpoint or to, *rest))

    return lay


@pytest.mark.parametrize("seed", range(10))
def test_a_push_that_is_cut_anywhere_goes_on_where_it_was(source, over, seed) -> None:
    async def run() -> None:
        fd, snapshot = source
        at = random.Random(seed).choice([random.Random(seed).randrange(400), random.Random(seed).randrange(SIZE)])
        async with Node() as node:
            async with BadLine(node.endpoint, up=at) as line:
                over(line)
                with pytest.raises(TransferError):
                    await send(node.endpoint, fd, snapshot)
            assert node.shelf.held() == ()
            over(None)
            pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent <= SIZE - max(0, at - 2000) // PIECE_BYTES * PIECE_BYTES
            assert node.copy_of(0, 7) == content(SIZE, 7)

    asyncio.run(run())


def test_what_had_arrived_when_the_line_was_cut_is_not_sent_again(source, over, monkeypatch) -> None:
    """The sender calls again at once, while a busy receiver still has to read it."""
    put = Incoming._put

    def put_late(*args: object) -> None:
        time.sleep(0.05)
        put(*args)

    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            async with BadLine(node.endpoint, up=2 * PIECE_BYTES + 5000) as line:
                over(line)
                with pytest.raises(TransferError):
                    await send(node.endpoint, fd, snapshot)
            over(None)
            pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent <= SIZE - 2 * PIECE_BYTES
            assert node.copy_of(0, 7) == content(SIZE, 7)

    monkeypatch.setattr(Incoming, "_put", put_late)
    asyncio.run(run())


def test_a_push_whose_answers_are_cut_anywhere_is_whole_or_not_there(source, over) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            async with BadLine(node.endpoint) as line:
                over(line)
                await send(node.endpoint, fd, snapshot)
                whole = line.passed["down"]
            for at in [whole - 1, whole - 12, *random.Random(1).sample(range(whole - 1), 8)]:
                node.shelf.drop(0)
                async with BadLine(node.endpoint, down=at) as line:
                    over(line)
                    with pytest.raises(TransferError):
                        await send(node.endpoint, fd, snapshot)
                over(None)
                await send(node.endpoint, fd, snapshot)
                assert node.copy_of(0, 7) == content(SIZE, 7)

    asyncio.run(run())


def test_a_fetch_that_is_cut_goes_on_where_it_was(source, over) -> None:
    async def run() -> None:
        async with Node() as node:
            node.own[0] = os.dup(source[0])
            async with BadLine(node.endpoint, down=2 * PIECE_BYTES) as line:
                over(line)
                line._left["down"] = 2 * PIECE_BYTES
                fetching = asyncio.create_task(get(node.endpoint))
                await until_async(lambda: line._left["down"] == 0, "the cut")
                line._left["down"] = 1 << 60
                assert await fetching == content(SIZE, 7)
                assert line.passed["down"] < SIZE + PIECE_BYTES + 10_000  # at most the piece that was cut came twice

    asyncio.run(run())


def test_a_fetch_that_is_cut_again_and_again_fails(source, over) -> None:
    async def run() -> None:
        async with Node() as node:
            node.own[0] = os.dup(source[0])
            async with BadLine(node.endpoint, down=300) as line:
                over(line)
                with pytest.raises(TransferError, match="closed the connection"):
                    await get(node.endpoint)

    asyncio.run(run())


def test_a_damaged_piece_is_asked_for_again(source, over) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            async with BadLine(node.endpoint, flip_up=(PIECE_BYTES // 2, 2 * PIECE_BYTES)) as line:
                over(line)
                pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent == SIZE + 2 * PIECE_BYTES
            assert node.copy_of(0, 7) == content(SIZE, 7)

    asyncio.run(run())


def test_what_is_damaged_again_and_again_is_not_published(source, over) -> None:
    async def run() -> None:
        fd, snapshot = source
        flips = tuple(range(PIECE_BYTES // 2, 4 * SIZE, PIECE_BYTES // 2))
        async with Node() as node:
            async with BadLine(node.endpoint, flip_up=flips) as line:
                over(line)
                with pytest.raises(TransferError):
                    await send(node.endpoint, fd, snapshot)
            assert node.shelf.held() == ()

    asyncio.run(run())


# Processes that are stopped and killed.


@pytest.fixture
def start() -> Iterator[object]:
    started: list[subprocess.Popen[str]] = []

    def begin(*args: object) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).parents[1] / "transport_node.py"), *map(str, args)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


def test_the_sender_is_killed_and_the_next_one_goes_on(source, start) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            pusher = start("push", node.endpoint, SIZE, SIZE / 2, 7)
            assert await asyncio.to_thread(pusher.stdout.readline) == "begun\n"
            await until_async(lambda: any(known(node)), "a piece")
            pusher.kill()
            pusher.wait()
            await until_async(lambda: not node.shelf._transfers, "the end of the transfer")
            assert node.shelf.held() == ()
            pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent <= SIZE - PIECE_BYTES
            assert node.copy_of(0, 7) == content(SIZE, 7)

    def known(node: Node) -> list[dict[int, bytes]]:
        return [k for memories in node.shelf._memories.values() for m in memories for k in m.known.values()]

    asyncio.run(run())


@pytest.mark.parametrize(("how", "patience_s"), [(signal.SIGKILL, PATIENCE_S), (signal.SIGSTOP, 2.0)])
def test_the_receiver_is_killed_or_stopped_in_the_middle(source, start, how, patience_s) -> None:
    async def run() -> None:
        fd, snapshot = source
        server = start("serve", SIZE)
        endpoint = (await asyncio.to_thread(server.stdout.readline)).strip()
        with Lateness() as late:
            pushing = asyncio.create_task(send(endpoint, fd, snapshot, rate=SIZE / 4, patience_s=patience_s))
            assert await asyncio.to_thread(server.stdout.readline) == "begun\n"
            server.send_signal(how)
            began = time.monotonic()
            assert not pushing.done()
            with pytest.raises(TransferError):
                await pushing
            assert time.monotonic() - began < 10 + late.seconds
        with pytest.raises(TransferError):
            await get(endpoint, patience_s=SHORT_S)

    asyncio.run(run())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_the_giver_is_killed_or_stopped_in_the_middle(start, how) -> None:
    async def run() -> None:
        server = start("serve", SIZE)
        endpoint = (await asyncio.to_thread(server.stdout.readline)).strip()
        assert await get(endpoint) == content(SIZE, 7)

        def make(capacity_bytes: int) -> int:
            server.send_signal(how)
            return new_arena(capacity_bytes)

        with pytest.raises(TransferError, match=r"no progress|in time|closed|lost|refused"):
            await get(endpoint, make_arena=make, patience_s=SHORT_S)

    asyncio.run(run())


@pytest.mark.soak
def test_senders_killed_at_random_instants_never_leave_half_a_snapshot(start) -> None:
    """Each sends one of two snapshots of a rank, at speeds at which it is killed anywhere."""
    draw = random.Random(int(os.environ.get("EVERSTEP_SEED", "1")))

    async def run() -> None:
        async with Node() as node:
            killed = 0
            for turn in range(60):
                step = turn // 3
                pusher = start("push", node.endpoint, SIZE, draw.choice([0.0, 4e7, 1e7]), step)
                assert await asyncio.to_thread(pusher.stdout.readline) == "begun\n"
                await asyncio.sleep(draw.random() * 0.3)
                killed += pusher.poll() is None
                pusher.kill()
                await asyncio.to_thread(pusher.wait)
                for copy in node.shelf.duplicates(0):
                    for held in arena.inspect(copy).snapshots:
                        assert arena.verify(copy, held) == ""
                        assert read(copy, held.step) == content(SIZE, held.step)
                    os.close(copy)
            assert killed > 20
            await until_async(lambda: not node.shelf._transfers, "the end of all transfers")

    asyncio.run(run())


async def push_at_random(node: Node, rank: int, clock: list[int], done: asyncio.Event, draw: random.Random) -> None:
    """Snapshots of a rank, some given up on the way. `clock`: generation, step."""
    fd = new_arena(SMALL, rank)
    while not done.is_set():
        clock[1] += 1
        snapshot = write(fd, clock[1], content(SMALL, clock[1] % 7), clock[0])
        task = asyncio.create_task(send(node.endpoint, fd, snapshot, rank=rank, rate=draw.choice([0.0, 5e7])))
        if draw.random() < 0.3:
            await asyncio.sleep(draw.random() * 0.05)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or isinstance(task.exception(), TransferError | None)
    os.close(fd)


async def fetch_at_random(node: Node, done: asyncio.Event, draw: random.Random) -> None:
    while not done.is_set():
        for held in node.shelf.held():
            step, make = draw.choice(held.steps), functools.partial(new_arena, rank=held.rank)
            try:
                data = await get(node.endpoint, step, held.rank, make_arena=make)
            except TransferError:  # it was dropped meanwhile
                continue
            assert data == content(SMALL, step % 7)
        await asyncio.sleep(0.01)


def disturb(node: Node, clock: list[int], draw: random.Random) -> None:
    match draw.randrange(4):
        case 0:
            clock[0] += 1
            node.shelf.invalidate_after(clock[1] - 1, clock[0])
        case 1:
            node.shelf.trust(clock[1] - draw.randrange(5))
        case 2:
            node.shelf.drop(draw.randrange(4))


@pytest.mark.soak
def test_everything_at_once_leaves_only_whole_snapshots(caplog) -> None:
    """Pushes of four ranks by rival senders, fetches, cancellations, going back, trust and drops, all at random."""
    draw = random.Random(int(os.environ.get("EVERSTEP_SEED", "1")))

    async def run() -> None:
        clock, done = [0, 0], asyncio.Event()
        async with Node() as node:
            tasks = [asyncio.create_task(push_at_random(node, rank % 4, clock, done, draw)) for rank in range(6)]
            tasks.append(asyncio.create_task(fetch_at_random(node, done, draw)))
            for _ in range(150):
                await asyncio.sleep(draw.random() * 0.1)
                disturb(node, clock, draw)
            done.set()
            await asyncio.gather(*tasks)
            for fd in node.shelf.duplicates(None):
                for held in arena.inspect(fd).snapshots:
                    assert read(fd, held.step) == content(SMALL, held.step % 7)
                os.close(fd)

    asyncio.run(run())
    assert "failed here" not in caplog.text
