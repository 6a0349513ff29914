"""The agent's copies when something of its own fails: it is told, and tried again."""

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.agent.copies import backing_up
from everstep.agent.copies.anchors import Anchors
from everstep.agent.copies.backing_up import BackingUp
from everstep.agent.copies.copies import Copies
from everstep.agent.copies.persisting import Persisting
from everstep.agent.memory.arenas import Memory
from everstep.agent.processes.reaping import Reaper
from everstep.agent.ranks.starting import Home
from everstep.checkpoint import arena
from everstep.checkpoint.transport import Pushed
from everstep.core.state.policy import Policy
from everstep.model.actions import PersistSnapshot, PlaceBackups, StartWorkers
from everstep.model.events import Event, SnapshotPersisted, WorkersFailedToStart
from everstep.model.facts import Backup

LIMIT_S = 10.0


def filled(*steps: int) -> int:
    fd = arena.create(arena.arena_bytes(100, 5), rank=0, world_size=2, num_buffers=5)
    mine = arena.Arena(fd)
    for step in steps:
        mine.begin(step, 0)
        mine.publish(8, 4, 0)
    mine.close()
    return fd


@pytest.fixture
def memory() -> Iterator[Memory]:
    made = Memory(lambda rank, fd: None)
    made.add(0, filled(4, 5))
    made.begin((0,), 5)
    yield made
    made.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60.0):
        while not is_so():
            await asyncio.sleep(0.001)


def started(**more: Any) -> StartWorkers:
    given = {"node": "n0", "generation": 3, "slot": 0, "first_rank": 0, "num_ranks": 1, "world_size": 2, "num_slots": 2}
    return StartWorkers(why="test", store_host="", store_port=0, resume_step=5, **given, **more)


def test_a_step_that_could_not_be_persisted_is_tried_again_when_it_is_asked_for_again(memory):
    answers = [{"why": "no space"}, {"written_bytes": 3, "total_bytes": 4, "why": ""}]
    ran: list[str] = []
    told: list[Event] = []

    async def run(verb: str, *_: object, **__: object) -> dict[str, Any]:
        ran.append(verb)
        return answers[len(ran) - 1]

    async def story() -> None:
        action = PersistSnapshot(
            why="test", node="n0", generation=0, step=5, ranks=(0,), world_size=2, root="/x", limit_s=LIMIT_S
        )
        persisting = Persisting("n0", memory, SimpleNamespace(run=run), told.append)
        for number in range(1, 4):
            persisting.persist(action, lambda: True)
            persisting.persist(action, lambda: True)  # while it is under way: once
            await until(lambda number=number: len(told) >= number)
        await persisting.close()

    asyncio.run(story())
    assert [event.why for event in told if isinstance(event, SnapshotPersisted)] == ["no space", "", "", ""]
    assert len(ran) == 2, "what was done is answered again, and not done again"
    assert memory.pinned(0, arena.PIN_PERSIST) is None


def test_a_fault_of_ours_does_not_end_the_copying(memory, monkeypatch):
    pushed: list[int] = []

    async def push(*_: object, snapshot: arena.Snapshot, **__: object) -> Pushed:
        pushed.append(snapshot.step)
        if len(pushed) == 1:
            raise RuntimeError("can't start new thread")
        return Pushed(bytes_sent=1, bytes_known=0, took_s=0.0)

    monkeypatch.setattr(backing_up, "push", push)
    monkeypatch.setattr(backing_up, "_BACK_OFF_S", (0.001,))

    async def story() -> None:
        copying = BackingUp(memory, Policy(), Anchors(Policy()), "token", "run")
        backup = Backup(rank=0, node="n1", endpoint="127.0.0.1:1")
        action = PlaceBackups(why="test", node="n0", generation=0, backups=(backup,))
        copying.place(action, 2)
        await until(lambda: copying.step_of(0) == 5)
        task = copying._tasks[0][1]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        copying.place(action, 2)
        assert not copying._tasks[0][1].done(), "a task that has ended is none"
        await copying.close()

    asyncio.run(story())
    assert pushed[:2] == [5, 5]


def test_memory_that_cannot_be_prepared_is_told(tmp_path, caplog):
    async def story() -> Event | None:
        memory = Memory(lambda rank, fd: None)
        closed = filled(4, 5)
        os.close(closed)
        memory._arenas[0] = [closed]  # as a descriptor that went bad
        home = Home(run="r", run_dir=tmp_path, nproc=1, max_restarts=0, base_env={})
        copies = Copies("n0", home, memory, Reaper(), report=lambda _: None, host="127.0.0.1", key="key")
        copies.begin(started())
        with contextlib.closing(copies._backups):
            return await copies.prepare(started())

    event = asyncio.run(story())
    assert isinstance(event, WorkersFailedToStart)
    assert (event.node, event.generation) == ("n0", 3)
    assert os.strerror(errno.EBADF) in event.why
