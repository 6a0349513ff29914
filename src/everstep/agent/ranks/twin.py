"""One twin of a rank, seen from the agent: its socket, what it can do, and the process that continues from it."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.channel import Channel
from everstep.agent.versions.placing import Placed
from everstep.linux.children import Ended
from everstep.linux.regular import regular
from everstep.wire import local
from everstep.wire.frames import ToTwin

APPEAR_S = 2.0
"""A twin that was forked says so within milliseconds; where it does not, a fresh interpreter takes longer still."""


class TwinOwner(Protocol):
    """The owner of the twins, which prepares what a node comes back from."""

    def tell_session(self, pid: int) -> None:
        """Report that a process leads a session of its own, and waits: it must not outlive the agent."""

    def note_news(self) -> None:
        """There is a twin more, or one less."""

    def note_proven(self, told: Ahead) -> None:
        """A twin has imported all of it."""

    def note_idle(self, idle: Sequence[tuple[int, "Twin"]]) -> None:
        """These twins wait, with their local ranks: they could serve another agent if this one were killed."""


class Awake(msgspec.Struct, frozen=True, kw_only=True):
    """A process that continues from a twin and waits for its assignment. Its taker owns the socket."""

    pid: int
    link: socket.socket
    stage: str
    prefix: "Prefix"


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """What the program had written when the twin was left: a new start would write it again."""

    stdout: Path
    stderr: Path
    out_bytes: int | None = None  # None: all
    err_bytes: int | None = None

    def read(self) -> tuple[bytes, bytes]:
        """The output of stdout, and of stderr if that is another file. What cannot be read is not shown again."""
        is_one = self.stdout == self.stderr
        return _read(self.stdout, self.out_bytes), b"" if is_one else _read(self.stderr, self.err_bytes)


def _read(path: Path, size: int | None) -> bytes:
    try:
        with regular(path) as file:
            return file.read() if size is None else file.read(max(size, 0))
    except OSError:
        return b""


class Twin:
    """One of them, from the moment when its socket is here."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        stage: str,
        placed: Placed,
        prefix: Prefix,
        reads: int = 0,
        is_last: bool = False,
    ) -> None:
        self.stage = stage
        self.placed = placed
        self.prefix = prefix
        self.reads = reads
        self.is_last = is_last  # left at the last moment at which its rank could leave one
        self.pid = 0
        self.pid_ahead = 0
        """The process that it has forked ahead, which continues when the rank has to come back; 0: none."""
        self.num_modules = 0
        self.has_imported = False  # or does so now, or cannot
        self.is_leaving_another = False
        """Another one is made of it, which imports ahead, and would end with the agent."""
        self.outlives = True
        """It may serve the next agent if this one is killed: it has nothing that this one reads."""
        self.told_at = time.monotonic()
        self.why_over = ""
        self._answers: asyncio.Queue[tuple[local.Frame, list[int]]] = asyncio.Queue()
        self._busy = asyncio.Lock()
        self._is_asked = False  # an answer may be on its way, which another agent would take for its own
        self.channel = Channel(sock, self._on_frame, self._on_closed)
        self.is_here = asyncio.Event()
        self.is_made = asyncio.Event()  # it has imported ahead, or will not
        self.on_here: Callable[[Twin], None] = lambda _: None
        self.on_gone: Callable[[Twin], None] = lambda _: None
        self.on_change: Callable[[], None] = lambda: None
        """It can serve another agent now, or cannot any more."""

    def _on_frame(self, frame: local.Frame, fds: list[int]) -> None:
        if frame.get("is") == "here":
            self.pid, self.num_modules = int(frame.get("pid", 0)), int(frame.get("num_modules", 0))
            self.is_here.set()
            self.on_here(self)
            return
        self._answers.put_nowait((frame, fds))

    def _on_closed(self, why: str) -> None:
        self.why_over = self.why_over or f"its twin ({self.stage}) has ended: {why}"
        self.is_here.set()
        self.on_gone(self)
        self._answers.put_nowait(({"is": "over"}, []))

    async def ask(self, frame: ToTwin, timeout_s: float) -> tuple[local.Frame, list[int]]:
        """One answer to one request. Raises TimeoutError; the twin is unusable then."""
        async with self._busy:
            self._is_asked = True
            self.on_change()
            if self.why_over or not self.channel.send(frame):
                return {"is": "over"}, []
            async with asyncio.timeout(timeout_s):
                answer = await self._answers.get()
            self._is_asked = False
        self.on_change()
        return answer

    async def appear(self) -> None:
        """It was forked a moment ago, or nothing is to be had of it."""
        try:
            async with asyncio.timeout(APPEAR_S):
                await self.is_here.wait()
        except TimeoutError:
            return

    @property
    def is_made_ready(self) -> bool:
        """Whether nothing is left for it to import, for another agent too."""
        return self.has_imported and not self.is_leaving_another

    @property
    def is_heritable(self) -> bool:
        """Whether another agent could be given it now: it waits, and nothing is on its way from or to it."""
        is_ready = bool(self.pid) and self.is_here.is_set() and not self.why_over
        return is_ready and self.outlives and not self._is_asked

    def forget_ahead(self, _: Ended) -> None:
        """The process that it had forked ahead has ended: the number may be another's soon."""
        self.pid_ahead = 0

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def close(self) -> None:
        """Close the socket; the twin reads that and ends. A pending request gets no answer."""
        self.why_over = self.why_over or "closed"
        self.channel.close()
        self.is_here.set()
        self._answers.put_nowait(({"is": "over"}, []))


def how(ended: Ended) -> str:
    """Text: by which signal or with which code, and when."""
    at = time.strftime("%H:%M:%S", time.gmtime(ended.at))
    return f"signal {ended.signal} at {at}" if ended.signal else f"code {ended.code} at {at}"
