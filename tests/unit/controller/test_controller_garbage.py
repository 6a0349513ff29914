"""What is no HTTP request, to the controller's plain port: counted, answered, and gone from memory."""

import asyncio
import gc
import socket
import tracemalloc

import pytest
from aiohttp import web

from everstep.controller.peers import listening
from everstep.controller.peers.gate import Gate
from everstep.wire.credentials import RunSecret

NUMBER = 40
LONG = 64 << 10


@pytest.mark.parametrize(
    "said", [b"x" * LONG, b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * LONG], ids=["no-method", "long-header"]
)
def test_what_was_sent_does_not_wait_for_the_garbage_collector(said):
    """A thousand connections with 64 KiB each were 100 MiB that stayed."""

    async def story():
        gate = Gate(RunSecret("a secret of this test, and long enough", "r1"), run="r1")
        sock = socket.create_server(("127.0.0.1", 0))
        place = listening.Place(sock, is_encrypted=False)
        runner = await listening.serve(web.Application(), [place], None, gate=gate, peers=None)
        try:
            await send(sock.getsockname()[1], said)  # what is made once
            gc.collect()
            tracemalloc.start()
            before, _ = tracemalloc.get_traced_memory()
            for _ in range(NUMBER):
                await send(sock.getsockname()[1], said)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await runner.cleanup()
        assert gate.rejections.counts["garbage"] == NUMBER + 1
        assert after - before < NUMBER * LONG // 4

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


async def send(port, said):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        assert b" 400 Bad Request" in (await reader.read())[:40]
    except ConnectionError:
        pass  # it was closed before all of it was read
    writer.close()
    await asyncio.sleep(0.01)
