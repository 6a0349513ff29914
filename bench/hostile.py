"""What hostile peers do to a run: mutated messages, strangers, floods and recordings against a real controller.

    python bench/hostile.py --messages 100000

A real training of two nodes goes on meanwhile. Shown: its steps per second before, during and after; restarts of the
workers and of the controller (both must be none); how long an honest peer waits for an answer; the
controller's memory; what was turned away, by kind. The attackers take their share of the same processors.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import aiohttp
import msgspec

from everstep.controller.record.spec_file import Address
from everstep.errors import WireError
from everstep.model.observations import SignalsReported
from everstep.wire.codec import MAX_FROM_PEER_BYTES, encode
from everstep.wire.credentials import RunSecret
from everstep.wire.greeting import RejectedError, Socket, connect, introduce, receive
from everstep.wire.messages import Ack, Report
from fleets.hostile_messages import hostile_messages
from measuring.figures import quantile, table

NUM_FUZZERS = 20
PROBE_EVERY_S = 0.05
LAST_SEQ = 1 << 62
TRAIN = """
import sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(10_000_000):
    model(torch.ones(8, 64)).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step(); optimizer.zero_grad()
    print("step", step, flush=True)
    time.sleep(0.02)
"""


class Target:
    """A run that is under attack."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.address = msgspec.json.decode((run_dir / "controller.json").read_bytes(), type=Address)
        run = json.loads((run_dir / "spec.json").read_bytes())["run"]
        self.secret = RunSecret((run_dir / "secret").read_text().strip(), run)
        self.url = f"ws://127.0.0.1:{self.address.port}/link"

    def step(self) -> int:
        lines = (self.run_dir / "logs/gen-0/rank-0/stdout.log").read_bytes()[-200:].splitlines()
        return int(lines[-2].split()[1]) if len(lines) > 2 else 0

    def rss_mib(self) -> float:
        text = Path(f"/proc/{self.address.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", text)
        assert found is not None
        return int(found[1]) / 1024

    def get(self, path: str) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {self.secret.api_token('read')}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.address.port}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            body: dict[str, object] = json.loads(answer.read())
            return body


async def fuzz(target: Target, name: str, num_messages: int, seed: int) -> int:
    """An agent that the launcher once started, gone mad. Returns the number of messages sent."""
    source, sent = hostile_messages(name, ["n0", "n1"], seed), 0
    async with aiohttp.ClientSession() as session:
        while sent < num_messages:
            with contextlib.suppress(aiohttp.ClientError, OSError, RejectedError):
                credentials = target.secret.credentials("agent", name)
                async with connect(session, target.url, credentials) as socket:
                    await introduce(socket, credentials)
                    reader = asyncio.create_task(_read_to_the_end(socket))
                    while sent < num_messages and not socket.closed:
                        await socket.send_bytes(next(source))
                        sent += 1
                    event = SignalsReported(at=time.time(), node=name, generation=0, signals=())
                    await socket.send_bytes(encode(Report(source_seq=LAST_SEQ, event=event)))
                    await reader
                    if seed % 4 == 0:
                        await socket.send_bytes(bytes(MAX_FROM_PEER_BYTES + 1))
                        await _read_to_the_end(socket)
    return sent


async def _read_to_the_end(socket: Socket) -> None:
    """Until the last report is acknowledged, so everything before it was read; or the connection is gone."""
    with contextlib.suppress(aiohttp.ClientError, OSError, WireError):
        while True:
            answer = await receive(socket)
            if isinstance(answer, Ack) and answer.source_seq >= LAST_SEQ:
                return


async def strangers(target: Target, until: float) -> None:
    """Garbage, wrong tokens, half requests that never end, as fast as they are let."""

    async def one(kind: int) -> None:
        while time.monotonic() < until:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection("127.0.0.1", target.address.port)
                if kind == 0:
                    writer.write(os.urandom(2000))
                elif kind == 1:
                    writer.write(b"GET /link HTTP/1.1\r\nHost: x\r\nAuthorization: Everstep agent:n0:00\r\n\r\n")
                elif kind == 2:
                    writer.write(b"POST /api/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
                else:
                    writer.write(b"GET /li")
                await asyncio.wait_for(reader.read(1000), 3.0)
                writer.close()

    await asyncio.gather(*(one(number % 4) for number in range(16)))


async def recordings(target: Target, num_times: int) -> None:
    """A connection of an honest agent, recorded on its way, and played again."""
    taped = bytearray()

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", target.address.port)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, tape: bytearray | None) -> None:
            with contextlib.suppress(OSError):
                while data := await source.read(65536):
                    if tape is not None:
                        tape.extend(data)
                    sink.write(data)

        await asyncio.gather(pump(reader, inner_writer, taped), pump(inner_reader, writer, None))

    server = await asyncio.start_server(forward, "127.0.0.1", 0)
    credentials = target.secret.credentials("agent", "taped")
    async with aiohttp.ClientSession() as session:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/link"
        async with connect(session, url, credentials) as socket:
            await introduce(socket, credentials)
    for _ in range(num_times):
        reader, writer = await asyncio.open_connection("127.0.0.1", target.address.port)
        writer.write(bytes(taped))
        with contextlib.suppress(OSError, TimeoutError):
            await asyncio.wait_for(reader.read(-1), 5.0)
        writer.close()


def attack(run_dir: Path, num_messages: int, sent: "multiprocessing.Queue[int]") -> None:
    """In a process of its own."""
    target = Target(run_dir)

    async def all_of_it() -> None:
        busy = asyncio.create_task(strangers(target, time.monotonic() + 20.0))
        tape = asyncio.create_task(recordings(target, 20))
        each = num_messages // NUM_FUZZERS
        counts = await asyncio.gather(*(fuzz(target, f"evil{i}", each, i) for i in range(NUM_FUZZERS)))
        await asyncio.gather(busy, tape)
        sent.put(sum(counts))

    asyncio.run(all_of_it())


async def probe(target: Target, is_over: "asyncio.Event") -> list[float]:
    """Seconds from an honest peer's report to its acknowledgement."""
    waits, number = [], 0
    credentials = target.secret.credentials("agent", "probe")
    async with aiohttp.ClientSession() as session, connect(session, target.url, credentials) as socket:
        number = (await introduce(socket, credentials)).last_source_seq
        while not is_over.is_set():
            number += 1
            event = SignalsReported(at=time.time(), node="probe", generation=0, signals=())
            begun = time.perf_counter()
            await socket.send_bytes(encode(Report(source_seq=number, event=event)))
            while True:
                answer = await receive(socket)
                if isinstance(answer, Ack) and answer.source_seq >= number:
                    break
            waits.append(time.perf_counter() - begun)
            await asyncio.sleep(PROBE_EVERY_S)
    return waits


async def phase(target: Target, work: "asyncio.Future[None]") -> dict[str, float]:
    is_over, peak = asyncio.Event(), 0.0
    begun, first = time.monotonic(), target.step()
    probing = asyncio.create_task(probe(target, is_over))
    while not work.done():
        await asyncio.wait({work}, timeout=0.2)
        peak = max(peak, target.rss_mib())
    took_s = time.monotonic() - begun
    steps = target.step() - first
    is_over.set()
    waits = await probing
    return {
        "took_s": took_s,
        "steps_per_s": steps / took_s,
        "ack_p50_ms": 1e3 * (quantile(waits, 0.5) or 0),
        "ack_p99_ms": 1e3 * (quantile(waits, 0.99) or 0),
        "rss_mib": peak,
    }


async def measure(run_dir: Path, num_messages: int, calm_s: float) -> dict[str, object]:
    target = Target(run_dir)
    found: dict[str, object] = {"before": await phase(target, asyncio.ensure_future(asyncio.sleep(calm_s)))}
    sent: multiprocessing.Queue[int] = multiprocessing.Queue()
    attacker = multiprocessing.Process(target=attack, args=(run_dir, num_messages, sent))
    attacker.start()
    found["during"] = await phase(target, asyncio.ensure_future(asyncio.to_thread(attacker.join)))
    found["sent"] = sent.get(timeout=1)
    found["after"] = await phase(target, asyncio.ensure_future(asyncio.sleep(calm_s)))
    health = target.get("/api/health")
    text = (run_dir / "journal.jsonl").read_text()
    found |= {
        "dropped": health["dropped"],
        "loop_lag_s": health["loop_lag_s"],
        "generations": len(list((run_dir / "logs").glob("gen-*"))),
        "controllers": text.count('"ControllerStarted"'),
        "journal_kib": len(text) / 1024,
        "log_lines": len((run_dir / "controller.log").read_text().splitlines()),
    }
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--calm-s", type=float, default=15.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    multiprocessing.set_start_method("spawn")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        (Path(folder) / "train.py").write_text(TRAIN)
        argv = [
            sys.executable,
            "-m",
            "everstep.cli.main",
            "run",
            "--local-nodes",
            "2",
            "--run-dir",
            str(run_dir),
            "train.py",
        ]
        env = {**os.environ, "EVERSTEP_HOME": str(Path(folder) / "home")}
        with (Path(folder) / "out").open("wb") as out:
            run = subprocess.Popen(argv, cwd=folder, env=env, stdout=out, stderr=out)
        try:
            _await_training(run_dir, run)
            found = asyncio.run(measure(run_dir, given.messages, given.calm_s))
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(60)
    print(json.dumps(found, indent=1) if given.json else _text(found))
    return 0 if (found["generations"], found["controllers"]) == (1, 1) else 1


def _await_training(run_dir: Path, run: "subprocess.Popen[bytes]") -> None:
    log, deadline = run_dir / "logs/gen-0/rank-0/stdout.log", time.monotonic() + 180
    while not (log.exists() and b"step 20\n" in log.read_bytes()):
        if run.poll() is not None or time.monotonic() > deadline:
            raise SystemExit("the training did not start")
        time.sleep(0.1)


def _text(found: dict[str, object]) -> str:
    rows = []
    for name in ("before", "during", "after"):
        one = found[name]
        assert isinstance(one, dict)
        rows.append([name, *(f"{one[key]:.1f}" for key in one)])
    head = table(["", "s", "steps/s", "ack p50 ms", "ack p99 ms", "controller MiB"], rows)
    rest = [f"{key}: {found[key]}" for key in found if key not in ("before", "during", "after")]
    return "\n".join([head, "", *rest])


if __name__ == "__main__":
    sys.exit(main())
