"""A real controller process with real sockets, and peers that misbehave in every way a network allows."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import aiohttp
import msgspec
import pytest
from real_controller import TIMEOUT_S, WANTED, FakePeer, Process, joined, opened, until

from everstep.core.state.policy import Policy
from everstep.model.actions import AcquireNode, OpenStore, StartWorkers
from everstep.model.events import ControllerStarted, MarksReported, NodeJoined, NodeLost, NodeSilent
from everstep.model.facts import RankAccount
from everstep.wire.codec import MAX_FROM_PEER_BYTES, encode
from everstep.wire.messages import PROTOCOL, Ack, Command, Hello, Reject, Report, Welcome


@contextlib.contextmanager
def started(tmp_path, wanted=WANTED):
    process = Process(tmp_path, wanted)
    process.start()
    yield process
    if process.process is not None and process.process.poll() is None:
        process.process.kill()
        process.process.communicate()
    if process.process is not None and process.process.stderr:
        process.process.stderr.close()
    process.sock.close()


@pytest.fixture
def controller(tmp_path):
    with started(tmp_path) as process:
        yield process


@pytest.fixture
def impatient(tmp_path):
    """A controller that soon misses whoever says nothing."""
    with started(tmp_path, msgspec.structs.replace(WANTED, policy=Policy(node_silent_s=0.3))) as process:
        yield process


def test_from_hello_to_start_workers(controller):
    async def story():
        async with FakePeer(controller, "launcher-1", "launcher") as launcher, FakePeer(controller) as agent:
            welcome = await launcher.hello()
            assert isinstance(welcome, Welcome)
            assert welcome.spec == WANTED.spec
            assert (await launcher.command(OpenStore)).generation == 0
            assert (await launcher.command(AcquireNode)).request == "r1"
            await agent.hello()
            await agent.report(joined())
            await launcher.report(opened())
            start = await agent.command(StartWorkers)
            assert (start.node, start.generation, start.world_size) == ("n0", 0, 1)

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"protocol": PROTOCOL + 1}, "install the same everstep"),
        ({"run": "other"}, "belongs to run 'other'"),
        ({"role": "launcher"}, "agent n0 says that it is 'launcher' 'n0'"),
        ({"name": "n1"}, "agent n0 says that it is 'agent' 'n1'"),
        ({"challenge": "0" * 64}, "answers the challenge of another connection"),
        ({"proof": "0" * 64}, "does not have the key of n0"),
    ],
)
def test_a_peer_that_does_not_fit_is_told_why(controller, changes, why):
    async def story():
        async with FakePeer(controller) as peer:
            answer = await peer.hello(**changes)
            assert isinstance(answer, Reject)
            assert why in answer.why

    asyncio.run(story())
    assert sum(controller.health()["dropped"].values()) == 1


def test_garbage_is_counted_and_the_link_stays(controller):
    async def story():
        async with FakePeer(controller) as agent:
            await agent.hello()
            for junk in (b"", b"\x00" * 100, os.urandom(1000), b"\xc1", encode(Ack(source_seq=1))):
                await agent.send(junk)
            await agent.socket.send_str("text")
            await agent.send(Hello(protocol=1, everstep_version="", run="r1", role="agent", name="n0"))
            await agent.send(Report(source_seq=0, event=joined()))
            await agent.report(joined(), seq=1)

    asyncio.run(story())
    assert controller.health()["dropped"]["garbage"] == 8
    assert b'everstep_stale_messages_total{kind="garbage"} 8' in controller.get("/metrics")


def test_an_oversized_frame_closes_only_its_own_link(controller):
    async def story():
        async with FakePeer(controller) as agent:
            await agent.hello()
            with contextlib.suppress(ConnectionError):
                await agent.send(bytes(MAX_FROM_PEER_BYTES + 1))
            message = await agent.socket.receive(timeout=TIMEOUT_S)
            assert message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR)
        async with FakePeer(controller) as agent:
            assert isinstance(await agent.hello(), Welcome)

    asyncio.run(story())
    assert controller.health()["dropped"]["oversized"] == 1


def test_without_the_token_there_is_no_link_and_no_drill(controller):
    asyncio.run(_refused(controller))
    assert controller.post("/api/drill", {"kind": "kill-rank", "rank": 0}, token="wrong")[0] == 401
    assert controller.post("/api/stop", {}, token="")[0] == 401


async def _refused(controller):
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.WSServerHandshakeError, match="401"):
            await session.ws_connect(f"http://127.0.0.1:{controller.port}/link")


@pytest.mark.parametrize("body", [{}, {"kind": "explode"}, {"kind": "exit", "rank": "zero"}, {"kindd": "exit"}, []])
def test_a_malformed_request_is_a_sentence(controller, body):
    status, answer = controller.post("/api/drill", body)
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize("body", [{}, {"rank": 0}, {"rank": 0, "seconds": 0.0}, {"rank": 0, "seconds": 1e9}, []])
def test_a_trace_that_is_none_is_not_asked_for(controller, body):
    status, answer = controller.post("/api/trace", body)
    assert (status, bool(answer["error"])) == (400, True)
    assert controller.post("/api/trace", {"rank": 0, "seconds": 1.0}, token="wrong")[0] == 401


def test_a_killed_controller_is_replaced_and_nothing_is_taken_twice(controller):
    async def before():
        async with FakePeer(controller, "launcher-1", "launcher") as launcher, FakePeer(controller) as agent:
            await launcher.hello()
            await agent.hello()
            await agent.report(joined())
            await launcher.report(opened())

    async def after():
        async with FakePeer(controller) as agent:
            welcome = await agent.hello()
            assert welcome.last_source_seq == 1
            await agent.report(joined(), seq=1)  # it had not seen the acknowledgement
            await agent.report(joined(), seq=2)
            assert (await agent.command(StartWorkers)).generation == 0  # issued again: it was never confirmed

    asyncio.run(before())
    controller.stop(signal.SIGKILL)
    seen = len(controller.events())
    controller.process.stderr.close()
    controller.start()
    asyncio.run(after())
    new = controller.events()[seen:]
    assert isinstance(new[0], ControllerStarted)
    assert new[0].took_over
    assert sum(isinstance(event, NodeJoined) for event in new) == 1
    assert controller.health()["dropped"] == {"duplicate": 1}


def test_a_node_that_stays_silent_is_lost(impatient):
    async def story():
        async with FakePeer(impatient) as agent:
            await agent.hello()
            await agent.report(joined())
        await until(lambda: any(isinstance(event, NodeLost) for event in impatient.events()))

    asyncio.run(story())
    (silent,) = [event for event in impatient.events() if isinstance(event, NodeSilent)]
    (lost,) = [event for event in impatient.events() if isinstance(event, NodeLost)]
    assert "it was silent for" in lost.reason, "no engine told of its end"
    assert lost.at - silent.at >= 0.9, "the engine gets its time to end the node"


def test_a_connected_node_that_stays_silent_is_lost_too(impatient):
    """Frozen, or cut off: the connection looks as it always did."""

    async def story():
        async with FakePeer(impatient) as agent:
            await agent.hello()
            await agent.report(joined())
            await until(lambda: any(isinstance(event, NodeLost) for event in impatient.events()))
            while not isinstance(answer := await agent.receive(), Reject):
                assert isinstance(answer, Command)
            assert "n0 is lost" in answer.why

    asyncio.run(story())


@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_a_node_whose_clock_is_wrong_is_told_in_our_time(controller, ahead_s):
    """Timers are set by the times of events: an hour ahead, nothing would be decided for an hour."""

    async def story():
        async with FakePeer(controller, "launcher-1", "launcher") as launcher, FakePeer(controller) as agent:
            await launcher.hello()
            await agent.hello(clock=time.time() + ahead_s)
            await agent.report(msgspec.structs.replace(joined(), at=time.time() + ahead_s))
            await launcher.report(opened())
            start = await agent.command(StartWorkers)
            at = time.time() + ahead_s
            accounts = (RankAccount(rank=0, spawned_at=at, entered_at=at),)
            await agent.report(MarksReported(at=at, node="n0", generation=start.generation, accounts=accounts))

    asyncio.run(story())
    now = time.time()
    (met,) = [event for event in controller.events() if isinstance(event, NodeJoined)]
    (marked,) = [event for event in controller.events() if isinstance(event, MarksReported)]
    (account,) = marked.accounts
    for at in (met.at, marked.at, account.spawned_at, account.entered_at):
        assert abs(at - now) < TIMEOUT_S
    assert account.first_step_at is None, "what is unknown stays so"


def test_a_node_that_comes_back_in_time_is_not_lost(tmp_path):
    controller = Process(tmp_path, msgspec.structs.replace(WANTED, policy=Policy(node_silent_s=30.0)))
    controller.start()
    try:

        async def story():
            for seq in (1, 2):
                async with FakePeer(controller) as agent:
                    await agent.hello()
                    await agent.report(joined(), seq=seq)

        asyncio.run(story())
        status = json.loads(controller.get("/api/status"))
        assert [node["lost"] for node in status["nodes"]] == [None]
    finally:
        controller.stop()
        controller.sock.close()


def test_a_time_that_is_no_number_is_ignored(controller):
    async def story():
        async with FakePeer(controller) as agent:
            await agent.hello()
            await agent.report(msgspec.structs.replace(joined(), at=float("nan")))
            await agent.report(joined())

    asyncio.run(story())
    assert controller.health()["dropped"]["garbage"] == 1
    assert sum(isinstance(event, NodeJoined) for event in controller.events()) == 1


def test_a_full_disk_is_waited_for(tmp_path):
    """RLIMIT_FSIZE stands for the full disk: the same errno-carrying failure in the same write."""
    signal_was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # inherited: EFBIG instead of death
    controller = Process(tmp_path)
    try:
        controller.start(file_bytes=4096)
        account = RankAccount(rank=0, spawned_at=1.0)

        async def story():
            async with FakePeer(controller, "launcher-1", "launcher") as launcher, FakePeer(controller) as agent:
                await launcher.hello()
                await agent.hello()
                await agent.report(joined())
                await launcher.report(opened())
                event = MarksReported(at=time.time(), node="n0", generation=0, accounts=(account,))
                for seq in range(2, 60):
                    await agent.send(Report(source_seq=seq, event=event))
                await asyncio.to_thread(_wait_unwritable, controller)
                assert controller.post("/api/stop", {})[0] == 503
                resource.prlimit(controller.process.pid, resource.RLIMIT_FSIZE, (-1, -1))
                await agent.report(event, seq=60)
                await launcher.socket.ping()

        asyncio.run(story())
        code, err = controller.stop()
        assert code == 0
        assert "nothing can be decided until the journal can be written again" in err
        assert "the journal is written again" in err
        assert sum(isinstance(event, MarksReported) for event in controller.events()) == 59
    finally:
        signal.signal(signal.SIGXFSZ, signal_was)
        if controller.process.poll() is None:
            controller.process.kill()
            controller.process.communicate()
        controller.sock.close()


def _wait_unwritable(controller: Process) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if controller.health()["journal_writable"] is False:
            return
        time.sleep(0.02)
    raise AssertionError("the journal stayed writable")


def test_a_second_controller_is_refused(controller):
    controller.get("/api/status")
    argv = [sys.executable, "-m", "everstep.controller", "--run-dir", str(controller.run_dir), "--listen-fd"]
    with socket.create_server(("127.0.0.1", 0)) as sock:
        second = subprocess.run(
            [*argv, str(sock.fileno())], pass_fds=(sock.fileno(),), capture_output=True, text=True, timeout=TIMEOUT_S
        )
    assert second.returncode == 5
    assert f"process {controller.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr


def test_the_page_and_the_api_agree(controller):
    status = json.loads(controller.get("/api/status"))
    assert (status["run"], status["status"], status["step"]) == ("r1", "starting", None)
    assert b"everstep_run_step" not in controller.get("/metrics"), "unknown is absent, not 0"
    page = controller.get("/").decode()
    assert "/api/status" in page
    assert "http://" not in page
    assert "https://" not in page
    journal = json.loads(controller.get("/api/journal?after=1"))
    assert [record["seq"] for record in journal["records"]] == [2]
    assert json.loads(controller.get("/api/journal?after=2"))["records"] == []


def test_sigterm_ends_it_in_order(controller):
    controller.get("/api/status")
    code, err = controller.stop()
    assert (code, err) == (0, "")
