"""The twins of this node's ranks: who could go on in whose place, and if nobody, why not.

A rank leaves a twin of itself early (when torch has been imported) and a later one before its first effect; a standby
node has spares, which run the program up to the first question who they are. The latest one that is still true goes on.
"""

import asyncio
import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from everstep.agent.processes import reaping
from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.channel import Channel
from everstep.agent.processes.reaping import Ended, Reaper
from everstep.agent.versions.placing import Placed
from everstep.wire import local

WAKE_S = 10.0
"""A twin answers within milliseconds; one that is starved or swapped out is not waited for."""

APPEAR_S = 2.0
"""A twin that was forked says so within milliseconds; where it does not, a fresh interpreter takes longer still."""

IMPORT_S = 120.0
MAX_TWINS = 4
"""Of one rank: an early one, a late one, and the same while they are replaced."""

NO_TWIN = "the rank has left no twin yet"

_log = logging.getLogger(__name__)


class Awake(msgspec.Struct, frozen=True, kw_only=True):
    """A process that goes on from a twin and waits for its assignment. Whoever takes it owns the socket."""

    pid: int
    link: socket.socket
    stage: str
    prefix: "Prefix"


class Prefix(msgspec.Struct, frozen=True, kw_only=True):
    """What the program had written when the twin was left: a new start would write it again."""

    stdout: Path | None = None
    stderr: Path | None = None
    out_bytes: int = 0
    err_bytes: int = 0

    def copy_to(self, stdout: Path, stderr: Path) -> None:
        """Raises OSError."""
        both = ((self.stdout, self.out_bytes, stdout), (self.stderr, self.err_bytes, stderr))
        for source, size, target in both[:1] if stdout == stderr else both:
            if source is not None and size > 0 and source != target:
                with source.open("rb") as file, target.open("ab") as copy:
                    copy.write(file.read(size))


class Twin:
    """One of them, from the moment when its socket is here."""

    def __init__(self, sock: socket.socket, *, stage: str, placed: Placed, prefix: Prefix, reads: int = 0) -> None:
        self.stage = stage
        self.placed = placed
        self.prefix = prefix
        self.reads = reads
        self.pid = 0
        self.num_modules = 0
        self.has_imported = False
        self.told_at = time.monotonic()
        self.why_over = ""
        self._answers: asyncio.Queue[tuple[local.Frame, list[int]]] = asyncio.Queue()
        self._busy = asyncio.Lock()
        self.channel = Channel(sock, self._on_frame, self._on_closed)
        self.is_here = asyncio.Event()
        self.on_here: Callable[[Twin], None] = lambda _: None
        self.on_gone: Callable[[Twin], None] = lambda _: None

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

    async def ask(self, frame: local.Frame, timeout_s: float) -> tuple[local.Frame, list[int]]:
        """One answer to one request. Raises TimeoutError; the twin is of no use then."""
        async with self._busy:
            if self.why_over or not self.channel.send(frame):
                return {"is": "over"}, []
            async with asyncio.timeout(timeout_s):
                return await self._answers.get()

    async def appear(self) -> None:
        """It was forked a moment ago, or nothing is to be had of it."""
        try:
            async with asyncio.timeout(APPEAR_S):
                await self.is_here.wait()
        except TimeoutError:
            return

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    def close(self) -> None:
        """It reads the end of its socket, and ends."""
        self.why_over = self.why_over or "closed"
        self.channel.close()


class Twins:
    """Of all ranks of this node, by local rank."""

    def __init__(
        self,
        reaper: Reaper,
        on_session: Callable[[int], None],
        on_news: Callable[[], None],
        on_proven: Callable[[Ahead], None] = lambda _: None,
    ) -> None:
        self._reaper = reaper
        self._on_session = on_session
        self._on_news = on_news
        self._on_proven = on_proven
        self._twins: dict[int, list[Twin]] = {}
        self._why_not: dict[int, str] = {}
        self._num_waking = 0
        self._making: Twin | None = None  # that imports ahead
        self.ahead: Ahead | None = None

    @property
    def is_forking(self) -> bool:
        """A process may have been forked of which we have not heard yet."""
        now = time.monotonic()
        announced = (twin for twins in self._twins.values() for twin in twins)
        return self._num_waking > 0 or any(
            not twin.is_here.is_set() and now - twin.told_at < APPEAR_S for twin in (*announced, self._making) if twin
        )

    def why_not(self, local_rank: int) -> str:
        """Why the rank could not go on from a twin now; empty if it could."""
        if self._twins.get(local_rank):
            return ""
        return self._why_not.get(local_rank, NO_TWIN)

    def add(self, local_rank: int, told: Mapping[str, Any], fd: int, placed: Placed, out: Path, err: Path) -> None:
        """A rank has left a twin. One that says so again and again gets no more than MAX_TWINS."""
        if len(self._twins.get(local_rank, ())) >= MAX_TWINS:
            os.close(fd)
            return
        try:
            sizes = {"out_bytes": int(told.get("out", 0)), "err_bytes": int(told.get("err", 0))}
            prefix = Prefix(stdout=out, stderr=err, **sizes)
            stage, reads = str(told.get("stage", ""))[:200], int(told.get("reads", 0))
            sock = socket.socket(fileno=fd)
        except (ValueError, TypeError, OverflowError, OSError):  # a rank may say, and pass, anything
            os.close(fd)
            raise
        twin = Twin(sock, stage=stage, placed=placed, prefix=prefix, reads=reads)
        twin.on_here = functools.partial(self._on_here, local_rank)
        twin.on_gone = functools.partial(self._on_gone, local_rank)
        self._twins.setdefault(local_rank, []).append(twin)

    def add_spare(self, local_rank: int, pid: int, sock: socket.socket, placed: Placed, out: Path, err: Path) -> None:
        """A process that runs the program until it asks who it is, and is a twin from then on."""
        prefix = Prefix(stdout=out, stderr=err)
        twin = Twin(sock, stage="spare", placed=placed, prefix=prefix)
        twin.pid = pid
        twin.on_here = functools.partial(self._on_spare, local_rank)
        twin.on_gone = functools.partial(self._on_gone, local_rank)
        self._reaper.watch(pid, functools.partial(self._on_end, local_rank, twin))

    def refuse(self, local_rank: int, why: str) -> None:
        """The rank cannot leave the twin that it wanted to leave; an earlier one may be there."""
        self._why_not[local_rank] = why[:500]
        self._on_news()

    def learn(self, ahead: Ahead) -> bool:
        """Library modules that a rank has loaded after its twin was left, and variables that have changed since. False
        if that is known already."""
        if self.ahead is not None:
            return False
        self.ahead = ahead
        return True

    async def wake(self, local_rank: int, placed: Placed, env: Mapping[str, str]) -> "Awake | str":
        """The process that goes on, or why there is none. Tries the latest twin first."""
        why = self.why_not(local_rank)
        for twin in reversed(list(self._twins.get(local_rank, ()))):
            if twin.placed != placed:
                self._drop(local_rank, twin)
                why = "the program, its arguments or its variables are others now"
                continue
            await twin.appear()
            if twin.is_busy or not twin.is_here.is_set() or not twin.pid:
                why = f"its twin ({twin.stage}) was not ready"
                continue
            self._num_waking += 1
            try:
                answer, fds = await twin.ask({"do": "wake", "env": dict(env)}, WAKE_S)
            except TimeoutError:
                answer, fds = {"is": "over"}, []
            finally:
                self._num_waking -= 1
            if answer.get("is") == "awake" and fds and answer.get("pid") in self._reaper.adopted():
                link = socket.socket(fileno=fds[0])
                return Awake(pid=int(answer["pid"]), link=link, stage=twin.stage, prefix=twin.prefix)
            for fd in fds:
                os.close(fd)
            why = str(answer.get("why") or twin.why_over or "its twin does not answer")
            self._drop(local_rank, twin)
        self._why_not[local_rank] = why
        return why

    async def import_ahead(self) -> None:
        """Let each rank's latest twin leave one that has imported what its rank has imported later; one at a time, as
        this takes a processor from the ranks. A twin that is spoiled by it is not used."""
        if self.ahead is None or not self.ahead.modules:
            return
        for local_rank in sorted(self._twins):
            twin = next(iter(reversed(self._twins[local_rank])), None)
            if twin is not None and twin.pid and twin.is_here.is_set() and not twin.has_imported:
                await self._import_ahead(local_rank, twin, self.ahead)

    async def _import_ahead(self, local_rank: int, twin: Twin, what: Ahead) -> None:
        twin.has_imported = True  # it is asked once
        try:
            answer, fds = await twin.ask({"do": "split"}, WAKE_S)
        except TimeoutError:
            return
        if answer.get("is") != "split" or not fds:
            return
        ahead = Twin(
            socket.socket(fileno=fds[0]), stage=twin.stage, placed=twin.placed, prefix=twin.prefix, reads=twin.reads
        )
        ahead.has_imported, self._making = True, ahead
        ahead.on_here = functools.partial(self._watch, local_rank)
        try:
            async with asyncio.timeout(WAKE_S):
                await ahead.is_here.wait()
            answer, _ = await ahead.ask({"do": "import", "modules": what.modules, "changed": what.changed}, IMPORT_S)
        except TimeoutError:
            _log.warning("the twin of local rank %d was still importing ahead after %g s", local_rank, IMPORT_S)
            answer = {}
        except asyncio.CancelledError:
            self._drop(local_rank, ahead)
            raise
        finally:
            self._making = None
        if answer.get("is") != "ready":
            _log.info("modules are not imported ahead: %s: %s", answer.get("module"), answer.get("why"))
            if answer.get("module") in what.modules:
                what.modules.remove(str(answer["module"]))
            self._drop(local_rank, ahead)
            return
        _log.info("the twin of local rank %d has imported ahead: %s", local_rank, answer)
        self._on_proven(what)
        ahead.on_gone = functools.partial(self._on_gone, local_rank)
        mine = self._twins.get(local_rank, [])
        if twin in mine:
            mine.append(ahead)
            self._drop(local_rank, twin)
        else:
            self._drop(local_rank, ahead)
        self._on_news()

    def close(self) -> None:
        """End all of them."""
        if self._making is not None:
            self._drop(-1, self._making)
        for local_rank, twins in self._twins.items():
            for twin in list(twins):
                self._drop(local_rank, twin)

    @property
    def num_modules(self) -> int:
        return max((twin.num_modules for twins in self._twins.values() for twin in twins), default=0)

    def _watch(self, local_rank: int, twin: Twin) -> None:
        if twin.pid not in self._reaper.adopted():  # whatever it says: no stranger and no rank is taken for it
            twin.pid = 0
            self._drop(local_rank, twin)
            return
        self._on_session(twin.pid)
        self._reaper.watch(twin.pid, functools.partial(self._on_end, local_rank, twin))

    def _on_here(self, local_rank: int, twin: Twin) -> None:
        """The later one replaces the earlier one, unless what it has read may change: then both are kept."""
        self._watch(local_rank, twin)
        self._why_not.pop(local_rank, None)
        if not twin.reads:
            for earlier in [each for each in self._twins.get(local_rank, []) if each is not twin]:
                if earlier.is_here.is_set():
                    self._drop(local_rank, earlier)
        self._on_news()

    def _on_gone(self, local_rank: int, twin: Twin) -> None:
        self._why_not[local_rank] = twin.why_over
        self._drop(local_rank, twin)
        self._on_news()

    def _on_spare(self, local_rank: int, twin: Twin) -> None:
        out, err = twin.prefix.stdout, twin.prefix.stderr
        sizes = {
            name: path.stat().st_size for name, path in (("out_bytes", out), ("err_bytes", err)) if path is not None
        }
        twin.prefix = msgspec.structs.replace(twin.prefix, **sizes)
        self._twins.setdefault(local_rank, []).append(twin)
        self._why_not.pop(local_rank, None)
        self._on_news()

    def _on_end(self, local_rank: int, twin: Twin, ended: Ended) -> None:
        twin.pid = 0  # the number may be another's soon
        if twin.why_over != "closed":
            _log.info("the twin of local rank %d (%s) ended: %s", local_rank, twin.stage, ended)
            self._why_not[local_rank] = f"its twin ({twin.stage}) has ended: {_how(ended)}"
        self._drop(local_rank, twin)

    def _drop(self, local_rank: int, twin: Twin) -> None:
        mine = self._twins.get(local_rank, [])
        if twin in mine:
            mine.remove(twin)
        twin.close()
        if twin.pid:
            reaping.kill(twin.pid, signal.SIGKILL)


def _how(ended: Ended) -> str:
    at = time.strftime("%H:%M:%S", time.gmtime(ended.at))
    return f"signal {ended.signal} at {at}" if ended.signal else f"code {ended.code} at {at}"
