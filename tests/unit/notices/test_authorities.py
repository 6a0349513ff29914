"""Receivers that prove themselves with a certificate: also in a process that starts without those of authorities."""

import asyncio
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from aiohttp import web

SEND = """
import asyncio, os, sys
from everstep.wire.lean_tls import import_aiohttp
before = dict(os.environ)
import_aiohttp()
assert dict(os.environ) == before
from everstep.notices.errors import NoticeError
from everstep.notices.messages import Message
from everstep.notices.outbox import Due
from everstep.notices.sending import send
from everstep.notices.settings import Receiver
message = Message(run="r1", key="i1", at=1.8e9, state="open", is_over=False, needs_you=False, code="ES-P09",
                  node="n0", text="x")
try:
    due = Due(message=message, revision=1, handle=None, num_untold=0)
    asyncio.run(send(Receiver(kind="webhook", name="w", url=sys.argv[1], limit_s=60.0), due, "text"))
    print("sent")
except NoticeError as error:
    print(error)
"""


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of localhost, signed by itself."""
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    made += ["-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")]
    subprocess.run(made, check=True, capture_output=True)
    return tmp_path / "cert.pem"


async def _said(certificate: Path, trusted: Path | None) -> tuple[str, int]:
    """What a process with these authorities says, and how many notices came."""
    taken = []

    async def take(request: web.Request) -> web.Response:
        taken.append(await request.read())
        return web.Response()

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    site = web.TCPSite(runner, "localhost", 0, ssl_context=context)
    await site.start()
    env = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT")}
    env |= {"SSL_CERT_FILE": str(trusted)} if trusted is not None else {}
    port = runner.addresses[0][1]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SEND, f"https://localhost:{port}/", stdout=subprocess.PIPE, env=env
    )
    said, _ = await process.communicate()
    await runner.cleanup()
    return said.decode().strip(), len(taken)


def test_a_receiver_whose_authority_is_known_gets_it(certificate: Path) -> None:
    assert asyncio.run(_said(certificate, certificate)) == ("sent", 1)


def test_a_receiver_of_an_unknown_authority_gets_nothing(certificate: Path) -> None:
    said, num_taken = asyncio.run(_said(certificate, None))
    assert said == "it cannot be reached: ClientConnectorCertificateError"
    assert num_taken == 0
