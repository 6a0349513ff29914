"""Output for the person at the terminal: a header, the ranks' output, what everstep does about faults, a summary.

Threads of their own, one for stdout and one for stderr (or one where these are the same), so that one that takes
nothing (Ctrl-S, a pager) holds up neither the other nor a recovery. Ranks' output goes where it came from (stdout,
stderr); everstep's own lines go to stderr, as torchrun's do.
"""

import contextlib
import os
import queue
import select
import threading
import time
from collections.abc import Callable

from everstep.launcher.output.live_line import LiveLine, may_draw
from everstep.launcher.output.output import OutputTail
from everstep.report.parts.ansi import safe

PERIOD_S = 0.1
"""Between looks for new files and at the journal. What is written to files that are there is shown at once."""

_HURRIED_S = 5.0
_STUCK_S = 600.0
"""A terminal that takes nothing for so long gets no more: the run is over, and other processes may wait for its
machine."""


class Terminal:
    def __init__(self, narrate: Callable[[], list[str]], live: Callable[[], str] = str) -> None:
        self._narrate = narrate  # lines about what has happened since the last call
        self._live = LiveLine(live, _width) if may_draw(2) else None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._muted: set[int] = set()
        self._is_over = threading.Event()
        self._shown_at = 0.0
        self._is_at_line_begin = True  # where everstep's own lines go
        self._threads: list[threading.Thread] = []
        self._tails: tuple[OutputTail, ...] = ()

    def start(self, *tails: OutputTail) -> None:
        """The last one has stderr, and everstep's own lines."""
        self._tails = tails
        for tail in tails:
            run = self._run_last if tail is tails[-1] else self._run
            self._threads.append(threading.Thread(target=run, args=(tail,), name="everstep-terminal", daemon=True))
            self._threads[-1].start()

    def say(self, text: str) -> None:
        """A line of everstep's own; from any thread, never waits."""
        self._lines.put(text)

    def finish(self, summary: Callable[[], list[str]], *, is_hurried: bool = False) -> None:
        """Show what is left of the output, then the summary. Like torchrun, waits for a terminal that takes nothing
        now; not long where the user wants the end."""
        self._summary = summary
        self._shown_at = time.monotonic()
        self._is_over.set()
        for tail in self._tails:
            tail.wake()
        limit_s = _HURRIED_S if is_hurried else _STUCK_S
        for thread in self._threads:
            while thread.is_alive() and time.monotonic() - self._shown_at < limit_s:
                thread.join(0.5)

    def write(self, stream: int, data: bytes) -> None:
        if stream in self._muted or not data:
            return
        if stream == 2 or len(self._tails) == 1:  # one place for both
            self._is_at_line_begin = data.endswith(b"\n")
            if self._live is not None and (gone := self._live.erase(time.monotonic())):
                self._put(2, gone)
        self._put(stream, data)

    def _put(self, stream: int, data: bytes) -> None:
        try:
            while data:
                try:
                    data = data[os.write(stream, data) :]
                    self._shown_at = time.monotonic()
                except BlockingIOError:
                    select.select([], [stream], [])
        except OSError:
            self._muted.add(stream)  # `| head` has gone; training has not

    def _run(self, tail: OutputTail, tell: Callable[[], None] = lambda: None) -> None:
        looked_at = 0.0
        while not self._is_over.is_set():
            left_s = looked_at + PERIOD_S - time.monotonic()
            if left_s > 0:
                tail.wait(left_s)
                continue
            looked_at = time.monotonic()
            tail.poll()
            tell()
        tail.drain()
        tell()

    def _run_last(self, tail: OutputTail) -> None:
        self._run(tail, self._tell)
        if self._live is not None:
            self._put(2, self._live.erase(time.monotonic()))
        for line in self._summary():
            self._write_line(line)

    def _tell(self) -> None:
        for line in self._narrate():
            self._write_line(line)
        with contextlib.suppress(queue.Empty):
            while True:
                self._write_line(f"everstep: {self._lines.get_nowait()}")
        self._draw()

    def _draw(self) -> None:
        """The live line; by the thread that has stderr, between two looks."""
        if self._live is not None and not self._is_over.is_set() and 2 not in self._muted:
            drawn = self._live.draw(time.monotonic(), is_at_line_begin=self._is_at_line_begin)
            if drawn:
                self._put(2, drawn)

    def _write_line(self, line: str) -> None:
        begin = b"" if self._is_at_line_begin else b"\n"  # behind a progress bar, not in it
        self.write(2, begin + safe(line).encode(errors="replace") + b"\n")


def _width() -> int:
    try:
        return os.get_terminal_size(2).columns
    except OSError:
        return 80
