"""This node's part of a step, on its way from the ranks' memory to the persistent tier; and making it visible there.

A step that is still to come is pinned first, so that no rank overwrites it; once every local rank has it, a process of
ours writes it (`writer`). Every request is answered once, with the reason when it did not work; training neither waits
nor hears of it. Called by the node's `Copies`.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from everstep.agent.copies.writer import Writer
from everstep.agent.memory.arenas import Memory
from everstep.checkpoint import arena
from everstep.model.actions import CommitCheckpoint, PersistSnapshot, StrikeCheckpoint
from everstep.model.events import CheckpointCommitted, Event, SnapshotPersisted
from everstep.model.facts import Checkpoint

COMMIT_LIMIT_S = 300.0
"""Checking every piece of a step in a slow object store takes long; a commit that hangs must end some day."""

_POLL_S = 0.02
_MAX_WHY = 1000

_log = logging.getLogger(__name__)


class _NotWritten(Exception):  # noqa: N818 - an answer
    """The message says why."""


class Persisting:
    def __init__(self, node: str, memory: Memory, writer: Writer, report: Callable[[Event], None]) -> None:
        self._node = node
        self._memory = memory
        self._writer = writer
        self._report = report
        self._asked: PersistSnapshot | None = None
        self._task: asyncio.Task[None] | None = None
        self._answer: SnapshotPersisted | None = None
        self._commits: dict[int, asyncio.Task[None]] = {}
        self._strikes: set[asyncio.Task[None]] = set()

    def persist(self, action: PersistSnapshot, lives: Callable[[], bool]) -> None:
        """`lives`: whether some rank may still get there. The same request again is answered again and done once, or
        tried again if it failed; another one takes its place."""
        if self._asked is not None and _key(self._asked) == _key(action):
            if self._answer is not None:
                self._report(self._answer)
                return
            if self._task is not None and not self._task.done() and not self._task.cancelling():
                return
        self.cancel("another step is to be persisted")
        self._asked, self._answer = action, None
        self._task = asyncio.create_task(self._persist(action, lives))
        self._task.add_done_callback(_log_failure)

    def refuse(self, action: PersistSnapshot, why: str) -> None:
        """It is not even tried."""
        self._report(_answer(self._node, action, {"why": why}, 0.0))

    def commit(self, action: CommitCheckpoint, lives: Callable[[], bool]) -> None:
        """Commit the step. A repeat while it is under way changes nothing; afterwards the step is checked once more."""
        if action.step not in self._commits:
            task = self._commits[action.step] = asyncio.create_task(self._commit(action, lives()))
            task.add_done_callback(lambda _: self._commits.pop(action.step, None))
            task.add_done_callback(_log_failure)

    def strike(self, action: StrikeCheckpoint, lives: Callable[[], bool]) -> None:
        """Beside what is written and committed; once more changes nothing. The log says how it went."""
        task = asyncio.create_task(self._strike(action, lives()))
        self._strikes.add(task)
        task.add_done_callback(self._strikes.discard)
        task.add_done_callback(_log_failure)

    def go_back(self, resume_step: int | None) -> None:
        """Start a new generation. A step later than the resumed one belongs to an abandoned history, and its save is
        cancelled."""
        asked = self._asked
        if asked is not None and (resume_step is None or asked.step > resume_step):
            self.cancel(f"the job was restarted, and resumes after step {resume_step}")

    def cancel(self, why: str) -> None:
        if self._task is not None and not self._task.done() and self._asked is not None:
            self._task.cancel()
            self._finish(self._asked, {"why": why}, 0.0)

    async def close(self) -> None:
        """End what is under way. Processes that are killed have ended when this returns, or cannot be ended."""
        tasks = [task for task in (self._task, *self._commits.values(), *self._strikes) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _persist(self, action: PersistSnapshot, lives: Callable[[], bool]) -> None:
        began = time.monotonic()
        try:
            await self._await_step(action, began + action.limit_s, lives)
            with self._arenas(action) as fds:
                options = _options(action, ranks=",".join(map(str, action.ranks)), generation=action.generation)
                left_s = max(0.0, began + action.limit_s - time.monotonic())
                answer = await self._writer.run("write", options, fds, left_s, in_hurry=not lives())
        except _NotWritten as error:
            answer = {"why": str(error)}
        finally:
            if self._asked is action:
                for rank in action.ranks:
                    self._memory.pin(rank, arena.PIN_PERSIST, None)
        self._finish(action, answer, time.monotonic() - began)

    async def _await_step(self, action: PersistSnapshot, deadline: float, lives: Callable[[], bool]) -> None:
        """Until every rank holds it. Raises _NotWritten."""
        missing = list(action.ranks)
        while True:
            is_last_look = not lives()  # asked first: what a rank did before it ended is seen
            for rank in missing:
                self._memory.pin(rank, arena.PIN_PERSIST, action.step)  # again: new memory is formatted by the rank
            missing = [rank for rank in missing if self._memory.find(rank, action.step) is None]
            if not missing:
                return
            for rank in missing:
                newest = max((s for fd in self._memory.arenas_of(rank) for s in arena.held_steps(fd)), default=-1)
                if newest > action.step:
                    raise _NotWritten(f"rank {rank} has no snapshot of step {action.step}: it is at step {newest}")
            if is_last_look:
                raise _NotWritten(f"rank {missing[0]} ended before it had a snapshot of step {action.step}")
            if time.monotonic() > deadline:
                raise _NotWritten(
                    f"rank {missing[0]} had no snapshot of step {action.step} within {action.limit_s:g} s"
                )
            await asyncio.sleep(_POLL_S)

    @contextlib.contextmanager
    def _arenas(self, action: PersistSnapshot) -> Iterator[list[int]]:
        """One per rank, in their order; duplicates, because memory that has a successor is given back meanwhile."""
        with contextlib.ExitStack() as stack:
            fds = []
            for rank in action.ranks:
                found = self._memory.find(rank, action.step)
                if found is None:
                    raise _NotWritten(f"rank {rank} has lost its snapshot of step {action.step}")
                fds.append(os.dup(found[0]))
                stack.callback(os.close, fds[-1])
            yield fds

    def _finish(self, action: PersistSnapshot, answer: dict[str, Any], took_s: float) -> None:
        told = _answer(self._node, action, answer, took_s)
        if told.why:
            _log.warning("step %d is not persisted: %s", action.step, told.why)
        if self._asked is action and not told.why:
            self._answer = told
        self._report(told)

    async def _strike(self, action: StrikeCheckpoint, lives: bool) -> None:
        options = ["--root", action.root, "--step", str(action.step), f"--why={action.why}"]
        answer = await self._writer.run("strike", options, (), COMMIT_LIMIT_S, in_hurry=not lives)
        if answer.get("why"):
            _log.warning("step %d in %s is not struck: %s", action.step, action.root, answer["why"])
        else:
            _log.info("step %d in %s is struck: %s", action.step, action.root, action.why)

    async def _commit(self, action: CommitCheckpoint, lives: bool) -> None:
        options = [*_options(action, keep=action.keep), *(("--trusted",) if action.is_trusted else ())]
        if action.generation is not None:
            resumed = ",".join(f"{generation}:{step}" for generation, step in action.resumed)
            options += ["--generation", str(action.generation), f"--resumed={resumed}"]
        answer = await self._writer.run("commit", options, (), COMMIT_LIMIT_S, in_hurry=not lives)
        why, path = str(answer.get("why", ""))[:_MAX_WHY], str(answer.get("path", ""))
        for note in _sentences(answer.get("notes")):
            _log.warning("checkpoint of step %d: %s", action.step, note)
        if not why and not path:
            why = "the process that writes did not say where it is"
        size, dropped = answer.get("size_bytes"), answer.get("dropped")
        checkpoint = Checkpoint(
            step=action.step,
            path=path,
            world_size=action.world_size,
            at=time.time(),
            is_trusted=action.is_trusted,
            size_bytes=size if isinstance(size, int) else None,
        )
        self._report(
            CheckpointCommitted(
                at=time.time(),
                node=self._node,
                step=action.step,
                checkpoint=None if why else checkpoint,
                dropped=tuple(step for step in dropped if isinstance(step, int)) if isinstance(dropped, list) else (),
                why=why,
            )
        )


def _options(action: PersistSnapshot | CommitCheckpoint, **more: object) -> list[str]:
    named = {"root": action.root, "step": action.step, "world-size": action.world_size, **more}
    return [word for name, value in named.items() for word in (f"--{name}", str(value))]


def _answer(node: str, action: PersistSnapshot, answer: dict[str, Any], took_s: float) -> SnapshotPersisted:
    return SnapshotPersisted(
        at=time.time(),
        node=node,
        generation=action.generation,
        step=action.step,
        written_bytes=_bytes(answer.get("written_bytes")),
        total_bytes=_bytes(answer.get("total_bytes")),
        took_s=took_s,
        why=str(answer.get("why") or "")[:_MAX_WHY],
    )


def _sentences(notes: object) -> list[str]:
    return [str(note)[:_MAX_WHY] for note in notes] if isinstance(notes, list) else []


def _bytes(value: object) -> int:
    return value if isinstance(value, int) and value >= 0 else 0


def _key(action: PersistSnapshot) -> tuple[int, int]:
    return action.generation, action.step


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("persisting failed", exc_info=task.exception())
