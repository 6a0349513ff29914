"""The twins of this node's ranks: which twin can replace which rank, and if none can, why not.

A rank leaves a twin of itself early (when torch has been imported) and a later one before its first effect; a standby
node has spares, which run the program up to the first question about their rank. The latest one that is still valid
continues.
"""

import asyncio
import functools
import logging
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.agent.processes import reaping
from everstep.agent.processes.ahead import Ahead
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.twin import APPEAR_S, Awake, Prefix, Twin, TwinOwner, how
from everstep.agent.versions.placing import Placed
from everstep.linux.children import Ended

WAKE_S = 10.0
"""A twin answers within milliseconds; one that is starved or swapped out is not waited for."""

IMPORT_S = 120.0

FINISH_S = 5.0
"""A rank that comes back waits for its twin to finish importing for so long beyond what the import took in a rank: it
would have to import the same itself, from the start."""

MAX_TWINS = 4
"""Twins of one rank: an early one, a late one, and the same while they are replaced."""

MAX_SPOILED = 8
"""Modules that spoil a twin, which it is made without; after so many it has only what came before the last of them."""

NO_TWIN = "the rank has left no twin yet"

_log = logging.getLogger(__name__)


class Twins:
    """The twins of all ranks of this node, by local rank."""

    def __init__(self, reaper: Reaper, owner: TwinOwner) -> None:
        self._reaper = reaper
        self._owner = owner
        self._twins: dict[int, list[Twin]] = {}
        self._why_not: dict[int, str] = {}
        self._num_waking = 0
        self._num_wanted = 0  # no import begins meanwhile: the CPUs are for those that come back
        self._making: dict[int, Twin] = {}  # that import ahead
        self._room = asyncio.Semaphore(imports_at_a_time())
        self.ahead: Ahead | None = None
        self.was_stale = False
        """What a rank had read before its last moment was something else when its twin was needed."""

    @property
    def is_forking(self) -> bool:
        """A process may have been forked of which we have not heard yet."""
        now = time.monotonic()
        announced = (twin for twins in self._twins.values() for twin in twins)
        return self._num_waking > 0 or any(
            not twin.is_here.is_set() and now - twin.told_at < APPEAR_S for twin in (*announced, *self._making.values())
        )

    def why_not(self, local_rank: int) -> str:
        """Why the rank could not continue from a twin now; empty if it could."""
        if self._twins.get(local_rank):
            return ""
        return self._why_not.get(local_rank, NO_TWIN)

    def add(self, local_rank: int, told: Mapping[str, Any], fd: int, placed: Placed, out: Path, err: Path) -> None:
        """A rank has left a twin. One that says so again and again gets no more than MAX_TWINS."""
        if len(self._twins.get(local_rank, ())) >= MAX_TWINS:
            os.close(fd)
            return
        try:
            sizes = {"out_bytes": int(told.get("out", 0)), "err_bytes": int(told.get("err", 0))}
            prefix = Prefix(stdout=out, stderr=err, **sizes)
            stage, reads = str(told.get("stage", ""))[:200], int(told.get("reads", 0))
            is_last = bool(told.get("last"))
            sock = socket.socket(fileno=fd)
        except (ValueError, TypeError, OverflowError, OSError):  # a rank may say, and pass, anything
            os.close(fd)
            raise
        twin = Twin(sock, stage=stage, placed=placed, prefix=prefix, reads=reads, is_last=is_last)
        twin.on_change = self._show_idle
        twin.on_here = functools.partial(self._on_here, local_rank)
        twin.on_gone = functools.partial(self._on_gone, local_rank)
        self._twins.setdefault(local_rank, []).append(twin)

    def add_spare(self, local_rank: int, pid: int, sock: socket.socket, placed: Placed, out: Path, err: Path) -> None:
        """A process that runs the program until it asks who it is, and is a twin from then on."""
        prefix = Prefix(stdout=out, stderr=err)
        twin = Twin(sock, stage="spare", placed=placed, prefix=prefix)
        twin.pid, twin.outlives = pid, False  # it writes to memory of this agent
        twin.on_here = functools.partial(self._on_spare, local_rank)
        twin.on_gone = functools.partial(self._on_gone, local_rank)
        self._reaper.watch(pid, functools.partial(self._on_end, local_rank, twin))

    def adopt(self, local_rank: int, twin: Twin) -> None:
        """A twin that waited when its agent was killed. It is this process's child."""
        twin.on_change = self._show_idle
        twin.on_here = functools.partial(self._on_adopted, local_rank)
        twin.on_gone = functools.partial(self._on_gone, local_rank)
        self._twins.setdefault(local_rank, []).append(twin)
        twin.channel.send({"do": "adopt", "agent": os.getpid()})

    def refuse(self, local_rank: int, why: str) -> None:
        """The rank cannot leave the twin that it wanted to leave; an earlier one may be there."""
        self._why_not[local_rank] = why[:500]
        self._owner.note_news()

    def learn(self, ahead: Ahead) -> bool:
        """Library modules that a rank has loaded after its twin was left, and variables that have changed since. False
        if that is known already."""
        if self.ahead is not None:
            return False
        self.ahead = ahead
        return True

    async def wake(self, local_rank: int, placed: Placed, env: Mapping[str, str]) -> "Awake | str":
        """The process that continues, or why there is none. Tries the latest twin first."""
        self._num_wanted += 1
        try:
            await self._finish_making(local_rank, placed)
            return await self._wake(local_rank, placed, env)
        finally:
            self._num_wanted -= 1

    async def _wake(self, local_rank: int, placed: Placed, env: Mapping[str, str]) -> "Awake | str":
        why = self.why_not(local_rank)
        for twin in reversed(list(self._twins.get(local_rank, ()))):
            if twin.placed != placed:
                self._drop(local_rank, twin)
                why = "the program, its arguments or its variables are others now"
                continue
            await twin.appear()
            if twin.is_busy or not twin.is_here.is_set() or not twin.pid:
                why = f"its twin ({twin.stage}) was not ready"
                continue
            self._num_waking += 1
            try:
                answer, fds = await twin.ask({"do": "wake", "env": dict(env)}, WAKE_S)
            except TimeoutError:
                answer, fds = {"is": "over"}, []
            finally:
                self._num_waking -= 1
            if answer.get("is") == "awake" and fds and self._is_ours(twin, int(answer.get("pid") or 0)):
                link = socket.socket(fileno=fds[0])
                return Awake(pid=int(answer["pid"]), link=link, stage=twin.stage, prefix=twin.prefix)
            for fd in fds:
                os.close(fd)
            self.was_stale |= answer.get("is") == "stale"
            why = str(answer.get("why") or twin.why_over or "its twin does not answer")
            self._drop(local_rank, twin)
        self._why_not[local_rank] = why
        return why

    def _show_idle(self) -> None:
        self._owner.note_idle(
            [(local_rank, twin) for local_rank, twins in self._twins.items() for twin in twins if twin.is_heritable]
        )

    def _is_ours(self, twin: Twin, pid: int) -> bool:
        """Whether this twin has just forked the process, or did so ahead of time. It is unwatched afterwards."""
        if twin.pid_ahead and pid == twin.pid_ahead:
            twin.pid_ahead = 0
            return self._reaper.let_go(pid)
        return pid in self._reaper.adopted()

    async def fork_ahead(self) -> None:
        """Let each rank's latest twin fork the process that would continue from it: a copy of the memory's tables takes
        longer than all else of a start. One after another: the CPUs are the ranks'."""
        for local_rank in sorted(self._twins):
            twin = next(iter(reversed(self._twins.get(local_rank, ()))), None)
            if twin is None or twin.pid_ahead or twin.is_busy or not twin.pid or not twin.is_here.is_set():
                continue
            if self._num_wanted or local_rank in self._making:
                return
            await self._fork_ahead(twin)

    async def _fork_ahead(self, twin: Twin) -> None:
        self._num_waking += 1
        try:
            answer, fds = await twin.ask({"do": "ahead"}, WAKE_S)
        except TimeoutError:
            return
        finally:
            self._num_waking -= 1
        for fd in fds:
            os.close(fd)
        pid = answer.get("pid")
        if answer.get("is") == "ahead" and isinstance(pid, int) and pid in self._reaper.adopted():
            twin.pid_ahead = pid
            self._owner.tell_session(pid)
            self._reaper.watch(pid, twin.forget_ahead)

    async def import_ahead(self) -> None:
        """Let each rank's latest twin leave one that has imported what its rank has imported later. The CPU time that
        the ranks lose is the same one after another or at once; at once, all are ready sooner."""
        if self.ahead is None or not self.ahead.modules:
            return
        await asyncio.gather(*(self._import_in_turn(local_rank, self.ahead) for local_rank in sorted(self._twins)))

    async def _import_in_turn(self, local_rank: int, what: Ahead) -> None:
        """All of it, but for modules that spoil a twin, and for those that import them. What comes before one of those
        is imported by itself then: it is good, and nothing after it can spoil it."""
        async with self._room:
            left, num_spoiled = list(what.modules), 0
            while left and num_spoiled < MAX_SPOILED:
                spoiler = await self._import_ahead(local_rank, left, what)
                if spoiler is None:
                    return
                if spoiler == "":
                    break
                at, num_spoiled = left.index(spoiler), num_spoiled + 1
                if at and await self._import_ahead(local_rank, left[:at], what) != "":
                    return
                left = left[at + 1 :]
            for twin in self._twins.get(local_rank, [])[-1:]:
                twin.has_imported = True
            self._show_idle()
            self._owner.note_proven(what)

    def _to_import(self, local_rank: int) -> Twin | None:
        """Who may import now: the twin that would be woken."""
        twin = next(iter(reversed(self._twins.get(local_rank, ()))), None)
        if twin is None or twin.has_imported or not twin.pid or not twin.is_here.is_set():
            return None
        return None if self._num_wanted or local_rank in self._making else twin

    async def _import_ahead(self, local_rank: int, modules: list[str], what: Ahead) -> str | None:
        """Empty: there is a twin that has them. The module that spoiled one, which is left out from now on; None: it
        cannot be done now, or by no other try."""
        twin = self._to_import(local_rank)
        if twin is None:
            return None
        twin.has_imported = twin.is_leaving_another = True
        try:
            return await self._leave_another(local_rank, twin, modules, what)
        finally:
            twin.is_leaving_another = False
            self._show_idle()

    async def _leave_another(self, local_rank: int, twin: Twin, modules: list[str], what: Ahead) -> str | None:
        """Make another one of this twin, which imports, and puts it in its place."""
        try:
            answer, fds = await twin.ask({"do": "split"}, WAKE_S)
        except TimeoutError:
            return None
        if answer.get("is") != "split" or not fds:
            return None
        ahead = Twin(
            socket.socket(fileno=fds[0]),
            stage=twin.stage,
            placed=twin.placed,
            prefix=twin.prefix,
            reads=twin.reads,
            is_last=twin.is_last,
        )
        ahead.outlives = twin.outlives
        self._making[local_rank] = ahead
        ahead.on_here = functools.partial(self._watch, local_rank)
        is_used = False
        try:
            async with asyncio.timeout(WAKE_S):
                await ahead.is_here.wait()
            answer, _ = await ahead.ask({"do": "import", "modules": modules, "changed": what.changed}, IMPORT_S)
            is_used = answer.get("is") == "ready" and self._replace(local_rank, twin, ahead)
        except TimeoutError:
            _log.warning("the twin of local rank %d was still importing ahead after %g s", local_rank, IMPORT_S)
            answer = {}
        finally:
            del self._making[local_rank]
            ahead.is_made.set()
            if not is_used:
                self._drop(local_rank, ahead)
        if answer.get("is") == "ready":
            _log.info("the twin of local rank %d has imported ahead: %s", local_rank, answer)
            return "" if is_used else None
        _log.info("modules are not imported ahead: %s: %s", answer.get("module"), answer.get("why"))
        spoiler = str(answer.get("module") or "")
        if spoiler not in modules:
            return None  # no module is to blame, so another try would end alike
        if spoiler in what.modules:  # of several ranks, the first one says so
            what.modules.remove(spoiler)
        twin.has_imported = False
        return spoiler

    def _replace(self, local_rank: int, twin: Twin, ahead: Twin) -> bool:
        """Put the process made ahead in the place of its twin. False: the twin has gone meanwhile, and the new one is
        unusable."""
        mine = self._twins.get(local_rank, [])
        if twin not in mine:
            return False
        ahead.on_gone, ahead.on_change = functools.partial(self._on_gone, local_rank), self._show_idle
        mine.append(ahead)
        self._drop(local_rank, twin)
        self._owner.note_news()
        return True

    async def _finish_making(self, local_rank: int, placed: Placed) -> None:
        """The rank needs its twin now; what has begun is nearer to its end than a rank that would begin."""
        making = self._making.get(local_rank)
        if making is None:
            return
        try:
            async with asyncio.timeout(self._worth_s(making) if making.placed == placed else 0.0):
                await making.is_made.wait()
        except TimeoutError:
            making.close()

    def _worth_s(self, making: Twin) -> float:
        """How long it is worth to wait for this one."""
        took_s = self.ahead.took_s if self.ahead is not None else 0.0
        due = making.told_at + min(took_s, IMPORT_S) + FINISH_S
        return max(0.0, due - time.monotonic())

    def close(self) -> None:
        """End all of them."""
        for twin in self._making.values():
            self._drop(-1, twin)
        for local_rank, twins in self._twins.items():
            for twin in list(twins):
                self._drop(local_rank, twin)

    def are_late(self, num_ranks: int) -> bool:
        """Each rank has left its latest twin at the last moment."""
        latest = [twins[-1] for twins in self._twins.values() if twins]
        return len(latest) == num_ranks and all(twin.is_last for twin in latest)

    @property
    def num_modules(self) -> int:
        return max((twin.num_modules for twins in self._twins.values() for twin in twins), default=0)

    def _watch(self, local_rank: int, twin: Twin) -> None:
        if twin.pid not in self._reaper.adopted():  # whatever it says: no stranger and no rank is taken for it
            twin.pid = 0
            self._drop(local_rank, twin)
            return
        self._owner.tell_session(twin.pid)
        self._reaper.watch(twin.pid, functools.partial(self._on_end, local_rank, twin))

    def _on_here(self, local_rank: int, twin: Twin) -> None:
        """The later one replaces the earlier one, unless what it has read may change: then both are kept."""
        self._watch(local_rank, twin)
        self._why_not.pop(local_rank, None)
        if not twin.reads:
            for earlier in [each for each in self._twins.get(local_rank, []) if each is not twin]:
                if earlier.is_here.is_set():
                    self._drop(local_rank, earlier)
        self._show_idle()
        self._owner.note_news()

    def _on_adopted(self, local_rank: int, twin: Twin) -> None:
        self._watch(local_rank, twin)
        self._why_not.pop(local_rank, None)
        self._show_idle()
        self._owner.note_news()

    def _on_gone(self, local_rank: int, twin: Twin) -> None:
        self._why_not[local_rank] = twin.why_over
        self._drop(local_rank, twin)
        self._owner.note_news()

    def _on_spare(self, local_rank: int, twin: Twin) -> None:
        self._twins.setdefault(local_rank, []).append(twin)
        self._why_not.pop(local_rank, None)
        self._owner.note_news()

    def _on_end(self, local_rank: int, twin: Twin, ended: Ended) -> None:
        twin.pid = 0  # the number may be another's soon
        if twin.why_over != "closed":
            _log.info("the twin of local rank %d (%s) ended: %s", local_rank, twin.stage, ended)
            self._why_not[local_rank] = f"its twin ({twin.stage}) has ended: {how(ended)}"
        self._drop(local_rank, twin)

    def _drop(self, local_rank: int, twin: Twin) -> None:
        mine = self._twins.get(local_rank, [])
        if twin in mine:
            mine.remove(twin)
        twin.close()
        for pid in (twin.pid, twin.pid_ahead):
            if pid:
                reaping.kill(pid, signal.SIGKILL)
        self._show_idle()


def imports_at_a_time() -> int:
    """So many twins import at once: enough that all are ready soon, not so many that a machine is swamped."""
    return 2 * len(os.sched_getaffinity(0))
