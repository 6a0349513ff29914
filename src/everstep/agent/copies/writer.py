"""Runs one process of ours that writes to the persistent tier, and reads its answer: never in the agent's own process,
because a storage may hang, and because it needs torch.

It is at low priority, in a session of its own, ends with the agent and is killed when its time is over. A writer that
does not even end then sits in the storage's driver: no second one is put beside it.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.agent.copies.writer_main import HURRY_VARIABLE
from everstep.agent.processes import reaping
from everstep.agent.processes.reaping import Reaper
from everstep.linux.children import Ended

_BOOT = "import sys; sys.path[:1] = []; from everstep.agent.copies.writer_main import main; main()"
_FIRST_FD = 10
_MAX_FDS = 500
_MAX_ANSWER_BYTES = 1 << 20
_MAX_WHY = 500
_KILLED_S = 1.0
"""From SIGTERM to SIGKILL, and from there until it counts as stuck."""

_log = logging.getLogger(__name__)


class Writer:
    """At most one process at a time."""

    def __init__(self, reaper: Reaper, env: Mapping[str, str], log_path: Path) -> None:
        self._reaper = reaper
        self._env = env
        self._log_path = log_path
        self._lock = asyncio.Lock()
        self._stuck: dict[int, int | None] = {}  # pid, and when it began

    async def run(
        self, verb: str, options: Sequence[str], fds: Sequence[int], limit_s: float, *, in_hurry: bool
    ) -> dict[str, Any]:
        """Its answer, or `{"why": ...}`. With `fds`, which stay the caller's, `--fds` is added. `in_hurry`: there is no
        training beside it that it could slow down. Raises nothing but cancellation, on which the process is killed."""
        try:
            async with asyncio.timeout(limit_s), self._lock:
                return await self._run([verb, *options], fds, in_hurry)
        except TimeoutError:
            return {"why": f"not done within {limit_s:g} s: the storage answers slowly or not at all"}
        except OSError as error:
            return {"why": f"the process that writes cannot be started: {error}"}

    async def _run(self, words: Sequence[str], fds: Sequence[int], in_hurry: bool) -> dict[str, Any]:
        for pid, began in list(self._stuck.items()):
            if began is None or reaping.began(pid) != began:
                del self._stuck[pid]
        if self._stuck:
            return {"why": f"the process that wrote before ({next(iter(self._stuck))}) hangs in the storage"}
        with _memory() as out, _open_log(self._log_path) as err:
            logged_from = os.lseek(err, 0, os.SEEK_END)
            ended = await self._wait(self._spawn(words, fds, out, err, in_hurry))
            answer = _parse(os.pread(out, _MAX_ANSWER_BYTES, 0))
            if answer is None:
                said = os.pread(err, 1 << 16, logged_from).decode("utf-8", "replace").strip().splitlines()
                answer = {"why": _how(ended) + (f": {said[-1][:_MAX_WHY]}" if said else "")}
            elif ended.code != 0 and not answer.get("why"):
                answer["why"] = _how(ended)
            return answer

    def _spawn(self, words: Sequence[str], fds: Sequence[int], out: int, err: int, in_hurry: bool) -> int:
        if len(fds) > _MAX_FDS:
            raise OSError(f"{len(fds)} ranks on one node; {_MAX_FDS} are possible")
        targets = range(_FIRST_FD, _FIRST_FD + len(fds))
        argv = [sys.executable, "-u", "-c", _BOOT, *words]
        if fds:
            argv += ["--fds", ",".join(map(str, targets))]
        env = {**self._env, "EVERSTEP_AGENT_PID": str(os.getpid()), HURRY_VARIABLE: "1" if in_hurry else "0"}
        with contextlib.ExitStack() as stack:
            sources = [stack.enter_context(_above(fd, _FIRST_FD + len(fds))) for fd in (out, err, *fds)]
            actions: list[tuple[object, ...]] = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, sources[0], 1),
                (os.POSIX_SPAWN_DUP2, sources[1], 2),
                *((os.POSIX_SPAWN_DUP2, source, at) for source, at in zip(sources[2:], targets, strict=True)),
            ]
            return os.posix_spawn(sys.executable, argv, env, file_actions=actions, setsid=True, setsigmask=())

    async def _wait(self, pid: int) -> Ended:
        over: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        began = reaping.began(pid)
        self._reaper.watch(pid, lambda ended: None if over.done() else over.set_result(ended))
        try:
            return await asyncio.shield(over)
        except asyncio.CancelledError:
            for signum in (signal.SIGTERM, signal.SIGKILL):  # on the first it takes its unfinished files away
                reaping.kill_group(pid, signum)
                await asyncio.wait((over,), timeout=_KILLED_S)
                if over.done():
                    raise
            _log.warning("process %d writes to the persistent tier and does not end on SIGKILL", pid)
            self._stuck[pid] = began
            raise


def _parse(out: bytes) -> dict[str, Any] | None:
    """The JSON object that it prints, on the last line."""
    lines = out.decode("utf-8", "replace").strip().splitlines()
    with contextlib.suppress(ValueError, IndexError, RecursionError):
        answer = json.loads(lines[-1])
        if isinstance(answer, dict):
            return answer
    return None


def _how(ended: Ended) -> str:
    how = f"was killed by signal {ended.signal}" if ended.signal is not None else f"ended with exit code {ended.code}"
    return f"the process that writes {how}"


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    fd = os.memfd_create("everstep-writer", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def _above(fd: int, least: int) -> Iterator[int]:
    """A duplicate with a number that no target has: one must not be overwritten before it was passed on."""
    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, least)
    try:
        yield copy
    finally:
        os.close(copy)
