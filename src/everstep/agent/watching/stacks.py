"""Stacks of a rank, by whatever works here: py-spy from outside, the rank's own sampler, frames spilled on a signal.

Never waits on the event loop, never runs more py-spys at a time than the CPUs can bear, never takes longer than asked.
Each method that failed is listed. The agent's reaper reports py-spy's exit, like every child's; its output goes to
memory.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.agent.processes import reaping
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.watch_link import Spill
from everstep.agent.ranks.workers import Worker
from everstep.linux import proc
from everstep.probes.process import usage
from everstep.probes.rank.stack import command, find_py_spy, is_undecided, parse, parse_spill, why_no_py_spy

MAX_AT_ONCE = max(2, (os.cpu_count() or 2) // 4)
"""py-spy needs a CPU for some tens of milliseconds; more of them would take it from the ranks."""

SAMPLE_S = 0.6
"""A rank whose GIL is free answers in 20 ms; a busy machine gets the rest."""

SPILL_S = 0.3
SPILL_STEP_S = 0.005
"""Frames are written within a millisecond of the signal, where there is a CPU for the rank; a busy machine gets what is
left of the time. Complete is what has not grown for one step."""

MAX_LOOKS = 4
"""Looks for evidence: py-spy catches a rank that runs Python without the GIL when it lends the GIL to another thread
for that moment. One look in thirty did, on a busy machine."""

REFUSED_S = 60.0
"""Not permitted is not permitted a moment later either; but a container may be given the right."""

_MAX_BYTES = 16 << 20


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Threads in py-spy's form, which method gave them, and why others did not."""

    threads: list[object]
    source: str = ""  # "py-spy", "sampler", "signal"; empty: none
    missing: tuple[str, ...] = ()

    @property
    def why_not(self) -> str:
        """Empty when there are threads."""
        return "" if self.threads else "; ".join(self.missing) or "no stack"


class Stacks:
    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper
        self._py_spy = find_py_spy()
        self._room = asyncio.Semaphore(MAX_AT_ONCE)
        self._refused = ""
        self._refused_until = float("-inf")

    async def of_rank(
        self, worker: Worker, limit_s: float, *, by_signal: bool = False, sample_s: float = SAMPLE_S
    ) -> Look:
        """`by_signal`: as the last resort, interrupt the rank. Only for evidence, not for routine."""
        until = time.monotonic() + limit_s
        reserved_s = sample_s + (SPILL_S if by_signal else 0.0)
        threads, why_not = await self.take(worker.pid, max(limit_s / 2, limit_s - reserved_s))
        if threads and by_signal:
            threads = await self._settled(worker.pid, threads, until)
        if threads:
            return Look(threads=threads, source="py-spy")
        missing = [why_not]
        if worker.watch is None:
            return Look(threads=[], missing=(*missing, "there is no watch thread in this program"))
        threads, why_not = await worker.watch.sample(min(sample_s, limit_s / 2))
        if threads:
            return Look(threads=threads, source="sampler", missing=tuple(missing))
        missing.append(f"sampler: {why_not}")
        if by_signal and worker.watch.spill is not None and worker.is_alive:
            threads, why_not = await _spilled(worker, worker.watch.spill, until)
            if threads:
                return Look(threads=threads, source="signal", missing=tuple(missing))
            missing.append(f"frames on a signal: {why_not}")
        return Look(threads=[], missing=tuple(missing))

    async def _settled(self, pid: int, threads: list[object], until: float) -> list[object]:
        """These, or those of a later look that says what this one left open."""
        for _ in range(MAX_LOOKS - 1):
            left_s = until - time.monotonic()
            if left_s <= 0 or not is_undecided(threads):
                break
            again, _why_not = await self.take(pid, left_s)
            threads = again or threads
        return threads

    async def take(self, pid: int, limit_s: float) -> tuple[list[object], str]:
        """The threads of one process as py-spy's JSON has them; or none, and why."""
        if self._py_spy is None:
            return [], why_no_py_spy()
        if time.monotonic() < self._refused_until:
            return [], self._refused
        try:
            async with asyncio.timeout(limit_s):
                async with self._room:
                    threads, why_not = await self._run(command(self._py_spy, pid))
        except TimeoutError:
            return [], f"py-spy gave nothing within {limit_s:g} s"
        except OSError as error:
            return [], f"py-spy cannot be started: {error.strerror}"
        if "permi" in why_not.lower():  # "Permission Denied", "Operation not permitted"
            self._refused, self._refused_until = f"py-spy: {why_not}", time.monotonic() + REFUSED_S
        return threads, why_not

    async def _run(self, argv: list[str]) -> tuple[list[object], str]:
        with _memory() as out, _memory() as err:
            files = [
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out, 1),
                (os.POSIX_SPAWN_DUP2, err, 2),
            ]
            pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=files, setsigmask=())
            ended = asyncio.Event()
            self._reaper.watch(pid, lambda _ended: ended.set())
            try:
                await ended.wait()
            finally:
                if not ended.is_set():
                    reaping.kill(pid, signal.SIGKILL)
            return parse(os.pread(out, _MAX_BYTES, 0), os.pread(err, _MAX_BYTES, 0))


async def _spilled(worker: Worker, spill: Spill, until: float) -> tuple[list[object], str]:
    """Signal the rank and read what its handler wrote, until then (time.monotonic) or a moment longer."""
    use = usage(worker.pid)
    if use is None or use.state in "TtZX":
        return [], f"the process cannot take a signal (state {use.state if use is not None else 'gone'})"
    if not _is_expected(worker.pid, spill):
        return [], "the program has changed what that signal or its file means"
    fd = os.dup(spill.fd)  # the rank may end while we wait; its own number is closed then, and soon another file's
    try:
        os.ftruncate(fd, 0)
        os.lseek(fd, 0, os.SEEK_SET)  # the rank's offset too: both ends are one open file
        worker.send_signal(spill.signum)
        began = time.monotonic()
        limit = began + SPILL_S  # enough for a rank that waits in the kernel (D): more time would not help it
        text = await _written(fd, worker, limit if use.state == "D" else max(until, limit))
    finally:
        os.close(fd)
    if not text:
        return [], f"nothing was written within {time.monotonic() - began:.1f} s"
    return parse_spill(text, worker.pid, is_running=use.state == "R"), "nothing was written"


async def _written(fd: int, worker: Worker, until: float) -> str:
    """Return the content of the file once it is complete; empty if nothing comes."""
    size = 0
    while time.monotonic() < until and worker.is_alive:
        await asyncio.sleep(SPILL_STEP_S)
        grown = os.fstat(fd).st_size
        if grown and grown == size:
            return os.pread(fd, _MAX_BYTES, 0).decode("utf-8", "replace")
        size = grown
    return ""


def _is_expected(pid: int, spill: Spill) -> bool:
    """The process still has a handler for the signal, and the file at its end is ours: a program that closed it, or
    became another by exec, must not be hit."""
    try:
        target = str(Path(f"/proc/{pid}/fd/{spill.remote_fd}").readlink())
    except OSError:
        return False
    return bool(proc.catches(pid, spill.signum)) and target.startswith("/memfd:everstep-spill")


@contextlib.contextmanager
def _memory() -> Iterator[int]:
    fd = os.memfd_create("everstep-py-spy", os.MFD_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)
