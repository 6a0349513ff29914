"""The controller's port under attack: recordings, stolen identities, floods, half requests, and TLS that is pinned."""

import asyncio
import contextlib
import json
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from real_controller import TIMEOUT_S, FakePeer, Process, joined

from everstep.errors import WireError
from everstep.launcher.rundir.keys import Keys
from everstep.model.events import NodeJoined, StopRequested
from everstep.model.observations import SignalsReported
from everstep.model.spec import RunSpec
from everstep.wire.codec import encode
from everstep.wire.credentials import CERTIFICATE_NAME, KEY_NAME, RunSecret
from everstep.wire.greeting import connect, introduce
from everstep.wire.messages import PROTOCOL, Challenge, Report, Welcome


@pytest.fixture
def controller(tmp_path):
    process = Process(tmp_path)
    process.start()
    yield process
    ended(process)


def ended(process):
    if process.process is not None and process.process.poll() is None:
        process.process.kill()
        process.process.communicate()
    if process.process is not None and process.process.stderr:
        process.process.stderr.close()
    process.sock.close()


def dropped(controller):
    return controller.health()["dropped"]


async def told(port, data) -> bytes:
    """What comes back until the other side closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    async with asyncio.timeout(TIMEOUT_S):
        answer = await reader.read()
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


async def record(controller) -> bytes:
    """What an honest agent sends, byte for byte, as somebody on the way would see it."""
    taped, port, over = bytearray(), controller.port, asyncio.Event()

    async def forward(reader, writer):
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)

        async def pump(source, sink, tape):
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if tape is not None:
                        tape.extend(data)
                    sink.write(data)
            sink.close()
            with contextlib.suppress(OSError):
                await sink.wait_closed()

        await asyncio.gather(pump(reader, inner_writer, taped), pump(inner_reader, writer, None))
        over.set()

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    controller.port = server.sockets[0].getsockname()[1]
    try:
        async with FakePeer(controller) as agent:
            await agent.hello()
            await agent.report(joined())
        await over.wait()
    finally:
        controller.port = port
        server.close()
    return bytes(taped)


def test_a_recorded_connection_played_again_is_turned_away(controller):
    async def story():
        taped = await record(controller)
        assert b"answers the challenge of another connection" in await told(controller.port, taped)
        assert b"secret" not in taped
        key = controller.secret.credentials("agent", "n0").link_key
        assert key.encode() not in taped

    asyncio.run(story())
    assert dropped(controller) == {"replayed": 1}
    assert sum(isinstance(event, NodeJoined) for event in controller.events()) == 1
    assert b'everstep_stale_messages_total{kind="replayed"} 1' in controller.get("/metrics")


def test_a_node_speaks_as_itself_and_as_nobody_else(controller):
    async def story():
        async with FakePeer(controller, "n7") as agent:
            await agent.hello()
            await agent.send(Report(source_seq=1, event=joined("n0")))
            await agent.send(Report(source_seq=2, event=StopRequested(at=1.0, why="w", signal=15)))
            await agent.report(joined("n7"), seq=3)

    asyncio.run(story())
    assert dropped(controller) == {"wrong-role": 2}
    assert [event.node for event in controller.events() if isinstance(event, NodeJoined)] == ["n7"]


@pytest.mark.parametrize("key", ["token", "n0"])
def test_another_key_opens_no_link(controller, key):
    """Neither the token of the API nor a node's own key makes somebody another node, or the launcher."""
    node = controller.secret.credentials("agent", "n0").link_key
    stolen = {"token": controller.token, "n0": node}[key]

    async def story():
        for role, name in (("agent", "n1"), ("launcher", "launcher-1")):
            claimed = controller.secret.credentials(role, name)
            forged = type(claimed)(run="r1", role=role, name=name, link_key=stolen)
            async with aiohttp.ClientSession() as session:
                with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
                    await session.ws_connect(
                        f"http://127.0.0.1:{controller.port}/link", headers={"Authorization": forged.knock}
                    )

    asyncio.run(story())
    assert dropped(controller) == {"unauthenticated": 2}


def test_a_controller_that_does_not_know_the_secret_is_left(controller):
    """It could send commands otherwise: it gets no report, and none of its messages is taken."""

    async def lie(request):
        link = web.WebSocketResponse()
        await link.prepare(request)
        await link.send_bytes(encode(Challenge(challenge="c")))
        await link.receive()
        await link.send_bytes(
            encode(Welcome(protocol=PROTOCOL, spec=RunSpec(program="x"), last_source_seq=0, proof="0"))
        )
        await link.receive()
        return link

    async def story():
        app = web.Application()
        app.router.add_get("/link", lie)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"ws://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/link"
        credentials = controller.secret.credentials("agent", "n0")
        async with aiohttp.ClientSession() as session, connect(session, url, credentials) as link:
            with pytest.raises(WireError, match="does not know this run's secret"):
                await introduce(link, credentials)
        await runner.cleanup()

    asyncio.run(story())


def test_reading_is_not_acting(controller):
    reading = controller.secret.api_token("read")
    assert controller.post("/api/stop", {}, token=reading)[0] == 401
    assert controller.post("/api/stop", {}, token="\xff")[0] == 401, "not a byte that is no text either"
    assert dropped(controller) == {"unauthenticated": 2}


def test_one_that_floods_does_not_slow_the_others(controller):
    """It is read as slowly as its budget says; nothing that it sends is lost, and the honest peer hardly waits."""

    async def story():
        async with FakePeer(controller, "loud") as loud, FakePeer(controller, "n0") as honest:
            await loud.hello()
            await honest.hello()

            async def flood():
                number = 0
                with contextlib.suppress(ConnectionError):
                    while True:
                        number += 1
                        event = SignalsReported(at=1.0, node="loud", generation=0, signals=())
                        await loud.send(Report(source_seq=number, event=event))

            async def deaf():
                with contextlib.suppress(Exception):
                    while True:
                        await loud.socket.receive()

            tasks = [asyncio.create_task(flood()), asyncio.create_task(deaf())]
            waits = []
            for _ in range(20):
                begun = time.monotonic()
                await honest.report(SignalsReported(at=1.0, node="n0", generation=0, signals=()))
                waits.append(time.monotonic() - begun)
                await asyncio.sleep(0.02)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            loud.socket._conn.transport.abort()  # what it has not got rid of would keep its connection open
            assert sorted(waits)[10] < 1.0

    asyncio.run(story())
    assert dropped(controller) == {}


def test_half_a_request_and_silence_are_let_go(tmp_path):
    code = (
        "from everstep.controller.peers import gate, listening\n"
        "listening.IDLE_S = 2.0; gate.HELLO_TIMEOUT_S = 0.3\n"
        "import everstep.controller.main as m, sys; sys.exit(m.main(sys.argv[1:]))"
    )
    process = Process(tmp_path)
    argv = [sys.executable, "-c", code, "--run-dir", str(tmp_path), "--listen-fd", str(process.sock.fileno())]
    process.process = subprocess.Popen(argv, pass_fds=(process.sock.fileno(),), stderr=subprocess.PIPE, text=True)

    async def story():
        halves = (b"", b"GET /li", b"GET /link HTTP/1.1\r\nHost: x\r\n")
        await asyncio.gather(*(told(process.port, half) for half in halves))
        async with FakePeer(process) as silent:
            async with asyncio.timeout(TIMEOUT_S):
                await silent.receive()
                assert "no Hello within" in (await silent.receive()).why

    try:
        asyncio.run(story())
        assert dropped(process) == {"silence": 1}
    finally:
        ended(process)


def certified(tmp_path) -> tuple[Process, Keys]:
    process = Process(tmp_path)
    keys = Keys(tmp_path, "r1")
    keys.certify()
    process.secret = RunSecret((tmp_path / "secret").read_text().strip(), "r1")
    return process, keys


def start_with(process, *arguments):
    argv = [sys.executable, "-m", "everstep.controller", "--run-dir", str(process.run_dir), *arguments]
    process.process = subprocess.Popen(argv, pass_fds=(process.sock.fileno(),), stderr=subprocess.PIPE, text=True)


def test_a_peer_knows_its_controller_by_the_certificate(tmp_path):
    process, keys = certified(tmp_path)
    start_with(process, "--tls-fd", str(process.sock.fileno()))
    good = process.secret.credentials("agent", "n0", keys.fingerprint)
    url = f"ws://127.0.0.1:{process.port}/link"

    async def story():
        async with aiohttp.ClientSession() as session:
            async with connect(session, url, good) as link:
                assert (await introduce(link, good)).spec.program == "train.py"
            other = process.secret.credentials("agent", "n0", "ab" * 32)
            with pytest.raises(aiohttp.ServerFingerprintMismatch):
                await connect(session, url, other)
            plain = process.secret.credentials("agent", "n0")
            with pytest.raises(aiohttp.ClientError):
                await connect(session, url, plain)

    try:
        asyncio.run(story())
        for name in (CERTIFICATE_NAME, KEY_NAME, "secret", "token", "token-read"):
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600, name
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with (
            socket.create_connection(("127.0.0.1", process.port), timeout=TIMEOUT_S) as raw,
            pytest.raises(ssl.SSLError),
        ):
            context.wrap_socket(raw)
    finally:
        ended(process)


def test_nothing_listens_beyond_loopback_without_tls(tmp_path):
    process, _ = certified(tmp_path)
    process.sock.close()
    process.sock = socket.create_server(("0.0.0.0", 0))
    process.port = process.sock.getsockname()[1]
    start_with(process, "--listen-fd", str(process.sock.fileno()))
    _, err = process.process.communicate(timeout=TIMEOUT_S)
    assert process.process.returncode == 2
    assert "would listen on 0.0.0.0 without TLS" in err
    assert not (tmp_path / "journal.jsonl").exists(), "before anything is begun"
    (tmp_path / CERTIFICATE_NAME).unlink()
    start_with(process, "--tls-fd", str(process.sock.fileno()))
    _, err = process.process.communicate(timeout=TIMEOUT_S)
    assert process.process.returncode == 2
    assert "has no tls-cert.pem" in err
    ended(process)


def test_beyond_loopback_reading_needs_a_token_too(tmp_path):
    mine = own_address()
    if mine is None:
        pytest.skip("this machine has no address besides loopback")
    process, keys = certified(tmp_path)
    process.sock.close()
    process.sock = socket.create_server((mine, 0))
    start_with(process, "--tls-fd", str(process.sock.fileno()))
    url = f"https://{mine}:{process.sock.getsockname()[1]}/api/health"
    pinned = aiohttp.Fingerprint(bytes.fromhex(keys.fingerprint))

    async def story():
        async with aiohttp.ClientSession() as session:
            assert (await session.get(url, ssl=pinned)).status == 401
            for right in ("read", "act"):
                headers = {"Authorization": f"Bearer {process.secret.api_token(right)}"}
                assert (await session.get(url, ssl=pinned, headers=headers)).status == 200

    try:
        asyncio.run(story())
    finally:
        ended(process)


def own_address() -> str | None:
    """One of this machine that is not loopback; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.connect(("192.0.2.1", 9))
        return sock.getsockname()[0]
    return None


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_hundred_thousand_hostile_messages_and_the_run_does_not_notice():
    bench = Path(__file__).parents[3] / "bench" / "hostile.py"
    answer = subprocess.run([sys.executable, bench, "--json"], capture_output=True, text=True, timeout=800, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    found = json.loads(answer.stdout)
    assert (found["sent"], found["generations"], found["controllers"]) == (100_000, 1, 1)
    assert {"garbage", "oversized", "replayed", "unauthenticated", "wrong-role"} <= set(found["dropped"])
    assert found["during"]["steps_per_s"] > 0.5 * found["before"]["steps_per_s"]
    assert found["after"]["rss_mib"] < found["before"]["rss_mib"] + 50
    assert found["log_lines"] < 100
