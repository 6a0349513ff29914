"""An answer that nobody reads is given up, and its memory with it."""

import asyncio
import contextlib
import socket

from aiohttp import web

from everstep.controller import answering


async def served(handler):
    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, runner.addresses[0][1]


def rest_of(sock):
    """How many bytes still come."""
    num_bytes = 0
    sock.settimeout(60)
    with sock, contextlib.suppress(ConnectionError):
        while data := sock.recv(1 << 20):
            num_bytes += len(data)
    return num_bytes


def test_a_client_that_does_not_read_is_cut_and_one_that_does_gets_all(monkeypatch):
    monkeypatch.setattr(answering, "UNREAD_S", 0.3)
    sent = []
    body = b"x" * (32 << 20)  # more than the kernel keeps

    async def handler(request):
        response = web.Response(body=body)
        sent.append(await answering.send(request, response))
        return response

    async def story():
        runner, port = await served(handler)
        sock = socket.create_connection(("127.0.0.1", port))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        while not sent:
            await asyncio.sleep(0.02)
        assert await asyncio.to_thread(rest_of, sock) < len(body), "it was cut, and not served when it read at last"
        monkeypatch.setattr(answering, "UNREAD_S", 60.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).endswith(body)
        writer.close()
        await runner.cleanup()

    asyncio.run(story())
    assert sent == [False, True]
