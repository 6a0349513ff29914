"""Shows how far the checks are: a live line on a terminal (rich), elsewhere a plain line per check. Standard error."""

import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from everstep.preflight.running.runner import OnProgress, Progress
from everstep.report.parts.units import duration, plural

_BURN_IN_LINE_EVERY_S = 60.0


@contextmanager
def shown(*, stream: TextIO | None = None, until: float | None = None) -> Iterator[OnProgress]:
    """`until`: end of a burn-in on the monotonic clock, for the time left."""
    out = sys.stderr if stream is None else stream
    if not out.isatty():
        yield _Plain(out, until)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # auto_refresh would be a thread; the runner calls often enough.
    with Live(console=Console(file=out), auto_refresh=False, transient=True) as live:
        yield lambda progress: live.update(
            Text(_line(progress, until), no_wrap=True, overflow="ellipsis"), refresh=True
        )


class _Plain:
    """A line per check; of a burn-in at most one a minute."""

    def __init__(self, out: TextIO, until: float | None) -> None:
        self._out = out
        self._until = until
        self._next_at = -math.inf

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if not progress.ended or now < self._next_at:
            return
        if self._until is not None:
            self._next_at = now + _BURN_IN_LINE_EVERY_S
        took = f"{plural(progress.num_results, 'result')} in {duration(progress.elapsed_s)}"
        position = f"[{progress.done + 1}/{progress.total}]"
        print(f"{position} {progress.check.name}: {took}{_left(self._until)}", file=self._out, flush=True)


def _line(progress: Progress, until: float | None) -> str:
    filled = round(20 * progress.done / progress.total)
    doing = progress.doing or progress.check.says
    bar = "━" * filled + "─" * (20 - filled)
    position = f"{min(progress.done + 1, progress.total)}/{progress.total}"
    return f"{bar} {position}  {progress.check.name}: {doing}  {duration(progress.elapsed_s)}{_left(until)}"


def _left(until: float | None) -> str:
    return "" if until is None else f"  ({duration(max(0.0, until - time.monotonic()))} left)"
