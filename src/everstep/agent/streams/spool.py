"""The thread of the agent that takes the output of this node's ranks from memory to their log files.

A rank that writes needs neither room on a disk, nor the agent, nor a reader (docs/adr/0028-spool.md). The thread is the
only one that touches the files, so a file server that hangs holds up nothing else. The warden has each stream too: it
keeps the memory bounded, and when the agent is gone it continues until the last writer has closed.
"""

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from everstep.agent.streams.pump import Pump
from everstep.agent.streams.spooled import LOOK_S, Spooled, reopened
from everstep.linux.changes import Changes

_DRAIN_LIMIT_S = 1.0
_MOST_STREAMS = 256
"""That are followed at once; of older ones that wait for room, what has none by then is lost."""

_log = logging.getLogger(__name__)


class Successor(Protocol):
    """The process that continues a stream when this one is gone."""

    def keep_stream(self, fd: int, path: Path) -> None: ...


class Spool:
    """Starts its thread with the first stream."""

    def __init__(self, successor: Successor | None = None) -> None:
        self.terminals = Pump()
        self._successor = successor
        self._streams: dict[int, Spooled] = {}
        self._thread: threading.Thread | None = None
        self._turn = threading.Condition()
        self._num_asked = self._num_answered = 0
        self._is_late = False
        self._is_over = False

    def open(self, path: Path) -> int:
        """Where a rank writes what is to be in this file: a descriptor, the caller's. Raises OSError."""
        memory = os.memfd_create("everstep-stream", os.MFD_CLOEXEC)
        try:
            writing, reading = reopened(memory, os.O_WRONLY | os.O_APPEND), reopened(memory, os.O_RDONLY)
        finally:
            os.close(memory)
        stream = Spooled(reading, path)
        stream.begin()
        if self._successor is not None:
            self._successor.keep_stream(reading, path)
        with self._turn:
            self._streams[reading] = stream
            if self._thread is None:
                self._changes = Changes()
            self._changes.add(Path(f"/proc/self/fd/{reading}"), reading)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="everstep-spool", daemon=True)
                self._thread.start()
        return writing

    def drain(self) -> None:
        """Copy what ranks wrote until now into their files, if those take it: for the last words of a dead one."""
        self.terminals.drain()
        with self._turn:
            if self._thread is None or self._is_late:
                return
            self._num_asked += 1
            mine = self._num_asked
            self._changes.wake()
            self._is_late = not self._turn.wait_for(lambda: self._num_answered >= mine, _DRAIN_LIMIT_S)

    def rest(self, path: Path, most: int) -> bytes:
        """The end of what is not in this file, because that takes nothing."""
        with self._turn:
            return b"".join(each.rest(most) for each in self._streams.values() if each.path == path)

    def close(self) -> None:
        """Write out what is there, and end. Processes that were left running write no more to a terminal, and to files
        as before."""
        self.terminals.close()
        self.drain()
        self._is_over = True
        if self._thread is not None:
            self._changes.wake()
            self._thread.join(0.0 if self._is_late else _DRAIN_LIMIT_S)

    def _run(self) -> None:
        while not self._is_over:
            try:
                self._take(self._changes.wait(LOOK_S))
            except Exception:
                _log.exception("the spool")  # it must not stop: ranks write
                time.sleep(0.05)

    def _take(self, changed: Sequence[object]) -> None:
        """`changed`: in the order in which ranks took turns, but not how much each wrote. So a line each turn, and in
        its last one the rest."""
        asked, turns = self._num_asked, Counter(changed)
        for key in changed:
            turns[key] -= 1
            stream = self._streams.get(key) if isinstance(key, int) else None
            if stream is not None:
                stream.copy_some(is_line=True) if turns[key] else stream.copy()
        if asked != self._num_answered or not changed:
            self._look()
        with self._turn:
            self._num_answered, self._is_late = asked, False
            self._turn.notify_all()

    def _look(self) -> None:
        """Look at all of them, with or without a notification."""
        for fd, stream in list(self._streams.items()):
            is_last = not stream.has_writers()
            stream.copy()
            stream.bound()
            if is_last and (not stream.has_rest or len(self._streams) > _MOST_STREAMS):
                with self._turn:
                    del self._streams[fd]
                with contextlib.suppress(OSError):
                    stream.close()
