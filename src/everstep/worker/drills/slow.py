"""A machine that became slow: each step takes a share longer.

The share is of the rank's own median step without ours, so it follows the program. It is added at the end of the step,
as CPU time: a slow machine needs more of it for the same work, and a rank that only slept would not look like one. If
the rank has an accelerator open, a device is slow: the rank sleeps then, for as large a part as it does in its steps.
Data, the collector and the numbers are untouched. It ends with the process, or after the seconds that were asked for.

steady: `percent` at once. growing: from nothing to `percent` within `seconds`, and stays there. intermittent: bursts of
`percent`, as long as the pauses between them.
"""

import collections
import os
import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from everstep.linux.accelerators import has_accelerator
from everstep.worker.drills import Happened
from everstep.worker.link.runtime import Runtime

PERCENT = 30.0
GROWING_S = 60.0
BURST_S = 4.0
"""Shorter than a round of the vote, so that each sees the bursts and the pauses."""

NUM_STEPS = 15
"""How many steps the median is taken over: one evaluation or checkpoint among them does not count."""

LEAST_SLEEP_S = 0.001
"""Shorter sleeps are saved up: the kernel would not sleep so short."""


def arm(runtime: Runtime, request: Mapping[str, Any]) -> None:
    options = request.get("options") or {}
    slowness = Slowness(
        percent=float(options.get("percent", PERCENT)),
        pattern=str(options.get("pattern", "steady")),
        seconds=float(options["seconds"]) if "seconds" in options else None,
        waits_for_device=has_accelerator(os.getpid()),
    )
    earlier = [hook for hook in runtime.step_hooks if isinstance(hook, Slowness)]
    runtime.step_hooks[:] = [hook for hook in runtime.step_hooks if hook not in earlier] + [slowness]
    Happened(runtime, request)(f"its steps take {slowness.percent:g} % longer from now on ({slowness.pattern})")


class Clocks(Protocol):
    """The functions of the module `time`."""

    def monotonic(self) -> float: ...

    def thread_time(self) -> float: ...

    def sleep(self, seconds: float, /) -> None: ...


class Slowness:
    """Called at the end of every step."""

    def __init__(
        self,
        *,
        percent: float,
        pattern: str,
        seconds: float | None,
        waits_for_device: bool,
        clocks: Clocks = time,
    ) -> None:
        self.percent = percent
        self.pattern = pattern
        self._seconds = seconds
        self._waits_for_device = waits_for_device
        self._clocks = clocks
        self._cpu_at = 0.0
        self._cpu_s: collections.deque[float] = collections.deque(maxlen=NUM_STEPS)
        self._began_at = clocks.monotonic()
        self._resumed_at: float | None = None  # when the step in progress began
        self._step_s: collections.deque[float] = collections.deque(maxlen=NUM_STEPS)
        self._owed_s = 0.0

    def __call__(self, _step: int) -> None:
        now = self._clocks.monotonic()
        if self._resumed_at is not None:
            self._step_s.append(now - self._resumed_at)
            self._cpu_s.append(self._clocks.thread_time() - self._cpu_at)
            self._owed_s += self.share(now - self._began_at) * _median(self._step_s)
        if self._owed_s >= LEAST_SLEEP_S:
            self._pass(self._owed_s)
            self._owed_s = 0.0
        self._resumed_at, self._cpu_at = self._clocks.monotonic(), self._clocks.thread_time()

    def _pass(self, owed_s: float) -> None:
        ends_at = self._clocks.monotonic() + owed_s
        busy_s = owed_s
        if self._waits_for_device:
            busy_s *= min(1.0, _median(self._cpu_s) / max(1e-9, _median(self._step_s)))
        cpu_ends_at = self._clocks.thread_time() + busy_s
        while self._clocks.thread_time() < cpu_ends_at and self._clocks.monotonic() < ends_at:
            pass
        self._clocks.sleep(max(0.0, ends_at - self._clocks.monotonic()))

    def share(self, age_s: float) -> float:
        """How much longer a step takes now, as a fraction."""
        full = self.percent / 100
        if self.pattern == "growing":
            return full * min(1.0, age_s / (self._seconds or GROWING_S))
        if self._seconds is not None and age_s >= self._seconds:
            return 0.0
        if self.pattern == "intermittent" and age_s % (2 * BURST_S) >= BURST_S:
            return 0.0
        return full


def _median(values: Iterable[float]) -> float:
    """The upper one of two. The standard library's would be imported by every rank for this alone."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
