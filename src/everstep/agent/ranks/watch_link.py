"""The agent's end of the socket to a rank's watch thread: asks for the flight record or the stacks, and waits.

A rank that is stopped, or whose GIL is held, does not answer: that is reported, with the time that was given. The
thread's first frame describes how to have the frames written all the same (`spill`).
"""

import asyncio
import os
import socket
import stat
from pathlib import Path

from everstep.agent.processes.channel import Channel
from everstep.wire import local
from everstep.wire.frames import ToWatch

MAX_RECORD_BYTES = 64 << 20
"""A flight record of 100,000 entries; a larger one is cut, and then cannot be read."""


_ANSWERS = ("dumped", "sampled", "entered", "saved", "held")


class Spill:
    """The file to which a signal lets the rank write its frames. Owns the descriptor."""

    def __init__(self, fd: int, remote_fd: int, signum: int) -> None:
        self.fd = fd
        self.remote_fd = remote_fd  # its number in the rank
        self.signum = signum


class WatchLink:
    """Owns its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock, self._on_frame, self._on_closed)
        self._asked: dict[int, asyncio.Future[local.Frame]] = {}
        self._num_asked = 0
        self.spill: Spill | None = None
        self.has_spoken = False  # the thread runs, or did

    async def dump(self, path: Path, limit_s: float) -> str:
        """Have the flight record written to `path`. Empty, or why there is none."""
        return str((await self._ask({"do": "dump", "path": str(path)}, limit_s)).get("why", ""))

    async def sample(self, limit_s: float) -> tuple[list[object], str]:
        """The rank's threads as its own sampler sees them, in py-spy's form; or none, and why."""
        answer = await self._ask({"do": "stacks"}, limit_s)
        threads = answer.get("threads")
        if not isinstance(threads, list) or not threads:
            return [], str(answer.get("why", "its sampler lists no thread"))
        return threads, ""

    async def entered(self, limit_s: float) -> tuple[local.Frame, bytes]:
        """When the rank entered its collectives: the answer (worker/link/entered.py), and torch's flight record as
        JSON. "calls" in the answer has its calls of collectives, as bytes."""
        answer = await self._ask({"do": "entered"}, limit_s)
        record = answer.get("record")
        return answer, record if isinstance(record, bytes) else b""

    async def save(self, limit_s: float) -> str:
        """Have the snapshot of the last completed step completed. Empty, or why it is not."""
        answer = await self._ask({"do": "save", "limit_s": limit_s}, limit_s)
        if "saved" in answer and "step" in answer:
            return ""
        return str(answer.get("why") or "the rank does not know how to save on request")

    async def hold(self, step: int | None, limit_s: float, answer_s: float) -> str:
        """Have the rank wait after this step for at most `limit_s`; None: no longer. Empty, or why it will not."""
        answer = await self._ask({"do": "hold", "step": step, "limit_s": limit_s}, answer_s)
        return str(answer.get("why", ""))

    def close(self) -> None:
        self._channel.close()
        self._on_closed("the rank has ended")

    async def _ask(self, frame: ToWatch, limit_s: float) -> local.Frame:
        """The answer, or `{"why": ...}`."""
        self._num_asked += 1
        number = self._num_asked
        answer: asyncio.Future[local.Frame] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            if not self._channel.send({**frame, "id": number}):
                return {"why": "the rank's watch thread is gone"}
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return {"why": f"the rank's watch thread did not answer within {limit_s:g} s"}
        finally:
            self._asked.pop(number, None)

    def _on_frame(self, frame: local.Frame, fds: list[int]) -> None:
        self.has_spoken = True
        self._take_spill(frame, fds)
        number = next((frame[name] for name in _ANSWERS if name in frame), None)
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is not None and "entered" in frame and fds:
            frame["record"], frame["calls"] = b"", b""
            for name, fd in zip(("record", "calls"), fds, strict=False):
                frame[name] = _content(fd)  # at once, so that no descriptor is ever left over
        for fd in fds:
            os.close(fd)
        if answer is not None and not answer.done():
            answer.set_result(frame)

    def _take_spill(self, frame: local.Frame, fds: list[int]) -> None:
        remote_fd, signum = frame.get("spill"), frame.get("signal")
        if self.spill is None and fds and isinstance(remote_fd, int) and isinstance(signum, int):
            self.spill = Spill(fds.pop(0), remote_fd, signum)

    def _on_closed(self, why: str) -> None:
        if self.spill is not None:
            os.close(self.spill.fd)
            self.spill = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result({"why": f"the rank's watch thread is gone: {why}"})


def _content(fd: int) -> bytes:
    """The content of the file that a rank passed; empty for anything else, such as an endless device."""
    try:
        about = os.fstat(fd)
        return os.pread(fd, min(MAX_RECORD_BYTES, about.st_size), 0) if stat.S_ISREG(about.st_mode) else b""
    except OSError:
        return b""
