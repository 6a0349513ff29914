"""Strangers, liars and peers that do not answer: nothing is believed, and nobody waits without end."""

import asyncio
import os
import random
import socket
import time

import pytest
from lateness import Lateness
from test_transport import SIZE, _nothing_stays, get, source, threads_of_transfers, until_async
from transport_node import RUN, SHORT_S, TOKEN, WORLD_SIZE, BadLine, Node, content, new_arena, read, send, write

from everstep.checkpoint import arena
from everstep.checkpoint.transport import TransferError, fetch, frames
from everstep.checkpoint.transport.frames import PIECE_BYTES
from everstep.checkpoint.transport.handshake import MAGIC, Secret, introduce
from everstep.checkpoint.transport.stream import Stream, StreamError
from everstep.wire.strangers.owner import Owners

__all__ = ["_nothing_stays", "source"]  # fixtures of this file as well

OFFER = {
    "rank": 0,
    "world_size": WORLD_SIZE,
    "capacity_bytes": 1 << 25,
    "step": 7,
    "generation": 0,
    "length": SIZE,
    "skeleton_bytes": 64,
    "skeleton_crc": 1,
}


def greeted(endpoint: str) -> Stream:
    stream = Stream(dial(endpoint), 5.0)
    introduce(stream, Secret(TOKEN, RUN), endpoint)
    return stream


def dial(endpoint: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(endpoint.rpartition(":")[2])), timeout=60)


def test_garbage_is_turned_away_and_counted(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        draw = random.Random(1)
        async with Node() as node:
            for _ in range(60):
                with dial(node.endpoint) as stranger:
                    head = draw.choice([b"", MAGIC, MAGIC[:-1] + b"\x09", b"GET / HTTP/1.1\r\n", b"\x80\x04"])
                    stranger.sendall(head + draw.randbytes(draw.randrange(300)))
            await until_async(lambda: sum(node.server.rejected.values()) == 60, "all are counted")
            assert {"garbage", "silence", "version"} <= set(node.server.rejected)
            assert node.shelf.held() == ()
            assert node.shelf._memories == {}
            await send(node.endpoint, fd, snapshot)

    asyncio.run(run())


def test_a_recorded_handshake_is_of_no_use(source) -> None:
    async def run() -> None:
        async with Node() as node:
            said: list[bytes] = []

            class Recording(Stream):
                def send(self, data: bytes, *, more: bool = False) -> None:
                    said.append(bytes(data))
                    super().send(data, more=more)

            def play() -> bytes:
                honest = Recording(dial(node.endpoint), 5.0)
                introduce(honest, Secret(TOKEN, RUN), node.endpoint)
                honest.close()
                with dial(node.endpoint) as replay:
                    replay.recv(40, socket.MSG_WAITALL)
                    replay.sendall(b"".join(said))
                    return replay.recv(33, socket.MSG_WAITALL)

            verdict = await asyncio.to_thread(play)
            assert verdict == b"\x01" + bytes(32)
            await until_async(lambda: node.server.rejected["proof"] == 1, "it is counted")

    asyncio.run(run())


def test_a_proof_for_another_server_of_the_run_is_of_no_use(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node, BadLine(node.endpoint) as line:
            with pytest.raises(TransferError, match="not the endpoint"):
                await send(f"127.0.0.1:{line.port}", fd, snapshot)
            assert node.shelf.held() == ()

    asyncio.run(run())


def test_a_crowd_of_silent_strangers_keeps_nobody_out(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        async with Node() as node:
            crowd = [dial(node.endpoint) for _ in range(80)]
            await send(node.endpoint, fd, snapshot)
            await until_async(lambda: node.server.rejected["crowd"] >= 40, "those that lost their place")
            for stranger in crowd:
                stranger.close()

    asyncio.run(run())


def test_a_crowd_that_comes_again_and_again_takes_no_place_of_another(monkeypatch) -> None:
    monkeypatch.setattr(Owners, "uid", lambda _self, peer, _here: int(peer[0].rpartition(".")[2]))

    async def run() -> None:
        async with Node() as node:
            honest = Stream(dial(node.endpoint), 30.0)
            port = int(node.endpoint.rpartition(":")[2])

            def come() -> list[socket.socket]:
                return [socket.create_connection(("127.0.0.1", port), 30.0, ("127.0.0.2", 0)) for _ in range(300)]

            crowd = await asyncio.to_thread(come)
            await until_async(lambda: node.server.rejected["crowd"] >= 200, "those that lost their place")
            await asyncio.to_thread(introduce, honest, Secret(TOKEN, RUN), node.endpoint)
            honest.close()
            for stranger in crowd:
                stranger.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "change",
    [
        {"rank": -1},
        {"rank": WORLD_SIZE},
        {"step": -1},
        {"length": 0},
        {"length": 1 << 50},
        {"skeleton_bytes": SIZE + 1},
        {"capacity_bytes": 1 << 41, "length": 1 << 40},
        {"capacity_bytes": 1 << 39},  # possible, but there is no memory for it
        {"skeleton_crc": -1},
        {"generation": 1 << 63},
        {"step": 1 << 63},
        {"world_size": 1 << 64},
    ],
)
def test_an_offer_that_cannot_be_is_refused(change) -> None:
    async def run() -> None:
        async with Node() as node:
            node.shelf._free_bytes = lambda: 1 << 30
            stream = await asyncio.to_thread(greeted, node.endpoint)

            def ask() -> None:
                frames.say(stream, frames.Push(offer=frames.Offer(**{**OFFER, **change})))
                frames.hear(stream, frames.Known)

            with pytest.raises((frames.Refusal, StreamError)):
                await asyncio.to_thread(ask)
            assert node.shelf._memories == {}
            stream.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x02\x00\x00\x00{}",
        b"\x05\x00\x00\x00\xff\xfe\x00{}",
        b'\x0e\x00\x00\x00{"is":"Stored"}'[:18],
        b'\x0e\x00\x00\x00{"is":"Stored"',
    ],
)
def test_a_peer_that_talks_nonsense_is_cut_off(data) -> None:
    async def run() -> None:
        async with Node() as node:
            stream = await asyncio.to_thread(greeted, node.endpoint)
            stream.send(data)
            with pytest.raises(StreamError):
                await asyncio.to_thread(stream.receive, 1)
            await until_async(lambda: node.server.rejected["broken"] == 1, "it is counted")
            stream.close()

    asyncio.run(run())


def test_a_sender_that_lies_about_its_pieces_publishes_nothing(source) -> None:
    async def run() -> None:
        async with Node() as node:
            for kind, index in ((frames.DATA, 99), (frames.SAME, 0), (77, 0), (frames.TORN, 0)):
                stream = await asyncio.to_thread(greeted, node.endpoint)

                def lie(stream: Stream, kind: int, index: int) -> None:
                    frames.say(stream, frames.Push(offer=frames.Offer(**OFFER)))
                    frames.hear(stream, frames.Known)
                    stream.receive(frames.ENTRY_BYTES * frames.Offer(**OFFER).num_pieces)
                    frames.announce(stream, index, kind, b"x" * 8)
                    frames.announce(stream, 0, frames.END)
                    with pytest.raises((StreamError, frames.Refusal)):
                        frames.hear(stream, frames.Stored)

                await asyncio.to_thread(lie, stream, kind, index)
                stream.close()
                assert node.shelf.held() == ()

    asyncio.run(run())


def test_a_piece_that_comes_twice_counts_as_it_came_last() -> None:
    async def run() -> None:
        data = content(SIZE, 7)
        offer = frames.Offer(**OFFER)
        sums = list(arena.seal.sums(memoryview(data)))
        async with Node() as node:

            def lie() -> None:
                stream = greeted(node.endpoint)
                frames.say(stream, frames.Push(offer=offer))
                frames.hear(stream, frames.Known)
                stream.receive(frames.ENTRY_BYTES * offer.num_pieces)
                for index in [*range(offer.num_pieces), 0]:
                    start, length = offer.piece(index)
                    frames.announce(stream, index, frames.DATA, sums[index])
                    stream.send(data[start : start + length])
                frames.announce(stream, 0, frames.DATA, sums[0])
                stream.send(bytes(PIECE_BYTES))
                frames.announce(stream, 0, frames.END)
                assert frames.hear(stream, frames.Again).pieces == (0,)
                frames.announce(stream, 0, frames.DATA, sums[0])
                stream.send(data[:PIECE_BYTES])
                frames.announce(stream, 0, frames.END)
                frames.hear(stream, frames.Stored)
                stream.close()

            await asyncio.to_thread(lie)
            assert node.copy_of(0, 7) == data

    asyncio.run(run())


def test_a_giver_that_lies_about_its_offer_is_not_believed() -> None:
    async def run() -> None:
        made: list[int] = []

        def make(capacity_bytes: int) -> int:
            made.append(capacity_bytes)
            return new_arena(SIZE)

        for change in ({"step": 8}, {"rank": 1}, {"length": 1 << 50}, {"skeleton_bytes": 0}):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                endpoint = f"127.0.0.1:{listener.getsockname()[1]}"

                def lie(listener: socket.socket, endpoint: str, change: dict[str, int]) -> None:
                    from everstep.checkpoint.transport.handshake import admit

                    for _ in range(3):
                        stream = Stream(listener.accept()[0], 5.0)
                        admit(stream, Secret(TOKEN, RUN), endpoint)
                        frames.hear(stream, frames.Fetch)
                        frames.say(stream, frames.Offering(offer=frames.Offer(**{**OFFER, **change})))
                        stream.close()

                lying = asyncio.create_task(asyncio.to_thread(lie, listener, endpoint, change))
                with pytest.raises(TransferError):
                    await get(endpoint, make_arena=make)
                await lying
        assert made == []

    asyncio.run(run())


def test_nobody_there_is_said_at_once(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        with socket.create_server(("127.0.0.1", 0)) as listener:
            endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransferError, match="refused"):
            await send(endpoint, fd, snapshot)
        for nonsense in ("", "host", "127.0.0.1:", ":1", "127.0.0.1:x"):
            with pytest.raises(TransferError, match="not host:port"):
                await fetch(nonsense, TOKEN, rank=0, step=1, make_arena=new_arena)

    asyncio.run(run())


def test_a_peer_that_says_nothing_is_given_up(source, monkeypatch) -> None:
    monkeypatch.setattr("everstep.checkpoint.transport.handshake.LIMIT_S", 0.3)

    async def run() -> None:
        fd, snapshot = source
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with pytest.raises(TransferError, match=r"no progress|in time"):
                await send(f"127.0.0.1:{listener.getsockname()[1]}", fd, snapshot, patience_s=SHORT_S)
        async with Node() as node:
            with Lateness() as late, dial(node.endpoint) as trickle:
                began = time.monotonic()

                def drip() -> None:
                    trickle.recv(40, socket.MSG_WAITALL)
                    try:
                        for byte in MAGIC * 100:
                            trickle.sendall(bytes([byte]))
                            time.sleep(0.02)
                    except OSError:
                        pass

                await asyncio.to_thread(drip)
                assert time.monotonic() - began < 5 + late.seconds
                await until_async(lambda: node.server.rejected["silence"] == 1, "it is counted")

    asyncio.run(run())


def test_what_a_fetch_made_is_right_after_an_attempt_to_read_it(source) -> None:
    """The arena that was fetched is one that a rank can go on with."""

    async def run() -> None:
        async with Node() as node:
            node.own[0] = os.dup(source[0])
            fd = await fetch(node.endpoint, TOKEN, run=RUN, rank=0, step=7, make_arena=new_arena)
            write(fd, 8, content(SIZE, 8))
            assert read(fd, 7) == content(SIZE, 7)
            assert read(fd, 8) == content(SIZE, 8)
            os.close(fd)

    asyncio.run(run())


def test_a_server_that_closes_ends_all_transfers(source) -> None:
    async def run() -> None:
        fd, snapshot = source
        node = Node()
        await node.__aenter__()
        pushing = asyncio.create_task(send(node.endpoint, fd, snapshot, rate=1e6))
        await until_async(lambda: bool(node.shelf._transfers), "the transfer")
        with Lateness() as late:
            began = time.monotonic()
            await node.__aexit__()
            assert time.monotonic() - began < 8 + late.seconds  # its transfers are given 5 s to end
        with pytest.raises(TransferError):
            await pushing

    asyncio.run(run())


PATIENT_S = 8.0
"""So long that a reader that reads is never late, on a machine that others use as well."""


def test_a_reader_that_does_not_read_holds_up_nobody() -> None:
    async def run() -> None:
        size = 16 << 20  # more than the kernel keeps for a connection
        async with Node(patience_s=PATIENT_S) as node:
            node.own[0] = new_arena(size)
            write(node.own[0], 7, content(size, 7))

            def ask() -> Stream:
                idle = greeted(node.endpoint)
                frames.say(idle, frames.Fetch(rank=0, step=7))
                offer = frames.hear(idle, frames.Offering).offer
                frames.say(idle, frames.Known(), bytes(frames.ENTRY_BYTES * offer.num_pieces))
                return idle

            def read_what_came(idle: Stream) -> int:
                received = 0
                try:
                    while True:
                        received += len(idle.receive(1 << 12))
                except StreamError:
                    return received

            idle = await asyncio.to_thread(ask)
            assert await get(node.endpoint) == content(size, 7)
            await until_async(lambda: not threads_of_transfers(), "its end")
            assert node.server.rejected["broken"] == 1
            assert await asyncio.to_thread(read_what_came, idle) < size
            idle.close()

    asyncio.run(run())
