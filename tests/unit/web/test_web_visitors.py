"""Strangers at the port of `everstep ui`, over real sockets."""

import asyncio
import contextlib
import socket

import pytest

from everstep.web import server
from everstep.web.visitors import Visitors

TOKEN = "t" * 24
GARBAGE = [b"", b"\x16\x03\x01\x1b[2J", b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"]


async def page(port):
    """Status line of the answer to whoever has the link."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET /?token={TOKEN} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer.split(b"\r\n")[0]


@contextlib.asynccontextmanager
async def pages(folder):
    sock, stop = server.listen(0), asyncio.Event()
    serving = asyncio.create_task(server.serve(folder, sock, TOKEN, stop))
    try:
        yield sock.getsockname()[1]
    finally:
        stop.set()
        await serving


@pytest.mark.parametrize("said", GARBAGE)
def test_a_crowd_of_strangers_keeps_nobody_from_the_pages_and_writes_nothing(tmp_path, monkeypatch, capfd, said):
    """From another address, of which the kernel names no owner: such strangers share half of the places."""

    async def story():
        async with pages(tmp_path) as port:
            crowd = []
            for _ in range(60):
                crowd.append(socket.socket())
                crowd[-1].bind(("127.0.0.2", 0))
                crowd[-1].connect(("127.0.0.1", port))
                with contextlib.suppress(OSError):
                    crowd[-1].send(said)
            assert await page(port) == b"HTTP/1.1 200 OK"
            for stranger in crowd:
                stranger.close()

    real = Visitors.__init__
    monkeypatch.setattr(Visitors, "__init__", lambda self: real(self, most=16, idle_s=30.0))
    monkeypatch.setattr("everstep.wire.strangers.owner.Owners.uid", owner_of)
    asyncio.run(story())
    assert capfd.readouterr() == ("", "")


def owner_of(_, peer, here):
    return None if peer[0] != here[0] else 0


def test_half_a_request_does_not_hold_a_place_for_long(tmp_path, monkeypatch):
    async def story():
        async with pages(tmp_path) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\nHo")
            async with asyncio.timeout(60):
                assert await reader.read() == b""
            writer.close()

    real = Visitors.__init__
    monkeypatch.setattr(Visitors, "__init__", lambda self: real(self, idle_s=0.1))
    asyncio.run(story())
