"""A real controller process, and peers that say to it, byte for byte, what a test wants said."""

import asyncio
import json
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import msgspec

from everstep.controller.record.spec_file import SpecFile, save_json
from everstep.core.state.policy import Policy
from everstep.journal.reader import read_journal
from everstep.model.events import NodeJoined, StoreOpened
from everstep.model.spec import RunSpec
from everstep.wire.codec import decode_from_controller, encode
from everstep.wire.credentials import RunSecret
from everstep.wire.greeting import answer, connect
from everstep.wire.messages import Ack, Challenge, Command, Report

WANTED = SpecFile(run="r1", spec=RunSpec(program="train.py", nproc_per_node=1), policy=Policy(node_silent_s=600.0))
"""Misses nobody during a test."""
TIMEOUT_S = 60.0
SECRET = "secret of a test, and long enough"


class Process:
    """One controller at a time on a port that stays, as the launcher does it."""

    def __init__(self, run_dir: Path, wanted: SpecFile = WANTED) -> None:
        self.run_dir = run_dir
        self.secret = RunSecret(SECRET, wanted.run)
        self.token = self.secret.api_token("act")
        (run_dir / "secret").write_text(SECRET)
        save_json(run_dir / "spec.json", wanted)
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.port = self.sock.getsockname()[1]
        self.process: subprocess.Popen[str] | None = None

    def start(self, **limits: int) -> None:
        argv = [sys.executable, "-m", "everstep.controller", "--run-dir", str(self.run_dir)]
        argv += ["--listen-fd", str(self.sock.fileno())]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limits["file_bytes"], -1))) if limits else None
        self.process = subprocess.Popen(
            argv, pass_fds=(self.sock.fileno(),), stderr=subprocess.PIPE, text=True, preexec_fn=limit
        )

    def stop(self, number: int = signal.SIGTERM) -> tuple[int, str]:
        assert self.process is not None
        self.process.send_signal(number)
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, err

    def get(self, path: str) -> bytes:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        request.add_header("Authorization", f"Bearer {self.secret.api_token('read')}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.read()

    def health(self) -> dict:
        return json.loads(self.get("/api/health"))

    def post(self, path: str, body: object, token: str | None = None) -> tuple[int, dict]:
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=json.dumps(body).encode())
        request.add_header("Authorization", f"Bearer {self.token if token is None else token}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def events(self) -> list[object]:
        return [entry.event for entry in read_journal(self.run_dir / "journal.jsonl").entries]


class FakePeer:
    """What an agent or the launcher would say, byte for byte."""

    def __init__(self, controller: Process, name: str = "n0", role: str = "agent") -> None:
        self.controller, self.name, self.role = controller, name, role
        self.seq = 0
        self.commands: list[object] = []

    async def __aenter__(self):
        self.session = aiohttp.ClientSession()
        self.credentials = self.controller.secret.credentials(self.role, self.name)
        self.socket = await connect(self.session, f"http://127.0.0.1:{self.controller.port}/link", self.credentials)
        return self

    async def __aexit__(self, *_):
        await self.socket.close()
        await self.session.close()

    async def send(self, message) -> None:
        await self.socket.send_bytes(message if isinstance(message, bytes) else encode(message))

    async def receive(self):
        message = await self.socket.receive(timeout=TIMEOUT_S)
        assert message.type is aiohttp.WSMsgType.BINARY, message
        return decode_from_controller(message.data)

    async def hello(self, **changes):
        challenge = await self.receive()
        assert isinstance(challenge, Challenge)
        await self.send(msgspec.structs.replace(answer(self.credentials, challenge, "nonce"), **changes))
        return await self.receive()

    async def report(self, event, seq: int | None = None) -> None:
        """Sends, and waits until it is on record. Commands that come meanwhile are kept."""
        self.seq = self.seq + 1 if seq is None else seq
        await self.send(Report(source_seq=self.seq, event=event))
        while True:
            answer = await self.receive()
            if isinstance(answer, Command):
                self.commands.append(answer.action)
            elif isinstance(answer, Ack) and answer.source_seq == self.seq:
                return

    async def command(self, kind):
        while True:
            for action in self.commands:
                if isinstance(action, kind):
                    self.commands.remove(action)
                    return action
            answer = await self.receive()
            if isinstance(answer, Command):
                self.commands.append(answer.action)


def joined(node="n0"):
    return NodeJoined(at=time.time(), node=node, host="h", pid=1)


def opened(generation=0):
    return StoreOpened(at=time.time(), generation=generation, host="127.0.0.1", port=1)


async def until(condition) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await asyncio.sleep(0.02)
