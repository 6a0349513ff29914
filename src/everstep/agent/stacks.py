"""Runs py-spy on a rank, beside the event loop: never waits, never more than two at a time, never longer than asked.

py-spy's end is told by the agent's reaper, like every child's. Its output goes to memory, not to files.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator

from everstep.agent import reaping
from everstep.agent.reaping import Reaper
from everstep.probes.stack import command, find_py_spy, parse

MAX_AT_ONCE = 2
"""py-spy needs a processor for some tens of milliseconds; more of them would take it from the ranks."""

_MAX_BYTES = 16 << 20


class Stacks:
    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._py_spy = find_py_spy()
        self._room = asyncio.Semaphore(MAX_AT_ONCE)

    async def take(self, pid: int, limit_s: float) -> tuple[list[object], str]:
        """The threads of one process as py-spy's JSON has them; or none, and why."""
        if self._py_spy is None:
            return [], "py-spy is not installed beside this interpreter nor on PATH"
        try:
            async with asyncio.timeout(limit_s):
                async with self._room:
                    return await self._run(command(self._py_spy, pid))
        except TimeoutError:
            return [], f"py-spy gave nothing within {limit_s:g} s"
        except OSError as error:
            return [], f"py-spy cannot be started: {error.strerror}"

    async def _run(self, argv: list[str]) -> tuple[list[object], str]:
        with _memory() as out, _memory() as err:
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ]
            pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=files, setsigmask=())
            ended = asyncio.Event()
            self._reaper.watch(pid, lambda _ended: ended.set())
            try:
                await ended.wait()
            finally:
                if not ended.is_set():
                    reaping.kill(pid, signal.SIGKILL)
            return parse(os.pread(out, _MAX_BYTES, 0), os.pread(err, _MAX_BYTES, 0))


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    fd = os.memfd_create("everstep-py-spy", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
