"""A controller for tests of the agent: a real WebSocket server that speaks everstep.wire and decides nothing.

The test is the brain: it sends actions and waits for events with deadlines.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from aiohttp import WSMsgType, web
from torch.distributed import TCPStore  # here: importing it takes seconds, in which a link would get no answer

from everstep.model import events
from everstep.model.actions import Action, SettleDoubt, StartWorkers, StopWorkers
from everstep.model.spec import Launch, RunSpec
from everstep.wire.codec import decode_from_peer, encode
from everstep.wire.credentials import CREDENTIALS_NAME, RunSecret, parse_knock
from everstep.wire.messages import PROTOCOL, Ack, Beat, Challenge, Command, Hello, Reject, Report, Welcome

E = TypeVar("E")
DEADLINE_S = 60.0  # importing torch on a busy machine; only failures wait so long
RUN = "run"
SECRET = "secret-of-this-run-that-is-long-enough"


class FakeController:
    """Keeps every event once, in order of its number, as a journal would."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec
        self.hellos: list[Hello] = []
        self.events: list[Any] = []
        self.arrived: list[float] = []
        self.last_seq: dict[str, int] = {}
        self.num_duplicates = 0
        self.ack = True
        self.reject = ""
        self.counts_on: bool | None = True  # what is said to a node in doubt; None: nothing
        self.port = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._by_name: dict[str, web.WebSocketResponse] = {}
        self._changed = asyncio.Condition()
        self._num_commands = 0
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_get("/link", self._serve)
        self._runner = web.AppRunner(app, handle_signals=False, shutdown_timeout=0.2)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port, reuse_address=True)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        await self.drop_connections()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def drop_connections(self) -> None:
        for socket in list(self._sockets):
            await socket.close()

    async def send(self, action: Action) -> None:
        self._num_commands += 1
        for socket in list(self._sockets):
            await socket.send_bytes(encode(Command(id=f"{self._num_commands}.0", action=action)))

    async def send_to(self, node: str, action: Action) -> None:
        self._num_commands += 1
        await self._by_name[node].send_bytes(encode(Command(id=f"{self._num_commands}.0", action=action)))

    async def settle(self, doubt: events.NodeInDoubt, *, may_go_on: bool) -> None:
        await self.send(SettleDoubt(why="test", node=doubt.node, number=doubt.number, may_go_on=may_go_on))

    async def send_raw(self, data: bytes) -> None:
        for socket in list(self._sockets):
            await socket.send_bytes(data)

    async def wait(self, kind: type[E], accept: Callable[[E], bool] = lambda _: True, *, skip: int = 0) -> E:
        """The first event of `kind` that is accepted, after the first `skip` events."""
        found: list[E] = []

        def look() -> bool:
            found[:] = [e for e in self.events[skip:] if isinstance(e, kind) and accept(e)][:1]
            return bool(found)

        try:
            async with asyncio.timeout(DEADLINE_S), self._changed:
                await self._changed.wait_for(look)
        except TimeoutError:
            story = "\n".join(f"  {e}"[:400] for e in self.events)
            raise AssertionError(f"no {kind.__name__} within {DEADLINE_S} s; there were:\n{story}") from None
        return found[0]

    def when(self, event: Any) -> float:
        """When it got here."""
        return self.arrived[self.events.index(event)]

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()  # no heartbeat: the test itself may be busy for seconds
        await socket.prepare(request)
        claim = parse_knock(request.headers.get("Authorization", ""))
        assert claim is not None
        role, name, machine = claim
        peer = RunSecret(SECRET, RUN).credentials(role, name, machine=machine)
        await socket.send_bytes(encode(Challenge(challenge="of a test")))
        first = await socket.receive()
        if first.type is not WSMsgType.BINARY:
            return socket
        hello = decode_from_peer(first.data)
        assert isinstance(hello, Hello)
        self.hellos.append(hello)
        if self.reject:
            await socket.send_bytes(encode(Reject(why=self.reject)))
            await socket.close()
            return socket
        last = self.last_seq.setdefault(hello.name, 0)
        assert hello.proof == peer.proof("hello", "of a test", hello.nonce)
        proof = peer.proof("welcome", hello.challenge, hello.nonce)
        await socket.send_bytes(encode(Welcome(protocol=PROTOCOL, spec=self.spec, last_source_seq=last, proof=proof)))
        self._sockets.add(socket)
        self._by_name[hello.name] = socket
        try:
            async for message in socket:
                if message.type is WSMsgType.BINARY:
                    await self._take(socket, hello.name, decode_from_peer(message.data))
        finally:
            self._sockets.discard(socket)
        return socket

    async def _take(self, socket: web.WebSocketResponse, name: str, report: object) -> None:
        if isinstance(report, Beat):
            return
        assert isinstance(report, Report)
        if not self.ack:
            return
        if report.source_seq <= self.last_seq[name]:
            self.num_duplicates += 1
        else:
            assert report.source_seq == self.last_seq[name] + 1, "a report is missing"
            self.last_seq[name] = report.source_seq
            self.events.append(report.event)
            self.arrived.append(time.time())
            async with self._changed:
                self._changed.notify_all()
            if isinstance(report.event, events.NodeInDoubt) and self.counts_on is not None:
                await self.settle(report.event, may_go_on=self.counts_on)
        await socket.send_bytes(encode(Ack(source_seq=report.source_seq)))


class Bench:
    """A fake controller, a real agent, real stores."""

    def __init__(self, tmp_path: Path, controller: FakeController, nproc: int) -> None:
        self.run_dir = tmp_path / "run"
        self.controller = controller
        self.nproc = nproc
        self.agent: subprocess.Popen[bytes] | None = None
        self.stores: list[Any] = []
        self.home = tmp_path / "home"
        self.env: dict[str, str] = {}
        self.keeper_fd: int | None = None
        self.agents: dict[str, subprocess.Popen[bytes]] = {}
        self._agents: list[subprocess.Popen[bytes]] = []

    def start_agent(self, node: str = "n0") -> subprocess.Popen[bytes]:
        self.run_dir.mkdir(exist_ok=True)
        folder = self.run_dir / "nodes" / node
        folder.mkdir(parents=True, exist_ok=True)
        credentials = RunSecret(SECRET, RUN).credentials("agent", node)
        (folder / CREDENTIALS_NAME).write_bytes(msgspec.json.encode(credentials))
        command = [sys.executable, "-m", "everstep.agent", "--run-dir", str(self.run_dir), "--node", node]
        command += ["--controller", f"ws://127.0.0.1:{self.controller.port}/link", "--nproc", str(self.nproc)]
        pass_fds: tuple[int, ...] = ()
        if self.keeper_fd is not None:
            command += ["--keeper-fd", str(self.keeper_fd)]
            pass_fds = (self.keeper_fd,)
        env = {**os.environ, "EVERSTEP_HOME": str(self.home), **self.env}
        self.agent = subprocess.Popen(command, env=env, pass_fds=pass_fds, start_new_session=True)
        self._agents.append(self.agent)
        self.agents[node] = self.agent
        return self.agent

    def store(self) -> int:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.stores.append(store)
        return int(store.port)

    async def start_workers(
        self, generation: int, num_ranks: int | None = None, resume_step: int | None = None
    ) -> None:
        num_ranks = self.nproc if num_ranks is None else num_ranks
        await self.controller.send(
            StartWorkers(
                why="test",
                node="n0",
                generation=generation,
                slot=0,
                first_rank=0,
                num_ranks=num_ranks,
                world_size=num_ranks,
                num_slots=1,
                store_host="127.0.0.1",
                store_port=self.store(),
                resume_step=resume_step,
            )
        )

    async def stop_workers(self, generation: int, grace_s: float = 5.0) -> events.WorkersStopped:
        skip = len(self.controller.events)
        await self.controller.send(StopWorkers(why="test", node="n0", generation=generation, grace_s=grace_s))
        return await self.controller.wait(events.WorkersStopped, lambda e: e.generation == generation, skip=skip)

    def log(self, generation: int, rank: int, name: str = "stdout") -> str:
        """Whole lines only: a rank's stdout has no buffer, so each part of a line that it prints is there by itself."""
        path = self.run_dir / "logs" / f"gen-{generation}" / f"rank-{rank}" / f"{name}.log"
        text = path.read_text() if path.exists() else ""
        return text[: text.rfind("\n") + 1]

    def agent_log(self) -> str:
        return (self.run_dir / "nodes" / "n0" / "agent.log").read_text()

    async def close(self) -> None:
        for agent in self._agents:
            if agent.poll() is None:
                agent.terminate()
                try:
                    await asyncio.to_thread(agent.wait, 20)
                except subprocess.TimeoutExpired:
                    agent.kill()
                    agent.wait()
                    raise
        await self.controller.stop()
        self.stores.clear()
        left = await asyncio.to_thread(wait_gone, lambda: processes_of(self.run_dir), 5.0)
        assert not left, f"processes left over: {left}"


def processes_of(run_dir: Path) -> dict[int, str]:
    """Live processes that were started for this run: its directory is in their environment or on their command line."""
    found = {}
    needle = str(run_dir).encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            state = (folder / "stat").read_text().rsplit(")", 1)[1].split()[0]
            if state != "Z" and needle in (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:1000]
    return found


def wait_gone(look: Callable[[], Any], timeout_s: float) -> Any:
    deadline = time.monotonic() + timeout_s
    while (left := look()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return left


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@contextlib.asynccontextmanager
async def bench(
    tmp_path: Path,
    program: str,
    *,
    nproc: int = 2,
    args: tuple[str, ...] = (),
    launch: Launch = Launch.SCRIPT,
    start: bool = True,
    env: dict[str, str] | None = None,
    watch_hangs: bool = False,
    num_standby: int = 0,
) -> AsyncIterator[Bench]:
    """Everything started, and ended afterwards, whatever happens."""
    spec = RunSpec(
        program=program, args=args, launch=launch, nproc_per_node=nproc, num_standby=num_standby, cwd=str(tmp_path)
    )
    shutil.copy(Path(__file__).with_name("uncompiled.py"), tmp_path)
    made = Bench(tmp_path, FakeController(spec), nproc)
    if watch_hangs:
        made.run_dir.mkdir(exist_ok=True)
        (made.run_dir / "spec.json").write_text('{"policy": {"watch_hangs": true}}')
    # The mark by which `processes_of` finds them, also through forks.
    made.env = {"EVERSTEP_TEST_RUN": str(made.run_dir), **(env or {})}
    await made.controller.start()
    try:
        if start:
            made.start_agent()
            await made.controller.wait(events.NodeJoined)
        yield made
    finally:
        await made.close()


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
