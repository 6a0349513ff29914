"""Progress of work that takes long: after two seconds a bar with its rate and the time that is left.

On a terminal one line that is gone when the work is done; elsewhere a plain line now and then. On stderr, so that
what is printed can go into a file.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO, TypeVar

from everstep.report.parts.units import duration, size

PATIENCE_S = 2.0
"""Whatever is done by then shows nothing."""

LINE_EVERY_S = 10.0
FRAME_S = 0.1
BYTES = "byte"

_T = TypeVar("_T")


class Waiting:
    """`show(line)`: the newest line. What it costs to call `step` is a look at a clock."""

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        show: Callable[[str], None],
        *,
        every_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._what, self._unit, self._show, self._every_s, self._clock = what, unit, show, every_s, clock
        self.total = total  # 0: not known
        self.done = 0
        self._begun_at = clock()
        self._next_at = self._begun_at + PATIENCE_S

    def step(self, number: int = 1, says: str = "") -> None:
        self.at(self.done + number, self.total, says)

    def at(self, done: int, total: int, says: str = "") -> None:
        """`says`: what is being done now."""
        self.done, self.total = done, total
        now = self._clock()
        if now >= self._next_at:
            self._next_at = now + self._every_s
            self._show(self.line(now - self._begun_at, says))

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield the items, and count each as a step when it has been dealt with."""
        for item in items:
            yield item
            self.step()

    def line(self, elapsed_s: float, says: str = "") -> str:
        rate = self.done / elapsed_s if elapsed_s > 0.0 else 0.0
        left = (self.total - self.done) / rate if rate > 0.0 and self.total > self.done else None
        parts = [f"{self._what} {self._amount(self.done)}"]
        if self.total:
            parts[0] += f" of {self._amount(self.total)}{'' if self._unit == BYTES else f' {self._unit}s'}"
            parts.append(f"{min(1.0, self.done / self.total):.0%}")
        parts.append(f"{self._amount(round(rate))}/s" if self._unit == BYTES else f"{rate:.3g} {self._unit}s/s")
        parts.append(f"{duration(left)} left" if left is not None else f"for {duration(elapsed_s)}")
        return "  ".join([*parts, *([says] if says else [])])

    def _amount(self, number: int) -> str:
        return size(number) if self._unit == BYTES else f"{number:,}"


@contextlib.contextmanager
def waiting(what: str, total: int, unit: str, stream: TextIO | None = None) -> Iterator[Waiting]:
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield Waiting(what, total, unit, lambda line: print(line, file=out, flush=True), every_s=LINE_EVERY_S)
        return
    with _bar(out) as show:
        yield Waiting(what, total, unit, show, every_s=FRAME_S)


@contextlib.contextmanager
def _bar(out: TextIO) -> Iterator[Callable[[str], None]]:
    """Made when there is something to show: rich takes a tenth of a second to import."""
    with contextlib.ExitStack() as opened:
        lives: list[Callable[[str], None]] = []

        def show(line: str) -> None:
            if not lives:
                lives.append(_live(opened, out))
            lives[0](line)

        yield show


def _live(opened: contextlib.ExitStack, out: TextIO) -> Callable[[str], None]:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = opened.enter_context(Live(console=Console(file=out), auto_refresh=False, transient=True))
    return lambda line: live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)
