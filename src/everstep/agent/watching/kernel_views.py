"""The agent's end of the process that holds the eBPF programs (`probes.ebpf.observer`): starts it, asks it once per
round, and does without it when it does not answer.

Nothing depends on it: without permission, without an answer or switched off there is no view, and all else is as
before. It runs only where the variable `EVERSTEP_EBPF` says so.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Collection, Iterator, Mapping

import msgspec

from everstep.agent.processes.reaping import Reaper, kill
from everstep.analyzer.slowness.off_cpu import KernelView
from everstep.probes.ebpf.observer import Answer, Ask
from everstep.probes.ebpf.support import SWITCH

ON = ("on", "1", "yes")
ANSWER_LIMIT_S = 3.0
"""So long a round waits. A later answer counts in a later round: the first one needs a Python and the verifier, half a
second, or half a minute on a machine with much more to run than CPUs, which is where its view is needed most."""

SILENT_LIMIT_S = 120.0
"""After so long without an answer it hangs, and is killed."""

MAX_STARTS = 3
_BOOT = "import sys; sys.path[:1] = []; from everstep.probes.ebpf.observer import main; main()"
_PART = 1 << 16

_log = logging.getLogger(__name__)


class KernelViews:
    """At most one observer at a time."""

    def __init__(self, reaper: Reaper | None, environ: Mapping[str, str] = os.environ) -> None:
        self._reaper = reaper
        self._environ = environ
        self._starts_left = MAX_STARTS if reaper and environ.get(SWITCH, "").lower() in ON else 0
        self._pid: int | None = None
        self._missing = ""  # as said last
        self._ask_fd = self._answer_fd = -1
        self._asked_at: float | None = None  # by time.monotonic(); None: no question is open
        self._answered = b""  # what has come of its answer

    async def look(self, pids: Collection[int]) -> KernelView | None:
        """Return what these processes did since the look before, or what those of an earlier look did, if its answer
        came late. None: unknown. Raises nothing but cancellation."""
        try:
            if self._pid is None and not self._start():
                return None
            async with asyncio.timeout(ANSWER_LIMIT_S):
                answer = await self._exchange(Ask(pids=sorted(pids)))
        except Exception as error:  # whatever it is, no round may fail by it
            is_late = isinstance(error, TimeoutError)
            if is_late and self._asked_at is not None and time.monotonic() - self._asked_at < SILENT_LIMIT_S:
                return None
            why = f"none for {SILENT_LIMIT_S:g} s" if is_late else f"{type(error).__name__}: {error}"
            _log.warning("eBPF: no answer from the observer: %s. The run continues without it", why)
            self.close()
            return None
        if answer.why_not:
            _log.warning("eBPF: %s. The run continues without it", answer.why_not)
            self._starts_left = 0
            self.close()
        if answer.view is not None and answer.view.missing != self._missing:
            self._missing = answer.view.missing
            _log.info("eBPF: not seen: %s", self._missing)
        return answer.view

    def close(self) -> None:
        """End the observer; what it attached ends with it."""
        if self._pid is None:
            return
        pid, self._pid, self._asked_at = self._pid, None, None
        for fd in (self._ask_fd, self._answer_fd):
            os.close(fd)
        kill(pid, 9)

    def _start(self) -> bool:
        if self._starts_left <= 0 or self._reaper is None:
            return False
        self._starts_left -= 1
        with contextlib.ExitStack() as stack:
            ends = [*os.pipe(), *os.pipe()]  # close-on-exec, as all of Python's
            keep = stack.enter_context(_closing(ends))
            actions: list[tuple[object, ...]] = [
                (os.POSIX_SPAWN_DUP2, ends[0], 0),
                (os.POSIX_SPAWN_DUP2, ends[3], 1),
            ]
            argv = [sys.executable, "-c", _BOOT, str(os.getpid())]
            self._pid = os.posix_spawn(
                sys.executable, argv, dict(self._environ), file_actions=actions, setsid=True, setsigmask=()
            )
            self._ask_fd, self._answer_fd = ends[1], ends[2]
            keep.update((ends[1], ends[2]))
        os.set_blocking(self._ask_fd, False)
        os.set_blocking(self._answer_fd, False)
        self._reaper.watch(self._pid, lambda ended: None)
        return True

    async def _exchange(self, ask: Ask) -> Answer:
        """The answer to this question, or to one that is still open. Raises OSError where it has ended."""
        if self._asked_at is None:
            self._asked_at, self._answered = time.monotonic(), b""
            line = msgspec.json.encode(ask) + b"\n"
            if os.write(self._ask_fd, line) != len(line):
                raise OSError("it takes no questions")
        loop = asyncio.get_running_loop()
        while not self._answered.endswith(b"\n"):
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._answer_fd, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._answer_fd)
            part = os.read(self._answer_fd, _PART)
            if not part:
                raise OSError("it ended")
            self._answered += part
        self._asked_at = None
        return msgspec.json.decode(self._answered, type=Answer)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


@contextlib.contextmanager
def _closing(fds: Collection[int]) -> Iterator[set[int]]:
    """Close all of them at the end but those that were put into the set."""
    keep: set[int] = set()
    try:
        yield keep
    finally:
        for fd in fds:
            if fd not in keep:
                os.close(fd)
