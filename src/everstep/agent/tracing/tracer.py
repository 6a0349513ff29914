"""The agent's end of a short trace: starts a process of its own for it, gets it the rank's flight record, and reports.

At most one at a time. Whatever stops the ranks, or one that ends by itself, ends it at once: a recovery never shares
the CPU with it. A fault in it costs the trace.
"""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from everstep.agent.processes.reaping import Reaper, kill_group
from everstep.agent.ranks.workers import Group, Worker
from everstep.agent.tracing import files
from everstep.agent.tracing.orders import Flight, Order, Told
from everstep.linux.children import Ended
from everstep.model.actions import TraceRank
from everstep.model.events import RankTraced
from everstep.probes.node.bounded import Call

START_S = 40.0
"""From its start to the end of what is recorded, beside the time of the trace: an interpreter, py-spy and the
verifier, on a machine with much more to run than CPUs."""

FLIGHT_S = 5.0
END_S = 30.0
_MAX_LINE = 1 << 16
_BOOT = "import sys; sys.path[:1] = []; from everstep.agent.tracing.tracer_main import main; main()"

_log = logging.getLogger(__name__)


class _EndedError(Exception):
    """There will be no trace. The text says why."""


class Tracer:
    """The tracer of one node."""

    def __init__(
        self,
        node: str,
        run_dir: Path,
        run: str,
        environ: Mapping[str, str],
        reaper: Reaper,
        report: Callable[[RankTraced], None],
    ) -> None:
        self._node, self._run_dir, self._run = node, run_dir, run
        self._environ = environ
        self._reaper = reaper
        self._report = report
        self._is_busy = False
        self._process: _Process | None = None
        self._why_ended = ""
        self._flights: list[str] = []  # a rank that answers too late writes one of these after the wait is over

    async def trace(self, action: TraceRank, group: Group | None) -> None:
        """Reports what became of it, whatever that is."""
        name, told = files.name_of(action.incident, action.generation, action.rank), Told()
        try:
            told = await self._trace(action, group, name)
        except _EndedError as error:
            told = Told(why=str(error))
        except Exception as error:
            _log.exception("rank %d is not traced", action.rank)
            told = Told(why=f"{type(error).__name__}: {error}"[:300])
        self._report(
            RankTraced(
                at=time.time(),
                node=self._node,
                generation=action.generation,
                incident=action.incident,
                rank=action.rank,
                file=f"{files.FOLDER}/{name}" if told.num_bytes else "",
                path=str(self._run_dir.absolute() / files.FOLDER / name) if told.num_bytes else "",
                num_bytes=told.num_bytes,
                seconds=told.seconds,
                why=told.why,
            )
        )

    def end(self, why: str) -> None:
        """End the trace that is under way, if there is one."""
        if self._process is not None:
            self._why_ended = self._why_ended or why
            self._process.kill()

    def close(self) -> None:
        """The node ends."""
        self.end("the node ends")
        self._remove()

    def _remove(self, *names: str) -> None:
        """These files, and what came too late of earlier traces. In a thread: a file system may hang."""
        if self._flights or names:
            Call(partial(files.remove, self._run_dir, *self._flights, *names), "everstep-trace", lambda: None)

    async def _trace(self, action: TraceRank, group: Group | None, name: str) -> Told:
        worker = None if group is None else group.workers.get(action.rank)
        if group is None or group.generation != action.generation or worker is None or not worker.is_alive:
            raise _EndedError("it runs here no more")
        if group.is_stopping:
            raise _EndedError("it is being stopped")
        if self._is_busy:
            raise _EndedError("another rank of this node is being traced")
        self._is_busy, self._why_ended = True, ""
        flight = f".{action.incident}-rank-{action.rank}-flight.part"
        self._flights.append(flight)
        told = None
        try:
            self._process = _Process(self._order(action, worker, name, flight), self._environ, self._reaper)
            told = await self._talk(self._process, worker, flight, action.seconds)
            return told
        finally:
            process, self._process, self._is_busy = self._process, None, False
            if process is not None:
                process.close()
                # A file that it was killed over is not one. One that was there before it is left as it was.
                is_half = told is None and process.has_begun_to_write
                self._remove(*([name] if is_half else []))

    def _order(self, action: TraceRank, worker: Worker, name: str, flight: str) -> Order:
        return Order(
            run_dir=str(self._run_dir),
            run=self._run,
            rank=action.rank,
            generation=action.generation,
            line=worker.local_rank,
            pid=worker.pid,
            agent=os.getpid(),
            seconds=action.seconds,
            name=name,
            flight=flight,
            max_bytes=action.max_bytes,
        )

    async def _talk(self, process: "_Process", worker: Worker, flight: str, seconds: float) -> Told:
        told = await self._line(process, seconds + START_S)
        if not told.wants_flight:
            return told
        why = "there is no watch thread in this program"
        if worker.watch is not None:
            why = await worker.watch.dump(self._run_dir / files.FOLDER / flight, FLIGHT_S)
        if self._why_ended:
            raise _EndedError(self._why_ended)
        process.say(Flight(why=why))
        return await self._line(process, END_S)

    async def _line(self, process: "_Process", limit_s: float) -> Told:
        try:
            async with asyncio.timeout(limit_s):
                return msgspec.json.decode(await process.line(), type=Told)
        except TimeoutError:
            raise _EndedError(f"it was not done within {limit_s:g} s") from None
        except EOFError as error:
            raise _EndedError(self._why_ended or str(error)) from None


class _Process:
    """In a session of its own, so that py-spy and whatever else it starts end with it."""

    def __init__(self, order: Order, environ: Mapping[str, str], reaper: Reaper) -> None:
        self.has_begun_to_write = False
        self._ended: Ended | None = None
        self._said = b""
        ask_out, self._ask = os.pipe()
        self._answer, answer_in = os.pipe()
        argv = [sys.executable, "-c", _BOOT, msgspec.json.encode(order).decode()]
        actions: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_DUP2, ask_out, 0),
            (os.POSIX_SPAWN_DUP2, answer_in, 1),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ]
        try:
            self.pid = os.posix_spawn(
                sys.executable, argv, dict(environ), file_actions=actions, setsid=True, setsigmask=()
            )
        except OSError:
            os.close(self._ask)
            os.close(self._answer)
            raise
        finally:
            os.close(ask_out)
            os.close(answer_in)
        os.set_blocking(self._answer, False)
        reaper.watch(self.pid, self._on_end)

    def _on_end(self, ended: Ended) -> None:
        kill_group(self.pid)  # what it has left running; its number is free only when nothing of its group is left
        self._ended = ended

    async def line(self) -> bytes:
        """The next one. Raises EOFError: it has ended, or says what it must not."""
        loop = asyncio.get_running_loop()
        while b"\n" not in self._said:
            readable: asyncio.Future[None] = loop.create_future()
            loop.add_reader(self._answer, _set, readable)
            try:
                await readable
            finally:
                loop.remove_reader(self._answer)
            part = os.read(self._answer, _MAX_LINE)
            if not part or len(self._said) > _MAX_LINE:
                raise EOFError("its process ended before it was done")
            self._said += part
        line, _, self._said = self._said.partition(b"\n")
        return line

    def say(self, flight: Flight) -> None:
        """It may write from now on."""
        self.has_begun_to_write = True
        with contextlib.suppress(OSError):  # it has ended: the next line says so
            os.write(self._ask, msgspec.json.encode(flight) + b"\n")

    def kill(self) -> None:
        if self._ended is None:
            kill_group(self.pid)

    def close(self) -> None:
        self.kill()
        os.close(self._ask)
        os.close(self._answer)


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
