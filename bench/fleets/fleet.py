"""Thousands of synthetic agents in one process, as cheap as they can be made: for `bench/agents.py`.

Their messages go through the real codec once; what changes from report to report (its number, the time, the steps) is
put between the parts that do not. Frames are masked, as a client's have to be. One loop over epoll, no asyncio.
"""

import collections
import contextlib
import os
import resource
import secrets
import select
import socket
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

from aiohttp._websocket.helpers import websocket_mask

from everstep.model import actions, events
from everstep.model.facts import Exit, Held, RankAccount, Started
from everstep.wire.codec import decode_from_controller, encode
from everstep.wire.credentials import Credentials, RunSecret
from everstep.wire.greeting import answer
from everstep.wire.messages import Ack, Beat, Challenge, Command, FromPeer, Reject, Report, Welcome

RANKS = 8
PERIOD_S = 1.0
CONNECTING = 64
"""In their greeting at the same time: a fleet does not connect within one millisecond either."""

_SEQ, _STEP, _AT, _STEP_AT = 0x5EED0001, 0x5EED0002, 1234567890.125, 1234567891.375
_MASK = bytes((0x37, 0xFA, 0x21, 0x3D))
_UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"


def integer(value: int) -> bytes:
    """As msgpack has a number of four bytes."""
    return b"\xce" + value.to_bytes(4, "big")


def real(value: float) -> bytes:
    return b"\xcb" + struct.pack(">d", value)


def frame(payload: bytes, opcode: int = 2) -> bytes:
    """As a client sends it."""
    size = len(payload)
    if size < 126:
        head = bytes((128 | opcode, 128 | size))
    elif size < 1 << 16:
        head = bytes((128 | opcode, 254)) + size.to_bytes(2)
    else:
        head = bytes((128 | opcode, 255)) + size.to_bytes(8)
    masked = bytearray(payload)
    websocket_mask(_MASK, masked)
    return head + _MASK + masked


def cut(message: bytes) -> list[bytes | str]:
    """Around everything that changes, which is named."""
    found: list[bytes | str] = [message]
    for mark, name in ((integer(_SEQ), "seq"), (integer(_STEP), "step"), (real(_AT), "at"), (real(_STEP_AT), "done")):
        split: list[bytes | str] = []
        for part in found:
            if isinstance(part, str):
                split.append(part)
                continue
            first, *others = part.split(mark)
            split.append(first)
            for other in others:
                split += [name, other]
        found = split
    return found


_BEAT = frame(encode(Beat()))


class Peer:
    """One connection."""

    def __init__(self, credentials: Credentials, port: int, fleet: "Fleet | None" = None) -> None:
        self.credentials = credentials
        self.fleet = fleet
        self.is_welcome = False
        self.next_seq = 1
        self.acknowledged = 0
        self._is_upgraded = False
        self._buffer = bytearray()
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"GET /link HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: {credentials.knock}\r\n"
        self.sock.sendall(f"{head}{_UPGRADE}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())

    def say(self, message: FromPeer) -> None:
        self.sock.sendall(frame(encode(message)))

    def report(self, event: events.Event) -> int:
        self.say(Report(source_seq=self.next_seq, event=event))
        self.next_seq += 1
        return self.next_seq - 1

    def read(self) -> None:
        """Raises ConnectionError."""
        data = self.sock.recv(1 << 18)
        if not data:
            raise ConnectionError(f"{self.credentials.name} was cut off")
        self._buffer += data
        if not self._is_upgraded:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                raise ConnectionError(head.decode(errors="replace"))
            self._is_upgraded, self._buffer = True, bytearray(rest)
        while (payload := self._next()) is not None:
            if payload:
                self._take(decode_from_controller(payload))

    def _next(self) -> bytes | None:
        buffer, head = self._buffer, 2
        if len(buffer) < 2:
            return None
        length = buffer[1] & 127
        if length >= 126:
            head = 4 if length == 126 else 10
            if len(buffer) < head:
                return None
            length = int.from_bytes(buffer[2:head])
        if len(buffer) < head + length:
            return None
        payload = bytes(buffer[head : head + length]) if buffer[0] & 15 == 2 else b""
        del buffer[: head + length]
        return payload

    def _take(self, message: object) -> None:
        if isinstance(message, Challenge):
            self.say(answer(self.credentials, message, secrets.token_hex(16)))
        elif isinstance(message, Welcome):
            self.is_welcome = True
            if self.fleet is not None:
                self.fleet.on_welcome(self)
        elif isinstance(message, Reject):
            raise ConnectionError(message.why)
        elif isinstance(message, Ack):
            self.acknowledged = max(self.acknowledged, message.source_seq)
            if self.fleet is not None:
                self.fleet.on_ack(self, message.source_seq)
        elif isinstance(message, Command):
            self.on_command(message.action)

    def on_command(self, action: actions.Action) -> None:
        raise NotImplementedError


class Agent(Peer):
    """Its ranks do a step each second."""

    def __init__(self, credentials: Credentials, port: int, fleet: "Fleet") -> None:
        super().__init__(credentials, port, fleet)
        self._fleet = fleet
        self.node = credentials.name
        self.is_running = False
        self.generation = -1
        self.first_rank = 0
        self._parts: list[bytes | str] = []

    def join(self) -> None:
        self.report(events.NodeJoined(at=time.time(), node=self.node, host=self.node, pid=1))

    def on_command(self, action: actions.Action) -> None:
        now = time.time()
        if isinstance(action, actions.StartWorkers) and action.generation > self.generation:
            self.generation, self.first_rank = action.generation, action.first_rank
            started = tuple(Started(rank=r, pid=r + 1, how="template", at=now) for r in self.ranks())
            self.report(events.WorkersStarted(at=now, node=self.node, generation=self.generation, started=started))
            step, accounts = self._fleet.step(now), self.accounts(now, self._fleet.step(now), now)
            self.report(events.MarksReported(at=now, node=self.node, generation=self.generation, accounts=accounts))
            report = events.ProgressReported(
                at=_AT, node=self.node, generation=self.generation, accounts=self.accounts(now, _STEP, _STEP_AT, step)
            )
            self._parts = cut(encode(Report(source_seq=_SEQ, event=report)))
            self.is_running = True
            self._fleet.num_started += 1
        elif isinstance(action, actions.StopWorkers) and self.is_running and action.generation == self.generation:
            self.is_running = False
            self._fleet.note_stop()
            step = self._fleet.step(now)
            exits = tuple(Exit(rank=r, at=now, signal=15, stopped_by_us=True) for r in self.ranks())
            held = tuple(Held(rank=r, steps=(step,), generations=(self.generation,)) for r in self.ranks())
            accounts = self.accounts(now, step, now)
            self.report(
                events.WorkersStopped(
                    at=now, node=self.node, generation=self.generation, exits=exits, accounts=accounts, held=held
                )
            )

    def tick(self, values: dict[str, bytes]) -> None:
        """A report of progress. `values`: what changes, but for its number."""
        if not self.is_running:
            self.sock.send(_BEAT)
            return
        values["seq"] = integer(self.next_seq)
        self.next_seq += 1
        payload = b"".join([values[part] if isinstance(part, str) else part for part in self._parts])
        self.sock.send(frame(payload))

    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + RANKS)

    def accounts(self, begun: float, step: int, step_at: float, first: int | None = None) -> tuple[RankAccount, ...]:
        return tuple(
            RankAccount(
                rank=rank,
                spawned_at=begun,
                entered_at=begun + 0.01,
                rendezvous_begun_at=begun + 0.02,
                rendezvous_done_at=begun + 0.03,
                loop_at=begun + 0.04,
                first_step=step if first is None else first,
                last_step=step,
                first_step_at=begun + 0.05,
                last_step_at=step_at,
                published_step=step,
                counts_own_steps=True,
            )
            for rank in self.ranks()
        )


class Launcher(Peer):
    """Blocking, in a thread of its own."""

    def on_command(self, action: actions.Action) -> None:
        if isinstance(action, actions.OpenStore):
            opened = events.StoreOpened(at=time.time(), generation=action.generation, host="127.0.0.1", port=1)
            self.report(opened)

    def play(self) -> None:
        """Until the controller is gone."""
        self.sock.settimeout(0.5)
        with contextlib.suppress(ConnectionError, OSError):
            while True:
                with contextlib.suppress(TimeoutError):
                    self.read()
                if self.is_welcome:
                    self.say(Beat())


class Fleet:
    """All of them, in a loop of their own. Told what to do through `pipe`, and answers there."""

    def __init__(self, num_agents: int, secret: RunSecret, port: int, pipe: Connection) -> None:
        self._secret = secret
        self._port = port
        self._pipe = pipe
        self._wanted = [f"n{number}" for number in range(num_agents)][::-1]
        self._agents: list[Agent] = []
        self._by_fd: dict[int, Agent] = {}
        self._greeting = 0
        self._joined = 0
        self._poll = select.epoll()
        self._born = time.time()
        self._number = 0
        self._begun = self._due = time.perf_counter()
        self.num_started = 0
        self._stops: list[float] = []
        self._awaited: dict[tuple[str, int], float] = {}
        self._answered: list[float] = []
        self._late: collections.deque[float] = collections.deque(maxlen=100_000)
        self._num_sent = 0
        self._connected_s = 0.0

    def step(self, now: float) -> int:
        return 100_000 + int(now - self._born)

    def on_welcome(self, peer: Peer) -> None:
        assert isinstance(peer, Agent)
        self._greeting -= 1
        self._agents.append(peer)
        peer.join()

    def on_ack(self, peer: Peer, seq: int) -> None:
        if self._awaited:
            for key in [key for key in self._awaited if key[0] == peer.credentials.name and key[1] <= seq]:
                self._answered.append(time.perf_counter() - self._awaited.pop(key))

    def note_stop(self) -> None:
        self._stops.append(time.perf_counter())

    def play(self) -> None:
        """Until the pipe is closed, or says so."""
        looked = 0.0
        while True:
            self._connect()
            now = time.perf_counter()
            if now - looked > 0.02:
                looked = now
                while self._pipe.poll():
                    if not self._obey(*self._pipe.recv()):
                        return
            for fd, _ in self._poll.poll(self._wait_s(), 512):
                self._by_fd[fd].read()
            self._tick()

    def _connect(self) -> None:
        while self._wanted and self._greeting < CONNECTING:
            agent = Agent(self._secret.credentials("agent", self._wanted.pop()), self._port, self)
            self._by_fd[agent.sock.fileno()] = agent
            self._poll.register(agent.sock, select.EPOLLIN)
            self._greeting += 1
        if not self._wanted and not self._greeting and not self._connected_s:
            self._connected_s = time.perf_counter() - self._begun

    def _wait_s(self) -> float:
        return min(0.005, max(0.0, self._due - time.perf_counter()))

    def _tick(self) -> None:
        """Each once in a second, at its own moment."""
        now, wall = time.perf_counter(), time.time()
        values = {"step": integer(self.step(wall)), "at": real(wall), "done": real(wall - 0.01)}
        for _ in range(100):
            if self._due > now or not self._agents:
                break
            agent = self._agents[self._number % len(self._agents)]
            agent.tick(values)
            self._num_sent += agent.is_running
            self._late.append(now - self._due)
            self._due += PERIOD_S / len(self._agents)
            self._number += 1

    def _obey(self, what: str, *given: Any) -> bool:  # noqa: ANN401
        if what == "progress":
            self._pipe.send((len(self._agents), self.num_started, self._connected_s))
        elif what == "clear":
            self._num_sent, self._answered = 0, []
            self._late.clear()
            self._cpu = time.process_time()
        elif what == "figures":
            late = sorted(self._late)
            self._pipe.send(
                {
                    "sent": self._num_sent,
                    "cpu_s": time.process_time() - self._cpu,
                    "late_p99_s": late[int(0.99 * (len(late) - 1))] if late else 0.0,
                    "answered": sorted(self._answered),
                    "waiting": len(self._awaited),
                }
            )
        elif what == "mark":  # something that is recorded and decides nothing
            agent = self._agents[given[0] % len(self._agents)]
            seq = agent.report(events.TemplateReported(at=time.time(), node=agent.node, usable=True))
            self._awaited[agent.node, seq] = time.perf_counter()
        elif what == "die":  # a rank of one agent
            self._stops, agent = [], self._agents[given[0] % len(self._agents)]
            now = time.time()
            died = Exit(rank=agent.first_rank, at=now, signal=9)
            told = events.WorkerExited(at=now, node=agent.node, generation=agent.generation, exit=died)
            self._died_at, self.num_started = time.perf_counter(), 0
            self._awaited[agent.node, agent.report(told)] = self._died_at
        elif what == "recovery":
            stops = [at - self._died_at for at in self._stops]
            self._pipe.send((self.num_started, len(stops), min(stops, default=None), max(stops, default=None)))
        return what != "end"


def play(num_agents: int, secret_text: str, port: int, pipe: Connection, cores: set[int]) -> None:
    """A process."""
    os.sched_setaffinity(0, cores)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(EOFError):  # who asked has gone
        Fleet(num_agents, RunSecret(secret_text, "bench"), port, pipe).play()
