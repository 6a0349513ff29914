"""Keeps a controller alive: starts it, and starts another when it ends. Training continues in between.

A controller that cannot begin (its journal is damaged, another one owns the run) ends the launcher with that error; one
that began and dies is replaced, at first at once, then with a back-off. Too many deaths in a row are logged loudly, and
retried for ever: the workers are better off unmanaged than ended.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from everstep.engines.children import Child, Children
from everstep.linux.children import Ended

log = logging.getLogger("everstep.launcher")

MAX_DEATHS = 20
DEATHS_WINDOW_S = 60.0
"""More deaths than this within the window: the controller dies of something that starting it again does not cure."""

UNMANAGED_RETRY_S = 5.0
MAX_FAILED_BEGINNINGS = 3
"""Faults (not errors with a message) before any controller of this launcher worked: nothing runs yet, so give up."""

_BACK_OFF_S = (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)
_CANNOT_BEGIN = range(1, 10)  # EverstepError's exit codes


Begin = Callable[[Callable[[Child, Ended], None]], Child | None]
"""Releases a controller that waits; it was started with the sockets that any other one gets."""


def arguments(
    run_dir: Path,
    *,
    listen_fds: tuple[int, ...],
    tls_fds: tuple[int, ...],
    copied_fd: int | None,
    end_signal: int,
) -> tuple[list[str], tuple[int, ...]]:
    """The command of a controller, and the descriptors that it inherits."""
    argv = [sys.executable, "-P", "-m", "everstep.controller", "--run-dir", str(run_dir)]
    argv += ["--parent", str(os.getpid())]
    argv += [] if end_signal == signal.SIGTERM else ["--end-signal", str(int(end_signal))]
    argv += [word for fd in listen_fds for word in ("--listen-fd", str(fd))]
    argv += [word for fd in tls_fds for word in ("--tls-fd", str(fd))]
    argv += [] if copied_fd is None else ["--copied-fd", str(copied_fd)]
    return argv, (*listen_fds, *tls_fds, *(() if copied_fd is None else (copied_fd,)))


class KeeperOwner(Protocol):
    """The launcher whose controller it is."""

    @property
    def controller_has_worked(self) -> bool:
        """Whether any controller of this launcher was there for it."""

    def on_hopeless(self, exit_code: int) -> None:
        """No controller can begin."""

    def say(self, text: str) -> None:
        """To the person at the terminal."""


class ControllerKeeper:
    def __init__(
        self,
        *,
        children: Children,
        run_dir: Path,
        listen_fds: tuple[int, ...],
        tls_fds: tuple[int, ...] = (),
        copied_fd: int | None = None,
        waiting: Begin | None = None,
        owner: KeeperOwner,
        end_signal: int = signal.SIGTERM,
    ) -> None:
        self._end_signal = end_signal
        self._children = children
        self._run_dir = run_dir
        self._listen_fds = listen_fds
        self._tls_fds = tls_fds
        self._copied_fd = copied_fd
        self._waiting = waiting
        self._owner = owner
        self._deaths: deque[float] = deque()
        self._is_ending = False
        self._retry: asyncio.TimerHandle | None = None
        self.child: Child | None = None

    def start(self) -> None:
        self._retry = None
        if self._is_ending:
            return
        begin, self._waiting = self._waiting, None
        if begin is not None:
            self.child = begin(self._on_end)
            if self.child is not None:
                return
        argv, fds = arguments(
            self._run_dir,
            listen_fds=self._listen_fds,
            tls_fds=self._tls_fds,
            copied_fd=self._copied_fd,
            end_signal=self._end_signal,
        )
        try:
            self.child = self._children.spawn("controller", argv, on_end=self._on_end, pass_fds=fds)
        except OSError as error:
            self._owner.say(f"the controller cannot be started: {error}; training continues without it")
            self._start_after(UNMANAGED_RETRY_S)

    def stop(self) -> Child | None:
        """No more controllers. Returns the running one."""
        self._is_ending = True
        if self._retry is not None:
            self._retry.cancel()
        return self.child if self.child is not None and self.child.ended is None else None

    def _on_end(self, child: Child, ended: Ended) -> None:
        if self._is_ending:
            return
        now = time.monotonic()
        self._deaths.append(now)
        while self._deaths[0] < now - DEATHS_WINDOW_S:
            self._deaths.popleft()
        if not self._owner.controller_has_worked:
            is_error = ended.code in _CANNOT_BEGIN
            if is_error or len(self._deaths) >= MAX_FAILED_BEGINNINGS:
                self._owner.on_hopeless(ended.code if is_error and ended.code is not None else 1)
                return
        if len(self._deaths) > MAX_DEATHS:
            self._owner.say(
                f"the controller has ended {len(self._deaths)} times within {DEATHS_WINDOW_S:.0f} s (last: {ended}): "
                f"training continues UNMANAGED, no fault is handled; trying again every {UNMANAGED_RETRY_S:.0f} s. "
                f"See {self._run_dir / 'controller.log'}"
            )
            self._start_after(UNMANAGED_RETRY_S)
            return
        meanwhile = ", training continues" if self._owner.controller_has_worked else ""
        self._owner.say(f"the controller ended ({ended}); starting another{meanwhile}")
        self._start_after(_BACK_OFF_S[min(len(self._deaths) - 1, len(_BACK_OFF_S) - 1)])

    def _start_after(self, delay_s: float) -> None:
        if delay_s == 0:
            self.start()
        else:
            self._retry = asyncio.get_running_loop().call_later(delay_s, self.start)
