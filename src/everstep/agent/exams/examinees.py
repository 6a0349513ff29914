"""The processes of one examination on this node: fresh interpreters. They are workers whose program is ours, so they
end with the agent like any worker, and what a drill does to the machine happens to them too.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from everstep.agent.memory.board import Board
from everstep.agent.processes import reaping, spawn
from everstep.agent.processes.ailments import Ailments
from everstep.agent.processes.channel import Channel
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.starting import Home
from everstep.agent.ranks.warden import Warden
from everstep.errors import EverstepError
from everstep.linux.children import Ended
from everstep.preflight.examination.request import Request, Said
from everstep.wire.frames import Assign

PROGRAM = "everstep.preflight.examination"
_KILLED_S = 5.0
"""For what was killed to be gone: a process in uninterruptible sleep may never be."""

_log = logging.getLogger(__name__)


class Examinee:
    """One process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.channel: Channel | None = None
        self.said: Said | None = None
        self.ended: Ended | None = None


class Examinees:
    """Made for one examination, and used once."""

    def __init__(self, home: Home, reaper: Reaper, warden: Warden, ailments: Ailments, folder: Path) -> None:
        self._home, self._reaper, self._warden, self._ailments = home, reaper, warden, ailments
        self._folder = folder
        self._board: Board | None = None
        self._ended = asyncio.Event()
        self.all: list[Examinee] = []

    def start(self, requests: Sequence[Request]) -> None:
        """All of them. Raises EverstepError, OSError; what was started by then is there for `end`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._board = Board(len(requests))
        for request in requests:
            self._start(request)

    async def wait(self) -> None:
        """Until all have ended."""
        while any(each.ended is None for each in self.all):
            self._ended.clear()
            await self._ended.wait()

    async def end(self) -> None:
        """Nothing of them runs when this returns."""
        for each in self.all:
            if each.ended is None:
                reaping.kill_group(each.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(_KILLED_S):
                await self.wait()
        except TimeoutError:
            _log.warning("processes of an examination do not end on SIGKILL: %s", [each.pid for each in self.all])
        for each in self.all:
            self._warden.forget_session(each.pid)
            if each.channel is not None:
                each.channel.close()
        if self._board is not None:
            self._board.close()

    def _start(self, request: Request) -> None:
        assert self._board is not None
        # Our own program needs our own interpreter, whatever PYTHON_EXEC says of the user's.
        pid, link = spawn.spawn_worker(self._home.base_env, sys.executable)
        examinee = Examinee(pid)
        self.all.append(examinee)
        self._warden.tell_session(pid)
        self._reaper.watch(pid, partial(self._on_end, examinee))
        examinee.channel = Channel(link, partial(_on_frame, examinee), lambda _why: None)
        self._board.reset(request.local_rank, rank=request.rank, generation=-1)
        if not examinee.channel.send(self._assignment(request), (self._board.fd,)):
            raise EverstepError(f"the process {pid} of an examination does not listen")

    def _assignment(self, request: Request) -> Assign:
        name = str(request.local_rank)
        return {
            "do": "assign",
            "rank": request.rank,
            "local_rank": request.local_rank,
            "generation": -1,
            "world_size": request.world_size,
            "env": dict(self._home.base_env),
            "program": PROGRAM,
            "args": [msgspec.json.encode(request).decode()],
            "launch": "module",
            "cwd": str(self._folder),
            "stdout": str(self._folder / f"{name}.stdout.log"),
            "stderr": str(self._folder / f"{name}.stderr.log"),
            "error_file": str(self._folder / f"{name}.error.json"),
            "resume_step": None,
            "drills": self._ailments.of_process(request.local_rank),
        }

    def _on_end(self, examinee: Examinee, ended: Ended) -> None:
        if examinee.channel is not None:
            examinee.channel.read_now()  # its last word may still lie there
            examinee.channel.close()
        examinee.ended = ended
        reaping.kill_group(examinee.pid, signal.SIGKILL)  # what it left in its session
        self._ended.set()


def _on_frame(examinee: Examinee, frame: dict[str, Any], fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
    if "examined" in frame:
        try:
            examinee.said = msgspec.convert(frame["examined"], Said)
        except msgspec.ValidationError as error:
            examinee.said = Said(passed=None, why=f"our own examination gave an answer that cannot be read: {error}")
