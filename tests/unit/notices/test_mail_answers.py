"""A mail server is a stranger: what it says is read up to a limit, and a mail's text steers no terminal."""

import asyncio
import contextlib
import socket
import threading

import pytest
from aiohttp import web

from everstep.notices.errors import NoticeError
from everstep.notices.mail import MAX_ANSWER_BYTES
from everstep.notices.messages import Message
from everstep.notices.outbox import Due
from everstep.notices.sending import send
from everstep.notices.settings import Receiver

MESSAGE = Message(
    key="i1", run="r", at=1.0, state="open", is_over=False, needs_you=False, code="ES-P06", node="n0", text="t"
)
DUE = Due(message=MESSAGE, handle=None, revision=1, num_untold=0)


@pytest.mark.parametrize("greeting", [b"", b"220 here\r\n"], ids=["in its greeting", "in its answer"])
def test_a_mail_server_that_never_ends_its_answer_is_left(greeting):
    said = []

    def talk(listener):
        sock, _ = listener.accept()
        with sock, contextlib.suppress(OSError):
            sock.sendall(greeting)
            while sum(said) < 256 << 20:
                said.append(sock.send(b"220-" + b"x" * 996 + b"\r\n"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        server = threading.Thread(target=talk, args=(listener,), daemon=True)
        server.start()
        mail = Receiver(
            kind="email",
            host="127.0.0.1",
            port=listener.getsockname()[1],
            security="none",
            sender="a@b.c",
            to=("d@e.f",),
            limit_s=30.0,
        )
        with pytest.raises(NoticeError, match="cannot be reached"):
            asyncio.run(send(mail, DUE, "text"))
        server.join(30.0)
    assert sum(said) < 64 << 20, f"read on behind the limit of {MAX_ANSWER_BYTES}"


def test_an_answer_that_was_packed_is_not_unpacked():
    asked = []

    async def take(request):
        asked.append(request.headers["Accept-Encoding"])
        return web.Response(body=b"\x1f\x8b not really packed", headers={"Content-Encoding": "gzip"})

    async def story():
        app = web.Application()
        app.router.add_post("/", take)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = site._server.sockets[0].getsockname()[1]
        try:
            return await send(Receiver(kind="webhook", url=f"http://127.0.0.1:{port}/", limit_s=30.0), DUE, "text")
        finally:
            await runner.cleanup()

    assert asyncio.run(story()) == "r/i1"
    assert asked == ["identity"]
