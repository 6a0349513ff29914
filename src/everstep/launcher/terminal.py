"""What the person at the terminal sees: a header, the ranks' output, what everstep does about faults, a summary.

A thread of its own, so that a terminal that takes nothing (Ctrl-S, a pager) never holds up a recovery. Ranks' output
goes where it came from (stdout, stderr); everstep's own lines go to stderr, as torchrun's do.
"""

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable

from everstep.launcher.output import OutputTail

PERIOD_S = 0.1
"""Between looks at the log files. Shorter costs the ranks' processors, longer is seen as a lag."""

_END_TIMEOUT_S = 5.0


class Terminal:
    def __init__(self, narrate: Callable[[], list[str]]) -> None:
        self._narrate = narrate  # lines about what has happened since the last call
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._muted: set[int] = set()
        self._is_over = threading.Event()
        self._tail: OutputTail | None = None
        self._thread = threading.Thread(target=self._run, name="everstep-terminal", daemon=True)

    def start(self, tail: OutputTail) -> None:
        self._tail = tail
        self._thread.start()

    def say(self, text: str) -> None:
        """A line of everstep's own; from any thread, never waits."""
        self._lines.put(text)

    def finish(self, summary: Callable[[], list[str]]) -> None:
        """Show what is left of the output, then the summary. Waits for a terminal that takes nothing only so long."""
        self._summary = summary
        self._is_over.set()
        self._thread.join(_END_TIMEOUT_S)

    def write(self, stream: int, data: bytes) -> None:
        if stream in self._muted:
            return
        try:
            while data:
                try:
                    data = data[os.write(stream, data) :]
                except BlockingIOError:
                    select.select([], [stream], [])
        except OSError:
            self._muted.add(stream)  # `| head` has gone; training has not

    def _run(self) -> None:
        assert self._tail is not None
        while not self._is_over.wait(PERIOD_S):
            self._tail.poll()
            self._show_lines()
        self._tail.drain()
        self._show_lines()
        for line in self._summary():
            self.write(2, line.encode(errors="replace") + b"\n")

    def _show_lines(self) -> None:
        for line in self._narrate():
            self.write(2, line.encode(errors="replace") + b"\n")
        with contextlib.suppress(queue.Empty):
            while True:
                self.write(2, f"everstep: {self._lines.get_nowait()}\n".encode(errors="replace"))
