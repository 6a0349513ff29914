"""Snapshots from node to node over real sockets: what arrives is whole and right, or has not arrived."""

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import transport_node as nodes
from lateness import Lateness
from transport_node import RUN, TOKEN, WORLD_SIZE, Node, content, new_arena, read, send, write

from everstep.checkpoint import arena
from everstep.checkpoint.transport import Limiter, Server, TransferError, drop, fetch
from everstep.checkpoint.transport.frames import PIECE_BYTES
from everstep.errors import ConfigError

SIZE = 3 * PIECE_BYTES + 12_345
LIMIT_S = 60.0


def until(is_so: Callable[[], bool], what: str) -> None:
    ends_at = time.monotonic() + LIMIT_S
    while not is_so():
        assert time.monotonic() < ends_at, f"never came: {what}"
        time.sleep(0.005)


async def until_async(is_so: Callable[[], bool], what: str) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            await asyncio.sleep(0.005)
    assert is_so(), what


def threads_of_transfers() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith(("push-", "fetch-", "snapshots-"))]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def _nothing_stays() -> Iterator[None]:
    """No thread of a transfer, no descriptor."""
    before = open_descriptors()
    yield
    until(lambda: not threads_of_transfers(), "the end of all threads")
    until(lambda: open_descriptors() <= before, "the end of all descriptors")


@pytest.fixture
def source() -> Iterator[tuple[int, arena.Snapshot]]:
    fd = new_arena(SIZE)
    yield fd, write(fd, 7, content(SIZE, 7))
    os.close(fd)


async def get(endpoint: str, step: int = 7, rank: int = 0, **given: object) -> bytes:
    call = {"token": TOKEN, "run": RUN, "patience_s": nodes.PATIENCE_S, "make_arena": new_arena, **given}
    fd = await fetch(endpoint, rank=rank, step=step, **call)
    try:
        assert arena.held_steps(fd) == (step,)
        return read(fd, step)
    finally:
        os.close(fd)


def test_a_push_arrives_whole_and_can_be_fetched(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent == SIZE
            assert node.copy_of(0, 7) == content(SIZE, 7)
            assert [(h.rank, h.steps, h.generations) for h in node.shelf.held()] == [(0, (7,), (0,))]
            assert await get(node.endpoint) == content(SIZE, 7)

    asyncio.run(run())


def seal(fd: int, snapshot: arena.Snapshot) -> arena.Snapshot:
    """As a rank does, soon after."""
    writer = arena.Arena(fd)
    assert writer.seal(snapshot)
    writer.close()
    (sealed,) = [s for s in arena.inspect(fd).snapshots if s.buffer == snapshot.buffer]
    assert sealed.sealed
    return sealed


@pytest.mark.parametrize("is_sealed", [False, True])
def test_a_copy_is_always_sealed(source, is_sealed) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            await send(node.endpoint, fd, seal(fd, snapshot) if is_sealed else snapshot)
            (copy,) = node.shelf.duplicates(0)
            (held,) = arena.inspect(copy).snapshots
            assert held.sealed
            assert held.skeleton_crc == snapshot.skeleton_crc
            assert arena.verify(copy, held) == ""
            os.pwrite(copy, b"?", arena.offset_of(arena.inspect(copy), held.buffer) + 3 * PIECE_BYTES)
            assert arena.verify(copy, held) != ""
            os.close(copy)

    asyncio.run(run())


def test_a_sealed_snapshot_that_is_damaged_is_not_copied(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        snapshot = seal(fd, snapshot)
        place = arena.offset_of(arena.inspect(fd), snapshot.buffer)
        right = os.pread(fd, 1, place + 2 * PIECE_BYTES + 5)
        os.pwrite(fd, bytes([right[0] ^ 1]), place + 2 * PIECE_BYTES + 5)
        async with Node() as node:
            with pytest.raises(TransferError, match="damaged here: piece 2") as caught:
                await send(node.endpoint, fd, snapshot)
            assert caught.value.is_refusal
            assert node.shelf.held() == ()
            node.own[0] = os.dup(fd)
            with pytest.raises(TransferError, match="damaged over there"):
                await get(node.endpoint)
            os.pwrite(fd, right, place + 2 * PIECE_BYTES + 5)
            os.pwrite(fd, b"?", place + SIZE + 20)
            with pytest.raises(TransferError, match="table of sums"):
                await send(node.endpoint, fd, snapshot)

    asyncio.run(run())


def test_a_replica_is_copied_from_the_memory_that_holds_the_same(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        data = content(SIZE, 7)
        same = data[: 2 * PIECE_BYTES]
        other = new_arena(SIZE, rank=1)
        theirs = write(other, 7, same + content(SIZE, 8)[len(same) :])
        async with Node() as node:
            node.own[2] = new_arena(SIZE, rank=2)
            seal(node.own[2], write(node.own[2], 7, same + content(SIZE, 9)[len(same) :]))
            pushed = await send(node.endpoint, fd, snapshot)
            assert pushed.bytes_sent == SIZE - 2 * PIECE_BYTES
            assert node.copy_of(0, 7) == data
            os.close(node.own.pop(2))
            pushed = await send(node.endpoint, other, theirs, rank=1)  # now from what is kept for rank 0
            assert pushed.bytes_sent == SIZE - 2 * PIECE_BYTES
            assert node.copy_of(1, 7) == read(other, 7)
        os.close(other)

    asyncio.run(run())


def test_own_memory_is_asked_before_the_shelf(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            await send(node.endpoint, fd, snapshot)
            node.own[0] = new_arena(SIZE)
            write(node.own[0], 7, content(SIZE, 1), generation=3)
            assert await get(node.endpoint) == content(SIZE, 1)
            with pytest.raises(TransferError, match="holds no snapshot of rank 0 at step 6"):
                await get(node.endpoint, step=6)

    asyncio.run(run())


def test_a_snapshot_that_is_there_is_not_sent_again_and_an_unchanged_half_neither(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            await send(node.endpoint, fd, snapshot)
            again = await send(node.endpoint, fd, snapshot)
            assert (again.bytes_sent, again.bytes_known) == (0, SIZE)
            data = content(SIZE, 7)[: 2 * PIECE_BYTES] + content(SIZE, 8)[2 * PIECE_BYTES :]
            pushed = await send(node.endpoint, fd, write(fd, 8, data))
            assert pushed.bytes_sent == SIZE - 2 * PIECE_BYTES
            assert node.copy_of(0, 8) == data
            assert node.copy_of(0, 7) == content(SIZE, 7)

    asyncio.run(run())


@pytest.mark.parametrize("wrong", [{"token": "another"}, {"run": "r2"}])
def test_a_peer_of_another_run_gets_nothing(source, wrong) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            with pytest.raises(TransferError, match="another run") as caught:
                await send(node.endpoint, fd, snapshot, **wrong)
            assert caught.value.is_refusal
            with pytest.raises(TransferError, match="another run"):
                await get(node.endpoint, **wrong)
            await until_async(lambda: node.server.rejected["proof"] == 2, "both are counted")
            assert node.shelf.held() == ()

    asyncio.run(run())


def test_a_server_that_does_not_know_the_token_gets_nothing(source) -> None:
    async def run() -> None:
        fd, snapshot = source

        async def pretend(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"EVTRANS\x01" + bytes(32))
            heard.append(await reader.readexactly(8 + 32 + 32))
            writer.write(b"\x00" + bytes(32))
            heard.append(await reader.read())
            writer.close()
            done.set()

        heard: list[bytes] = []
        done = asyncio.Event()
        server = await asyncio.start_server(pretend, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(TransferError, match="could not prove"):
            await send(f"127.0.0.1:{port}", fd, snapshot)
        await done.wait()
        assert heard[1] == b""  # not a byte of the snapshot, nor its name
        server.close()
        await server.wait_closed()

    asyncio.run(run())


def test_two_ranks_at_once_and_one_rank_twice(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        other = new_arena(SIZE, rank=1)
        theirs = write(other, 9, content(SIZE, 9))
        async with Node() as node:
            slow = asyncio.create_task(send(node.endpoint, fd, snapshot, rate=2e6))
            await until_async(lambda: 0 in node.shelf._transfers, "the first transfer")
            await asyncio.gather(send(node.endpoint, other, theirs, rank=1), send(node.endpoint, fd, snapshot))
            with pytest.raises(TransferError):
                await slow
            assert node.copy_of(0, 7) == content(SIZE, 7)
            assert node.copy_of(1, 9) == content(SIZE, 9)
        os.close(other)

    asyncio.run(run())


def test_a_snapshot_that_is_overwritten_on_the_way_is_never_published(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            pushing = asyncio.create_task(send(node.endpoint, fd, snapshot, rate=8e6))
            await until_async(lambda: 0 in node.shelf._transfers, "the transfer")
            for step in range(8, 8 + nodes.NUM_BUFFERS):
                write(fd, step, content(SIZE, step))
            assert 7 not in arena.held_steps(fd)
            with pytest.raises(TransferError):
                await pushing
            assert node.shelf.held() == ()
            newest = arena.inspect(fd).snapshots[-1]
            await send(node.endpoint, fd, newest)
            assert node.copy_of(0, newest.step) == content(SIZE, newest.step)
            with pytest.raises(TransferError, match="is gone"):
                await send(node.endpoint, fd, snapshot)

    asyncio.run(run())


def test_a_cancelled_push_and_fetch_end_at_once(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            pushing = asyncio.create_task(send(node.endpoint, fd, snapshot, rate=1e5))
            await until_async(lambda: 0 in node.shelf._transfers, "the transfer")
            with Lateness() as late:
                began = time.monotonic()
                pushing.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await pushing
                assert time.monotonic() - began < 4.0 + late.seconds  # a thread is given 2 s to let go
            assert node.shelf.held() == ()

            node.own[0] = os.dup(fd)
            made = threading.Event()
            let_go = threading.Event()

            def make(capacity_bytes: int) -> int:
                made.set()
                let_go.wait(LIMIT_S)
                return new_arena(capacity_bytes)

            fetching = asyncio.create_task(get(node.endpoint, make_arena=make))
            await asyncio.to_thread(made.wait)
            fetching.cancel()
            let_go.set()
            with pytest.raises(asyncio.CancelledError):
                await fetching

    asyncio.run(run())


def test_an_arena_that_is_too_small_or_cannot_be_made_is_a_sentence(source) -> None:
    async def run() -> None:
        fd, _ = source

        def fail(capacity_bytes: int) -> int:
            raise MemoryError("nothing is free")

        async with Node() as node:
            node.own[0] = os.dup(fd)
            with pytest.raises(TransferError, match=r"a snapshot of \d+ bytes; a buffer here has 4096") as caught:
                await get(node.endpoint, make_arena=lambda _: new_arena(4000))
            assert caught.value.is_refusal
            with pytest.raises(TransferError, match="nothing is free"):
                await get(node.endpoint, make_arena=fail)
            assert await get(node.endpoint) == content(SIZE, 7)

    asyncio.run(run())


def test_snapshots_that_grow_get_a_larger_arena(source) -> None:
    async def run() -> None:
        async with Node() as node:
            for step, size in ((1, PIECE_BYTES), (2, SIZE), (3, SIZE), (4, 100)):
                fd = new_arena(size)
                await send(node.endpoint, fd, write(fd, step, content(size, step)))
                os.close(fd)
                assert node.copy_of(0, step) == content(size, step)
            assert node.shelf.held()[0].steps == (2, 3, 4)  # the small arena went with the second step in the large one

    asyncio.run(run())


def test_the_rate_is_kept(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            rate = SIZE / 0.5
            began = time.monotonic()
            await send(node.endpoint, fd, snapshot, rate=rate)
            assert time.monotonic() - began >= 0.9 * (0.5 - 0.1)

    asyncio.run(run())


def test_two_pushes_share_one_rate() -> None:
    limiter = Limiter(10e6)
    began = time.monotonic()
    threads = [threading.Thread(target=lambda: [limiter.take(50_000, lambda: False) for _ in range(40)]) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began >= 4e6 / 10e6 - 0.1
    limiter.take(10**12, lambda: True)  # whoever gives up does not wait


def test_nothing_listens_beyond_loopback_unless_told() -> None:
    with pytest.raises(ConfigError, match="without encryption"):
        Server(TOKEN, Node().shelf, list, host="0.0.0.0")
    with pytest.raises(ValueError, match="empty token"):
        Server("", Node().shelf, list)


def test_nothing_has_a_name(source) -> None:
    async def run() -> None:
        before = set(Path("/dev/shm").iterdir())
        fd, snapshot = source
        async with Node() as node:
            await send(node.endpoint, fd, snapshot)
            assert not [p for p in set(Path("/dev/shm").iterdir()) - before if "everstep" in p.name]

    asyncio.run(run())


def test_over_ipv6() -> None:
    async def run() -> None:
        fd = new_arena(SIZE)
        snapshot = write(fd, 7, content(SIZE, 7))
        async with Node(host="::1") as node:
            assert node.endpoint.startswith("[::1]:")
            await send(node.endpoint, fd, snapshot)
            assert await get(node.endpoint) == content(SIZE, 7)
        os.close(fd)

    asyncio.run(run())


def test_the_world_must_be_the_same(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            with pytest.raises(TransferError, match=f"one of {WORLD_SIZE} ranks, not 2"):
                await send(node.endpoint, fd, snapshot, world_size=2)

    asyncio.run(run())


def test_without_a_thread_there_is_a_sentence_and_nothing_stays_open(source, monkeypatch) -> None:
    begin = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(("push-", "fetch-")):
            raise RuntimeError("can't start new thread")
        begin(thread)

    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            monkeypatch.setattr(threading.Thread, "start", start)
            with pytest.raises(TransferError, match="could not be sent"):
                await send(node.endpoint, fd, snapshot)
            with pytest.raises(TransferError, match="could not be fetched"):
                await get(node.endpoint)
            monkeypatch.undo()
            await send(node.endpoint, fd, snapshot)

    asyncio.run(run())


def test_copies_that_lie_elsewhere_are_dropped_by_whoever_knows_the_token(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            await send(node.endpoint, fd, snapshot)
            with pytest.raises(TransferError, match="drop its copies of rank 0"):
                await drop(node.endpoint, "another token", rank=0, generation=0, run=RUN)
            await drop(node.endpoint, TOKEN, rank=1, generation=0, run=RUN)
            assert [held.rank for held in node.shelf.held()] == [0]
            await drop(node.endpoint, TOKEN, rank=0, generation=0, run=RUN)
            assert not node.shelf.held()

    asyncio.run(run())
