"""The agent's handle on the template process, and the pool of parked workers it forks.

Answers: is there a parked worker to be had, and if not, why not. A template that dies or spoils itself is started
again without the module that did it, a few times; after that it is unusable, ranks get fresh interpreters, and the
reason goes with each of them. Parked workers that exist are used in any case.
"""

import asyncio
import collections
import functools
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from everstep.agent import imports, reaping
from everstep.agent.channel import Channel
from everstep.agent.imports import ImportList
from everstep.agent.reaping import Ended, Reaper
from everstep.agent.spawn import SpawnError, spawn_template
from everstep.wire import local

MAX_STARTS = 5
"""Each start may exclude one more module. Beyond, the environment is not one for forking."""

_CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
"""Signals for which the module that was being imported is to blame; SIGKILL and SIGTERM came from elsewhere."""

_log = logging.getLogger(__name__)


class Parked(msgspec.Struct, frozen=True, kw_only=True):
    """A forked worker that waits for its assignment. Whoever takes it owns the socket."""

    pid: int
    link: socket.socket


class TemplateNews(msgspec.Struct, frozen=True, kw_only=True):
    usable: bool
    why: str = ""
    num_modules: int = 0
    took_s: float = 0.0


class Template:
    """One per agent. `why_not` says why nothing can be forked now; empty if it can, or soon can."""

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        log_path: Path,
        cache: Path,
        reaper: Reaper,
        on_news: Callable[[TemplateNews], None],
    ) -> None:
        # OpenBLAS makes its threads when NumPy is imported; workers give themselves back what the user asked for.
        self._env = {**env, "OPENBLAS_NUM_THREADS": "1"}
        self._log_path = log_path
        self._cache = cache
        self._reaper = reaper
        self._on_news = on_news
        self.imports: ImportList = imports.load(cache)
        self._parked: collections.deque[Parked] = collections.deque()
        self._num_pending = 0
        self._wanted = 0
        self._starts = 0
        self._importing = ""
        self._channel: Channel | None = None
        self._pid = 0
        self._ready = False
        self._has_learned = False
        self._changed = asyncio.Event()
        self.why_not = ""

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def num_parked(self) -> int:
        return len(self._parked)

    def is_parking(self) -> bool:
        """A worker may have been forked of which we have not heard yet."""
        return self._num_pending > 0

    def start(self) -> None:
        """Start the process and let it import; it reports when it is done."""
        self._starts += 1
        self._ready = False
        self._importing = ""
        self._num_pending = 0
        if self._starts > MAX_STARTS:
            self._give_up(f"it was started {MAX_STARTS} times; the last end: {self.why_not or 'unknown'}")
            return
        try:
            self._pid, sock = spawn_template(self._env, str(self._log_path))
        except SpawnError as error:
            self._give_up(str(error))
            return
        self._reaper.watch(self._pid, self._on_end)
        self._channel = Channel(sock, self._on_frame, self._on_closed)
        self._channel.send({"do": "import", "modules": self.imports.wanted()})

    def park(self, count: int) -> None:
        """Have `count` parked workers, as soon as possible."""
        self._wanted = count
        missing = count - len(self._parked) - self._num_pending
        if self._ready and self._channel is not None and missing > 0:
            self._num_pending += missing
            self._channel.send({"do": "park", "count": missing})

    async def wait_parked(self, count: int, timeout_s: float) -> str:
        """Wait until `count` are parked. Empty, or the reason why it will not be."""
        self.park(count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while len(self._parked) < count:
            if self.why_not:
                return self.why_not
            self._changed.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()
            except TimeoutError:
                what = f"importing {self._importing}" if self._importing and not self._ready else "forking"
                return f"the template was still {what} after {timeout_s:.0f} s"
        return ""

    def take(self) -> Parked | None:
        """A parked worker, if there is one."""
        while self._parked:
            parked = self._parked.popleft()
            # Watched until now for its own sake; an end between here and the new owner's watch stays unclaimed.
            if self._reaper.hand_over(parked.pid, lambda _: None):
                return parked
            parked.link.close()
        return None

    def learn(self, names: list[object]) -> None:
        """Modules that a worker had loaded after its first step."""
        self._has_learned |= self.imports.learn(names) > 0

    def refresh(self, count: int) -> None:
        """Import what was learned, then park `count` new workers. For quiet times: after the first steps."""
        if not self._has_learned:
            self.park(count)
            return
        self._has_learned = False
        self._save()
        self._wanted = count
        if self._channel is not None and self._ready:
            self._ready = False
            self._channel.send({"do": "import", "modules": self.imports.wanted()})

    def close(self) -> None:
        """End the template and everything parked."""
        self._wanted = 0
        self._discard_parked()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._pid:
            self._reaper.hand_over(self._pid, lambda _: None)
            reaping.kill(self._pid, signal.SIGKILL)

    def _on_frame(self, frame: local.Frame, fds: list[int]) -> None:
        what = frame.get("is")
        if what == "parked" and fds:
            self._on_parked(int(frame.get("pid", 0)), fds[0])
        elif what == "importing":
            self._importing = str(frame.get("module"))
        elif what == "ready":
            self._on_ready(frame)
        elif what == "spoiled":
            self._exclude(str(frame.get("module", "")), str(frame.get("why", "")))
        elif what == "unusable":
            self._give_up(str(frame.get("why", "")))
        self._changed.set()

    def _on_ready(self, frame: local.Frame) -> None:
        self._ready = True
        self._importing = ""
        for name, why in dict(frame.get("failed") or {}).items():
            if name in self.imports.modules:
                self.imports.excluded[name] = why
        if self._num_pending == 0:
            self._discard_parked()  # forked before the new modules came in
        self.park(self._wanted)
        self._on_news(
            TemplateNews(
                usable=True, num_modules=int(frame.get("num_modules", 0)), took_s=float(frame.get("took_s", 0))
            )
        )

    def _on_parked(self, pid: int, fd: int) -> None:
        self._num_pending = max(0, self._num_pending - 1)
        link = socket.socket(fileno=fd)
        if pid == 0:
            link.close()
            return
        parked = Parked(pid=pid, link=link)
        self._parked.append(parked)
        self._reaper.watch(pid, functools.partial(self._on_parked_end, parked))

    def _on_parked_end(self, parked: Parked, ended: Ended) -> None:
        if parked in self._parked:
            _log.warning("parked worker %d ended: %s", parked.pid, ended)
            self._parked.remove(parked)
            parked.link.close()
            self.park(self._wanted)

    def _discard_parked(self) -> None:
        while self._parked:
            parked = self._parked.popleft()
            self._reaper.hand_over(parked.pid, lambda _: None)
            parked.link.close()  # it reads the end of its link, and ends

    def _exclude(self, module: str, why: str) -> None:
        """Remember not to import this; the template ends after saying so and is started again."""
        _log.warning("template: importing %s: %s", module, why)
        self.why_not = ""
        if not module:
            self._give_up(why)
            return
        self.imports.excluded[module] = why
        self._save()
        if module in imports.DEFAULT_MODULES and module.split(".")[0] == "torch":
            self._give_up(f"importing {module}: {why}")

    def _on_closed(self, why: str) -> None:
        self._channel = None
        _log.info("template's socket: %s", why)

    def _on_end(self, ended: Ended) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._ready = False
        self._pid = 0
        if self.why_not:
            return
        _log.warning("template ended: %s (importing %r)", ended, self._importing)
        if ended.signal in _CRASHES and self._importing not in ("", *imports.DEFAULT_MODULES):
            self.imports.excluded[self._importing] = f"the process ended by signal {ended.signal}"
            self._save()
        self.start()
        self._changed.set()

    def _give_up(self, why: str) -> None:
        self.why_not = why or "no reason given"
        self._changed.set()
        self._on_news(TemplateNews(usable=False, why=self.why_not))

    def _save(self) -> None:
        try:
            imports.save(self._cache, self.imports)
        except OSError as error:
            _log.warning("learned imports not kept: %s", error)


def everstep_home() -> Path:
    return Path(os.environ.get("EVERSTEP_HOME") or Path.home() / ".everstep")
