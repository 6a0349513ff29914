"""Listens to the kernel log in a thread of its own, so that a line is reported at once and a flood delays nothing else.

The thread waits in poll() and costs nothing while the kernel is silent. It opens the log at once and loads the known
signatures a moment later, so that a node that starts during a recovery is not held up. Owned by `agent.senses.sensing`.
"""

import logging
import os
import select
import threading
import time
from pathlib import Path
from typing import Protocol

from everstep.agent.senses.hurry import Hurry
from everstep.knowledge import live
from everstep.knowledge.loading import load_base
from everstep.knowledge.review import ReviewQueue
from everstep.model.facts import Alert
from everstep.probes.node.kernel.kernel_lines import SOURCE, KernelLines
from everstep.probes.node.kernel.kernel_log import KernelLog
from everstep.probes.sense import UnsupportedError

LOAD_AFTER_S = 1.0
GATHER_S = 0.05
"""After the first line of a burst: one fault makes several lines. Also the pause between two batches."""
FILE_LOOK_S = 0.25
"""A plain file cannot be waited for."""
AGAIN_S = 5.0
"""Between two attempts to open a log that is not there."""
FAILED_AGAIN_S = 300.0
NICENESS = 10

_log = logging.getLogger(__name__)


class Brain(Protocol):
    """The owner of the ears. Everything is called in their thread."""

    def hear(self, alerts: list[Alert]) -> None: ...

    def say(self, sense: str, why: str) -> None:
        """The state of a sense: "" works, else why not."""

    def rank_of(self, pid: int) -> int | None:
        """The rank that runs, or ran last, as this process."""


class Ears:
    """The listener. `opened`: a log that was opened before there was time for a thread; this object owns it from now
    on. `hurry`: ring it to have the log read at once."""

    def __init__(
        self,
        path: str,
        brain: Brain,
        *,
        queue: ReviewQueue | None = None,
        opened: KernelLines | None = None,
        hurry: Hurry | None = None,
        load_after_s: float = LOAD_AFTER_S,
    ) -> None:
        self._path = path
        self._brain = brain
        self._queue = queue
        self._opened = opened
        self._hurry = hurry
        self._rings = () if hurry is None else (hurry.fd,)
        self._has_failed = False
        self._load_after_s = load_after_s
        self._stop_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._thread = threading.Thread(target=self._run, name="everstep-kernel-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, limit_s: float = 1.0) -> None:
        """End the thread; one that does not come is left to end with the process."""
        os.eventfd_write(self._stop_fd, 1)
        if self._thread.ident is not None:
            self._thread.join(limit_s)
        if not self._thread.is_alive():
            os.close(self._stop_fd)

    def _run(self) -> None:
        be_nice()
        log: KernelLog | None = None
        while True:
            pause_s = AGAIN_S
            try:
                lines, self._opened = self._opened or KernelLines(self._path), None
            except UnsupportedError as error:
                self._brain.say(SOURCE, f"unsupported: {error}")
                if self._stops_within(AGAIN_S):
                    return
                continue
            try:
                if log is None:
                    if self._stops_within(self._load_after_s):
                        return
                    log = self._load()
                self._brain.say(SOURCE, "")
                if self._listen(lines, log):
                    return
            except UnsupportedError as error:
                self._brain.say(SOURCE, f"unsupported: {error}")
            except Exception as error:
                # A fault of ours costs this sense, and only for a while.
                self._fail(error)
                pause_s = FAILED_AGAIN_S
            finally:
                lines.close()
            if self._stops_within(pause_s):
                return

    def _fail(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.error("cannot read the kernel log; logged once", exc_info=error)
        self._brain.say(SOURCE, f"failed: {type(error).__name__}: {error}")

    def _load(self) -> KernelLog:
        sites = [Path(d) for d in os.environ.get("EVERSTEP_KB_DIR", "").split(os.pathsep) if d]
        shared = None
        if sites:
            base = load_base(sites)
        else:  # those that explain the ends of ranks: compiled once
            shared = live.shared()
            shared.prepare()
            base, _ = shared.get()
        for problem in base.problems:
            _log.warning("signature refused: %s", problem)
        return KernelLog(base, rank_of=self._brain.rank_of, queue=self._queue, shared=shared)

    def _listen(self, lines: KernelLines, log: KernelLog) -> bool:
        """Listen until asked to stop (True). Raises UnsupportedError when the log is gone."""
        num_overwritten = 0
        while True:
            if self._stops_before_lines(lines):
                return True
            if self._stops_within(GATHER_S, *self._rings):
                return True
            is_hurried = self._hurry is not None and self._hurry.take()
            fresh = lines.read()
            if lines.num_overwritten != num_overwritten:
                num_overwritten = lines.num_overwritten
                _log.warning("the kernel log was overwritten before it was read, %d times so far", num_overwritten)
            if fresh:
                alerts = log.take(fresh, time.time())
                if alerts:
                    self._brain.hear(alerts)
            elif is_hurried:
                self._brain.hear([])  # what was folded a moment ago is news now

    def _stops_before_lines(self, lines: KernelLines) -> bool:
        """Waits until there may be some: forever for what can be waited for, else for its next look."""
        if not lines.is_pollable:
            return self._stops_within(FILE_LOOK_S, *self._rings)
        return self._stops_within(None, *self._rings, lines.fd)

    def _stops_within(self, limit_s: float | None, *others: int) -> bool:
        """Whether it was asked to stop. Waits so long, or until one of the others has something."""
        poll = select.poll()
        for fd in (self._stop_fd, *others):
            poll.register(fd, select.POLLIN)
        ready = poll.poll(None if limit_s is None else limit_s * 1000)
        return any(fd == self._stop_fd for fd, _ in ready)


def be_nice() -> None:
    """Only this thread yields to the training; Linux keeps niceness per thread."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    except OSError:
        return
