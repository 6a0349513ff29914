"""A step on its way from the ranks' memory to disk, with a real agent and the real writer; kills and refusals."""

import asyncio
import errno
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest
from fake_controller import DEADLINE_S, Bench, bench, is_alive, kill, processes_of
from lateness import Lateness
from snapshot_writer import WRITER

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store import retention
from everstep.checkpoint.persist.store.scanning import scan, scan_all
from everstep.model import events
from everstep.model.actions import CommitCheckpoint, PersistSnapshot, StrikeCheckpoint

FRESH = {"EVERSTEP_TWINS": "off"}
LAST = 8
"""WRITER stands there until it is told to go on, so the step is held however late it is asked for."""

TRAIN = """
import time, uncompiled, torch, everstep
model = torch.nn.Linear(256, 256)
optimizer = torch.optim.AdamW(model.parameters())
state = everstep.State(model=model, optimizer=optimizer)
for step in state.steps(100_000):
    model(torch.ones(2, 256)).sum().backward()
    optimizer.step(); optimizer.zero_grad()
    time.sleep(0.02)
    print("step", step, flush=True)
"""


async def until_step(made: Bench, step: int) -> int:
    """The newest step of which the rank has told, once it is at least this one."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            lines = [line for line in made.log(0, 0).splitlines() if line.startswith("step ")]
            if lines and int(lines[-1].split()[1]) >= step:
                return int(lines[-1].split()[1])
            await asyncio.sleep(0.02)


def persist(root: Path, step: int, limit_s: float = DEADLINE_S, generation: int = 0) -> PersistSnapshot:
    return PersistSnapshot(
        why="test",
        node="n0",
        generation=generation,
        step=step,
        ranks=(0,),
        world_size=1,
        root=str(root),
        limit_s=limit_s,
    )


async def persisted(made: Bench, action: PersistSnapshot) -> events.SnapshotPersisted:
    skip = len(made.controller.events)
    await made.controller.send(action)
    return await made.controller.wait(events.SnapshotPersisted, lambda e: e.step == action.step, skip=skip)


async def committed(made: Bench, root: Path, step: int) -> events.CheckpointCommitted:
    await made.controller.send(
        CommitCheckpoint(why="test", node="n0", step=step, world_size=1, root=str(root), keep=2, is_trusted=True)
    )
    return await made.controller.wait(events.CheckpointCommitted, lambda e: e.step == step)


def writers(made: Bench) -> list[int]:
    return [pid for pid, command in processes_of(made.run_dir).items() if "writer_main" in command]


SLOW_OPEN = f"""
import os, sys
def open_and_wait(path, flags, *more, **named):
    if os.fspath(path).endswith("{retention._COLLECTING}-of-a-test"):
        os.read(really(path, os.O_RDONLY), 1)
    return really(path, flags, *more, **named)
if "writer_main" in " ".join(sys.orig_argv):
    really, os.open = os.open, open_and_wait
"""


class HangingStorage:
    """Whoever writes to `root` gets so far that it asks whether somebody collects there, and waits for the answer: the
    storage of a process with `env` does not answer that. (A pipe alone would be refused: it is no file.)"""

    def __init__(self, root: Path) -> None:
        self.root = root
        folder = root.parent / "slow-storage"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(SLOW_OPEN)
        self.env = {**FRESH, "PYTHONPATH": str(folder)}
        self._fifo = root / form.WRITING / f"{retention._COLLECTING}-of-a-test"
        self._fifo.parent.mkdir(parents=True)
        os.mkfifo(self._fifo)
        self._end: int | None = None

    async def until_asked(self, made: Bench) -> int:
        """The process that waits there."""
        async with asyncio.timeout(DEADLINE_S):
            while self._end is None:
                try:
                    self._end = os.open(self._fifo, os.O_WRONLY | os.O_NONBLOCK)
                except OSError as error:
                    if error.errno != errno.ENXIO:  # nobody reads
                        raise
                    await asyncio.sleep(0.01)
        (writer,) = writers(made)
        return writer

    def close(self) -> None:
        if self._end is not None:
            os.close(self._end)


def test_a_step_to_come_is_written_and_found_again_also_when_its_rank_has_ended(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    root = tmp_path / "checkpoints"

    async def story() -> None:
        async with bench(tmp_path, "train.py", nproc=1) as made:
            await made.start_workers(0)
            wanted = await until_step(made, 3) + 50  # the agent hears of it long before
            told = await persisted(made, persist(root, wanted))
            assert told.why == ""
            assert min(told.total_bytes, told.written_bytes) > 3 * 256 * 256 * 4
            assert (await persisted(made, persist(root, wanted))) == told, "asked again: answered again, done once"
            done = await committed(made, root, wanted)
            assert done.why == ""
            assert done.checkpoint is not None
            assert (done.checkpoint.step, done.checkpoint.world_size, done.checkpoint.is_trusted) == (wanted, 1, True)
            passed = await persisted(made, persist(root, wanted - 10))
            assert "it is at step" in passed.why
            late = await persisted(made, persist(root, 100_001, limit_s=0.3))
            assert "within 0.3 s" in late.why
            newest = (await made.stop_workers(0)).held[0].steps[-1]
            assert (await persisted(made, persist(root, newest))).why == ""
            assert "ended before" in (await persisted(made, persist(root, newest + 1))).why
            assert "generation 1 is over" in (await persisted(made, persist(root, newest, generation=1))).why
            assert [found.step for found in scan(str(root))] == [wanted], "the other one is not committed"
            await made.controller.send(StrikeCheckpoint(why="--why not", node="n0", root=str(root), step=wanted))
            async with asyncio.timeout(DEADLINE_S):
                while scan(str(root)):
                    await asyncio.sleep(0.02)
            assert scan_all(str(root)).refused[-1].why == "struck: --why not"

    asyncio.run(story())


@pytest.mark.soak
def test_a_writer_that_hangs_is_killed_in_time_and_one_that_is_killed_is_told(tmp_path):
    (tmp_path / "train.py").write_text(WRITER)
    limit_s = 10.0  # in which a writer must come as far as its storage

    async def story(first: HangingStorage, second: HangingStorage) -> None:
        async with bench(tmp_path, "train.py", nproc=1, args=(str(LAST),), env=first.env) as made:
            await made.start_workers(0)
            await until_step(made, LAST)
            skip = len(made.controller.events)
            began = time.monotonic()
            with Lateness() as late:
                await made.controller.send(persist(first.root, LAST, limit_s=limit_s))
                os.kill(await first.until_asked(made), signal.SIGSTOP)
                told = await made.controller.wait(events.SnapshotPersisted, skip=skip)
            assert "not done within" in told.why
            assert time.monotonic() - began < limit_s + 4.0 + late.seconds
            assert not writers(made)
            skip = len(made.controller.events)
            await made.controller.send(persist(second.root, LAST))
            writer = await second.until_asked(made)
            (tmp_path / "go on").touch()
            await until_step(made, LAST + 5)  # training knows nothing of it
            kill(writer)
            told = await made.controller.wait(events.SnapshotPersisted, skip=skip)
            assert "was killed by signal 9" in told.why
            await until_step(made, await until_step(made, 0) + 5)

    with closing(HangingStorage(tmp_path / "a")) as first, closing(HangingStorage(tmp_path / "b")) as second:
        asyncio.run(story(first, second))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_writer_ends_with_its_agent(tmp_path, how):
    (tmp_path / "train.py").write_text(WRITER)

    async def story(storage: HangingStorage) -> None:
        async with bench(tmp_path, "train.py", nproc=1, args=(str(LAST),), env=storage.env) as made:
            await made.start_workers(0)
            await until_step(made, LAST)
            await made.controller.send(persist(storage.root, LAST))
            writer = await storage.until_asked(made)
            os.kill(writer, signal.SIGSTOP)  # then it does not even end on SIGTERM
            assert made.agent is not None
            os.kill(made.agent.pid, how)
            assert await asyncio.to_thread(made.agent.wait, DEADLINE_S) == (0 if how == signal.SIGTERM else -how)
            began = time.monotonic()
            with Lateness() as late:
                while is_alive(writer):
                    assert time.monotonic() - began < 5.0 + late.seconds
                    await asyncio.sleep(0.01)

    with closing(HangingStorage(tmp_path / "a")) as storage:
        asyncio.run(story(storage))
