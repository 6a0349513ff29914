"""The agent's end of the socket to a rank's watch thread: asks for the flight record and waits for the answer.

A rank that is stopped, or whose interpreter lock is held, does not answer: that is said, with the time that was given.
"""

import asyncio
import os
import socket
from pathlib import Path

from everstep.agent.channel import Channel
from everstep.wire import local


class WatchLink:
    """Owns its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._channel = Channel(sock, self._on_frame, self._on_closed)
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._num_asked = 0

    async def dump(self, path: Path, limit_s: float) -> str:
        """Have the flight record written to `path`. Empty, or why there is none."""
        self._num_asked += 1
        number = self._num_asked
        answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._asked[number] = answer
        try:
            if not self._channel.send({"do": "dump", "id": number, "path": str(path)}):
                return "the rank's watch thread is gone"
            async with asyncio.timeout(limit_s):
                return await answer
        except TimeoutError:
            return f"the rank's watch thread did not answer within {limit_s:g} s"
        finally:
            self._asked.pop(number, None)

    def close(self) -> None:
        self._channel.close()
        self._on_closed("the rank has ended")

    def _on_frame(self, frame: local.Frame, fds: list[int]) -> None:
        for fd in fds:
            os.close(fd)
        number = frame.get("dumped")
        answer = self._asked.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            answer.set_result(str(frame.get("why", "")))

    def _on_closed(self, why: str) -> None:
        for answer in self._asked.values():
            if not answer.done():
                answer.set_result(f"the rank's watch thread is gone: {why}")
