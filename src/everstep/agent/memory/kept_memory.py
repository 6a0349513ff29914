"""The agent's side of the keeper: the launcher holds duplicates of the snapshot memory, and gives back what an earlier
agent, or a lost node, had. Without a launcher (`--keeper-fd` absent) snapshots live as long as the agent.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence

from everstep.agent.memory.arenas import Memory
from everstep.agent.processes.channel import Channel
from everstep.wire import local
from everstep.wire.launcher_frames import Beat

_FIRST_TIMEOUT_S = 10.0
"""What was kept lies in the socket before the agent starts. Waiting longer than this would only delay the ranks."""

_log = logging.getLogger(__name__)


class KeptMemory:
    def __init__(
        self,
        fd: int | None,
        on_more: Callable[[], None],
        on_word: Callable[[local.Frame], None] = lambda frame: None,
    ) -> None:
        """`on_more` is called when a running agent was given the memory of another node, `on_word` with what the
        launcher says of the controller."""
        self._on_more = on_more
        self._on_word = on_word
        self._memory: Memory | None = None
        self._first = asyncio.Event()
        self._channel: Channel | None = None
        if fd is not None:
            os.set_inheritable(fd, False)  # no rank is to have it
            self._channel = Channel(socket.socket(fileno=fd), self._on_frame, self._on_closed)

    async def receive(self, memory: Memory) -> None:
        """Take what is kept, up to its end."""
        self._memory = memory
        if self._channel is None:
            return
        try:
            async with asyncio.timeout(_FIRST_TIMEOUT_S):
                await self._first.wait()
        except TimeoutError:
            _log.warning("the launcher did not say what it keeps within %.0f s", _FIRST_TIMEOUT_S)

    def keep(self, rank: int, fd: int) -> None:
        """Give the launcher a duplicate."""
        if self._channel is not None:
            self._channel.send({"keep": {"rank": rank}}, (fd,))

    def tell_ranks(self, ranks: Sequence[int]) -> None:
        """Report to the launcher which ranks run here from now on: they are lost with this machine."""
        if self._channel is not None:
            self._channel.send({"runs": list(ranks)})

    def beat(self) -> None:
        """A sign of life for the launcher; only where the earlier ones are taken."""
        if self._channel is not None and not self._channel.num_queued:
            self._channel.send(Beat(beat=1))

    def catch_up(self) -> None:
        """Before a command: a lost node's memory was sent before the controller decided on it, on another socket."""
        if self._channel is not None:
            self._channel.read_now()

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()

    def _on_frame(self, frame: local.Frame, fds: list[int]) -> None:
        given = frame.get("keep")
        if isinstance(given, dict) and isinstance(given.get("rank"), int) and len(fds) == 1 and self._memory:
            self._memory.adopt(given["rank"], fds[0])
            return
        for fd in fds:
            os.close(fd)
        if "controller" in frame:
            self._on_word(frame)
        if "kept" in frame:
            if self._first.is_set():
                self._on_more()
            self._first.set()

    def _on_closed(self, why: str) -> None:
        _log.warning("keeper: %s; snapshots end with this agent", why)
        self._first.set()
