"""The controller's encrypted port: half a TLS handshake has a place among the strangers' as any other connection."""

import asyncio
import contextlib
import os
import socket
import ssl
import tracemalloc
from pathlib import Path

import pytest
from aiohttp import web

from everstep.controller.peers import accepting, door, listening
from everstep.controller.peers.gate import Gate
from everstep.launcher.rundir.keys import Keys
from everstep.wire.credentials import RunSecret

PLACES = 64
STRANGER = 4711


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    Keys(folder, "r1").certify()
    return listening.Certificate.of_run(folder)


@pytest.fixture(scope="module")
def hello():
    """What a client says first, and then nothing more."""
    outgoing = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        trusting().wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


class _Owners:
    """Who comes from 127.0.0.2 is another user."""

    def who(self, peer, _here):
        return STRANGER if peer[0] == "127.0.0.2" else os.geteuid()

    def close(self):
        pass


@pytest.fixture(autouse=True)
def strangers(monkeypatch):
    monkeypatch.setattr(door, "Owners", _Owners)
    monkeypatch.setattr(listening, "MAX_CONNECTIONS", PLACES)


def trusting():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


@contextlib.asynccontextmanager
async def served(certificate):
    gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")
    app = web.Application()

    async def here(_):
        return web.Response(text="here")

    app.router.add_get("/", here)
    sock = socket.create_server(("127.0.0.1", 0))
    place = listening.Place(sock, is_encrypted=True)
    runner = await listening.serve(app, [place], certificate, gate=gate, peers=None)
    try:
        yield sock.getsockname()[1], gate
    finally:
        await runner.cleanup()


async def answered(port):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    answer = await reader.read()
    writer.close()
    return answer


async def crowd(port, number, said, opened):
    loop = asyncio.get_running_loop()
    for _ in range(number):
        sock = opened.enter_context(socket.socket())
        sock.bind(("127.0.0.2", 0))
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", port))
        with contextlib.suppress(OSError):
            sock.send(said)


async def until(is_so):
    async with asyncio.timeout(20):
        while not is_so():
            await asyncio.sleep(0.01)


def num_open():
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize(("part", "limit"), [(0, 8 << 10), (None, 96 << 10)], ids=["nothing", "hello"])
def test_a_connection_that_has_proven_nothing_takes_little_memory(certificate, hello, part, limit):
    """asyncio's own 256 KiB for each were 110 MiB for the 374 idle connections of one stranger."""

    async def story():
        async with served(certificate) as (port, _):
            with contextlib.ExitStack() as opened:
                await answered(port)  # what is made once
                tracemalloc.start()
                try:
                    before, _ = tracemalloc.get_traced_memory()
                    await crowd(port, PLACES // 8, hello[:part], opened)
                    await asyncio.sleep(0.5)
                    after, _ = tracemalloc.get_traced_memory()
                finally:
                    tracemalloc.stop()
                assert 0 < (after - before) / (PLACES // 8) < limit

    asyncio.run(story())


@pytest.mark.parametrize("part", [0, 20, None], ids=["nothing", "half", "hello"])
def test_a_crowd_of_half_handshakes_has_an_eighth_of_the_places(certificate, hello, part):
    async def story():
        async with served(certificate) as (port, gate):
            with contextlib.ExitStack() as opened:
                before = num_open() + 2 * PLACES
                await crowd(port, 2 * PLACES, hello[:part], opened)
                await until(lambda: num_open() <= before + PLACES // 8)
                assert (await answered(port)).endswith(b"here")
                assert gate.rejections.counts["crowd"] >= PLACES

    asyncio.run(story())


def test_garbage_in_the_place_of_a_handshake_is_counted_and_leaves_no_place_taken(certificate):
    async def story():
        async with served(certificate) as (port, gate):
            with contextlib.ExitStack() as opened:
                before = num_open() + 20
                await crowd(port, 20, b"GET / HTTP/1.1\r\n\r\n", opened)
                await until(lambda: num_open() <= before)
                assert gate.rejections.counts["garbage"] + gate.rejections.counts["crowd"] == 20
                assert (await answered(port)).endswith(b"here")

    asyncio.run(story())


def test_a_handshake_that_stands_still_has_seconds(certificate, hello, monkeypatch):
    monkeypatch.setattr(accepting, "TLS_HANDSHAKE_S", 0.2)

    async def story():
        async with served(certificate) as (port, gate):
            with contextlib.ExitStack() as opened:
                before = num_open() + 3
                await crowd(port, 3, hello[:20], opened)
                await until(lambda: num_open() <= before and gate.rejections.counts["silence"] == 3)

    asyncio.run(story())


def test_who_says_something_in_the_handshakes_last_packet_is_answered(certificate):
    """A client's request can come with the end of its handshake, before the server has looked."""

    async def story():
        async with served(certificate) as (port, _):
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = trusting().wrap_bio(incoming, outgoing)
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(outgoing.read())
            while True:
                incoming.write(await reader.read(65536))
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    continue
            tls.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            writer.write(outgoing.read())  # the end of the handshake and the request in one
            incoming.write(await reader.read())
            answer = b""
            with contextlib.suppress(ssl.SSLError):
                while part := tls.read(65536):
                    answer += part
            assert answer.endswith(b"here")
            writer.close()

    asyncio.run(story())
