"""The controller with very many agents: real sockets, the real protocol, one report a second from each.

    python bench/agents.py [--agents 1000 4000 12500] [--seconds 30] [--json]

Starts a controller as the launcher does, and plays launcher and agents: they connect and prove who they are, join,
start their eight ranks, and report the progress of all of them every second, at moments spread over the second. The
agents live in two processes of their own; their frames are those of the WebSocket protocol, their messages go through
the real codec, and every answer is decoded. The controller gets one core, and everything else the other cores.

Handling is measured by the controller (`/api/health`): from a report's arrival until it is settled, that is recorded or
kept aside, and its acknowledgement is on its way. The round trip is measured by the agents and includes what they are
late themselves. The first seconds, in which a young generation is recorded more densely, are counted.
"""

import argparse
import asyncio
import collections
import json
import multiprocessing
import os
import resource
import secrets
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

from everstep.controller.spec_file import SECRET_NAME, SpecFile, save_json
from everstep.core.policy import Policy
from everstep.model import actions, events
from everstep.model.facts import RankAccount, Started
from everstep.model.spec import RunSpec
from everstep.wire.codec import decode_from_controller, encode
from everstep.wire.credentials import Credentials, RunSecret
from everstep.wire.greeting import answer
from everstep.wire.messages import Ack, Beat, Challenge, Command, FromPeer, Reject, Report, Welcome

RANKS = 8
NUM_SENDERS = 2
PERIOD_S = 1.0
CONNECTING = 64
"""At the same time, in each process: a real fleet does not connect within one millisecond either."""


class Peer(asyncio.Protocol):
    """One connection: the WebSocket protocol by hand, because thousands of clients must cost little."""

    def __init__(self, credentials: Credentials, port: int) -> None:
        self._credentials = credentials
        self._port = port
        self._buffer = bytearray()
        self._is_upgraded = False
        self._next_seq = 1
        self._sent: collections.deque[tuple[int, float]] = collections.deque()
        self.welcome: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.round_trips: list[float] = []
        self.num_acknowledged = 0
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        head = f"GET /link HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAuthorization: {self._credentials.knock}\r\n"
        upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        transport.write(f"{head}{upgrade}Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n".encode())

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if not self.welcome.done():
            self.welcome.set_exception(error or ConnectionError("closed before Welcome"))

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._is_upgraded:
            head, end, rest = bytes(self._buffer).partition(b"\r\n\r\n")
            if not end:
                return
            if b" 101 " not in head.split(b"\r\n")[0]:
                self.welcome.set_exception(ConnectionError(head.decode(errors="replace")))
                return
            self._is_upgraded, self._buffer = True, bytearray(rest)
        while (frame := self._next_frame()) is not None:
            opcode, payload = frame
            if opcode == 2:
                self._take(decode_from_controller(payload))
            elif opcode == 9:
                self._write(10, payload)

    def _next_frame(self) -> tuple[int, bytes] | None:
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
        frame = buffer[0] & 15, bytes(buffer[head : head + length])
        del buffer[: head + length]
        return frame

    def _write(self, opcode: int, payload: bytes) -> None:
        """Masked with zeros, which changes nothing and is allowed."""
        size = len(payload)
        length = bytes((128 | size,)) if size < 126 else bytes((254,)) + size.to_bytes(2)
        self._transport.write(bytes((128 | opcode,)) + length + bytes(4) + payload)

    def say(self, message: FromPeer) -> None:
        self._write(2, encode(message))

    def report(self, event: events.Event) -> None:
        self._sent.append((self._next_seq, time.perf_counter()))
        self.say(Report(source_seq=self._next_seq, event=event))
        self._next_seq += 1

    def _take(self, message: object) -> None:
        if isinstance(message, Challenge):
            self.say(answer(self._credentials, message, secrets.token_hex(16)))
        elif isinstance(message, Welcome):
            self.welcome.set_result(None)
        elif isinstance(message, Reject):
            raise ConnectionError(message.why)
        elif isinstance(message, Ack):
            now = time.perf_counter()
            while self._sent and self._sent[0][0] <= message.source_seq:
                self.round_trips.append(now - self._sent.popleft()[1])
                self.num_acknowledged += 1
        elif isinstance(message, Command):
            self.on_command(message.action)

    def on_command(self, action: actions.Action) -> None:
        raise NotImplementedError


class Launcher(Peer):
    def on_command(self, action: actions.Action) -> None:
        if isinstance(action, actions.OpenStore):
            opened = events.StoreOpened(at=time.time(), generation=action.generation, host="127.0.0.1", port=1)
            self.report(opened)


class Agent(Peer):
    """Its ranks do a step each second."""

    def __init__(self, credentials: Credentials, port: int) -> None:
        super().__init__(credentials, port)
        self._node = credentials.name
        self.begin_s = 0.0
        self.is_running = False

    def join(self) -> None:
        self.report(events.NodeJoined(at=time.time(), node=self._node, host=self._node, pid=1))

    def on_command(self, action: actions.Action) -> None:
        if not isinstance(action, actions.StartWorkers) or self.is_running:
            return
        now = time.time()
        self._generation, self._first_rank, self.begin_s = action.generation, action.first_rank, now
        started = tuple(Started(rank=r, pid=r + 1, how="template", at=now) for r in self._ranks())
        self.report(events.WorkersStarted(at=now, node=self._node, generation=self._generation, started=started))
        self.report(
            events.MarksReported(at=now, node=self._node, generation=self._generation, accounts=self._accounts(0))
        )
        self.is_running = True

    def tick(self) -> None:
        if not self.is_running:
            self.say(Beat())
            return
        now = time.time()
        accounts = self._accounts(int(now - self.begin_s))
        self.report(events.ProgressReported(at=now, node=self._node, generation=self._generation, accounts=accounts))

    def _ranks(self) -> range:
        return range(self._first_rank, self._first_rank + RANKS)

    def _accounts(self, step: int) -> tuple[RankAccount, ...]:
        begun = self.begin_s
        return tuple(
            RankAccount(
                rank=rank,
                spawned_at=begun,
                entered_at=begun + 0.01,
                rendezvous_begun_at=begun + 0.02,
                rendezvous_done_at=begun + 0.03,
                loop_at=begun + 0.04,
                first_step=0,
                last_step=step,
                first_step_at=begun + 0.05,
                last_step_at=begun + step + 0.05,
                published_step=step,
                counts_own_steps=True,
            )
            for rank in self._ranks()
        )


async def connected(peer: Peer, port: int, room: asyncio.Semaphore) -> None:
    async with room:
        await asyncio.get_running_loop().create_connection(lambda: peer, "127.0.0.1", port)
        await asyncio.wait_for(peer.welcome, 120)


async def play_agents(numbers: range, secret: RunSecret, port: int, ready: Connection, stop: Flag) -> None:
    agents = [Agent(secret.credentials("agent", f"n{number}"), port) for number in numbers]
    room = asyncio.Semaphore(CONNECTING)
    loop = asyncio.get_running_loop()
    beating = loop.create_task(tick_all(agents, stop))
    await asyncio.gather(*(connected(agent, port, room) for agent in agents))
    for agent in agents:
        agent.join()
        await asyncio.sleep(0.001)
    while not all(agent.is_running for agent in agents):
        await asyncio.sleep(0.1)
    ready.send("running")
    while not stop.is_set():
        await asyncio.sleep(0.1)
        if ready.poll():
            ready.recv()
            for agent in agents:
                agent.round_trips, agent.num_acknowledged = [], 0
    beating.cancel()
    if any(agent.is_lost for agent in agents):
        raise SystemExit("connections were lost")
    trips = sorted(trip for agent in agents for trip in agent.round_trips)
    ready.send((sum(agent.num_acknowledged for agent in agents), trips[:: max(1, len(trips) // 10_000)]))


async def tick_all(agents: list[Agent], stop: Flag) -> None:
    """Each once in a second, at its own moment."""
    begun, number = time.perf_counter(), 0
    while not stop.is_set():
        due = begun + PERIOD_S * number / len(agents)
        wait_s = due - time.perf_counter()
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        together = agents[number % len(agents) :][:20]
        for agent in together:
            if agent.welcome.done() and not agent.is_lost:
                agent.tick()
        number += len(together)


def send(numbers: range, secret_text: str, port: int, ready: Connection, stop: Flag, cores: set[int]) -> None:
    os.sched_setaffinity(0, cores)
    asyncio.run(play_agents(numbers, RunSecret(secret_text, "bench"), port, ready, stop))


class Watched:
    """The controller's process, seen from outside."""

    def __init__(self, run_dir: Path, pid: int, port: int) -> None:
        self._journal = run_dir / "journal.jsonl"
        self._pid = pid
        self._port = port

    def health(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/api/health", timeout=60) as got:
            found: dict[str, Any] = json.load(got)
        return found

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

    def journal_mb(self) -> float:
        return self._journal.stat().st_size / 1e6


async def measure(num_agents: int, seconds: float) -> dict[str, Any]:
    cores = sorted(os.sched_getaffinity(0))
    others = set(cores[1:]) or set(cores)
    spec = RunSpec(program="train.py", num_slots=num_agents, nproc_per_node=RANKS)
    with tempfile.TemporaryDirectory(prefix="everstep-agents-") as folder, socket.create_server(("127.0.0.1", 0)) as at:
        run_dir, secret_text, port = Path(folder), secrets.token_hex(32), at.getsockname()[1]
        (run_dir / SECRET_NAME).write_text(secret_text)
        policy = Policy(node_timeout_s=600.0, start_timeout_s=600.0)
        save_json(run_dir / "spec.json", SpecFile(run="bench", spec=spec, policy=policy))
        argv = [sys.executable, "-m", "everstep.controller", "--run-dir", folder, "--listen-fd", str(at.fileno())]
        controller = subprocess.Popen(
            argv, pass_fds=(at.fileno(),), preexec_fn=lambda: os.sched_setaffinity(0, {cores[0]})
        )
        os.sched_setaffinity(0, others)
        stop, pipes, senders = multiprocessing.Event(), [], []
        try:
            launcher = Launcher(RunSecret(secret_text, "bench").credentials("launcher", "launcher-1"), port)
            await connected(launcher, port, asyncio.Semaphore(1))
            asyncio.get_running_loop().create_task(beat(launcher))
            begun = time.monotonic()
            for number in range(NUM_SENDERS):
                share = range(number, num_agents, NUM_SENDERS)
                mine, theirs = multiprocessing.Pipe()
                sender = multiprocessing.Process(target=send, args=(share, secret_text, port, theirs, stop, others))
                sender.start()
                pipes.append(mine)
                senders.append(sender)
            for pipe in pipes:
                await asyncio.to_thread(pipe.recv)
            forming_s = time.monotonic() - begun
            print(f"{num_agents} agents: all ranks run after {forming_s:.1f} s", file=sys.stderr)
            row = await watch(Watched(run_dir, controller.pid, port), seconds, pipes)
            stop.set()
            answers = [await asyncio.to_thread(pipe.recv) for pipe in pipes]
            trips = sorted(trip for _, some in answers for trip in some)
            per_s = sum(count for count, _ in answers) / row["seconds"]
            row |= {"agents": num_agents, "forming_s": forming_s, "acknowledged_per_s": per_s}
            return row | {"round_trip_p99_ms": 1e3 * trips[int(0.99 * (len(trips) - 1))] if trips else None}
        finally:
            stop.set()
            controller.kill()
            controller.wait()
            for sender in senders:
                sender.kill()
                sender.join()
            os.sched_setaffinity(0, set(cores))


async def beat(launcher: Launcher) -> None:
    while True:
        launcher.say(Beat())
        await asyncio.sleep(PERIOD_S)


async def watch(seen: Watched, seconds: float, pipes: "list[Connection[Any, Any]]") -> dict[str, Any]:
    await asyncio.sleep(2.0)
    for pipe in pipes:
        pipe.send("count from now")
    begun, cpu_s, journal_mb = time.monotonic(), seen.cpu_s(), seen.journal_mb()
    lags, p99s, medians, rss = [], [], [], []
    while time.monotonic() - begun < seconds:
        await asyncio.sleep(1.0)
        health = await asyncio.to_thread(seen.health)
        lags.append(health["loop_lag_s"])
        p99s.append(health["handling"]["p99_s"])
        medians.append(health["handling"]["median_s"])
        rss.append(seen.rss_mb())
    took_s = time.monotonic() - begun
    return {
        "seconds": took_s,
        "handling_median_ms": 1e3 * statistics.median(medians),
        "handling_p99_ms": 1e3 * statistics.median(p99s),
        "handling_p99_worst_ms": 1e3 * max(p99s),
        "lag_median_ms": 1e3 * statistics.median(lags),
        "lag_worst_ms": 1e3 * max(lags),
        "cpu_share": (seen.cpu_s() - cpu_s) / took_s,
        "rss_mb": max(rss),
        "journal_mb_per_min": 60 * (seen.journal_mb() - journal_mb) / took_s,
    }


COLUMNS = {
    "agents": ("agents", "{:,}"),
    "acknowledged_per_s": ("reports/s", "{:,.0f}"),
    "handling_median_ms": ("handled in", "{:.2f} ms"),
    "handling_p99_ms": ("p99", "{:.1f} ms"),
    "handling_p99_worst_ms": ("worst p99", "{:.1f} ms"),
    "lag_median_ms": ("loop lag", "{:.1f} ms"),
    "lag_worst_ms": ("worst", "{:.0f} ms"),
    "cpu_share": ("core", "{:.0%}"),
    "rss_mb": ("memory", "{:,.0f} MB"),
    "journal_mb_per_min": ("journal", "{:.1f} MB/min"),
    "forming_s": ("to run", "{:.0f} s"),
}


def render(rows: list[dict[str, Any]]) -> str:
    lines = [[title for title, _ in COLUMNS.values()]]
    lines += [[form.format(row[name]) for name, (_, form) in COLUMNS.items()] for row in rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 4_000, 12_500])
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    multiprocessing.set_start_method("spawn")
    if hard < max(given.agents) + 200:
        parser.error(f"{max(given.agents)} agents need as many open files, and {hard} are allowed (ulimit -Hn)")
    rows = [asyncio.run(measure(num_agents, given.seconds)) for num_agents in given.agents]
    print(json.dumps(rows) if given.json else render(rows))


if __name__ == "__main__":
    main()
