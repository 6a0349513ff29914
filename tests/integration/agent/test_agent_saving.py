"""Before ranks are stopped, those that live complete the snapshot of their last step; nobody waits for the others."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from fake_controller import DEADLINE_S, Bench, bench
from lateness import Lateness

from everstep.model import events
from everstep.model.actions import StopWorkers
from everstep.model.facts import RankAccount

FRESH = {"EVERSTEP_TWINS": "off"}

RANK = """
import math, os, sys, time
from everstep.worker.link import runtime; from everstep.worker.link import sequence
from everstep.worker.process.board import FloatCell
sequence.Sequence.look = lambda self: 1  # as with a process group: the board says when the watch thread last looked
r = runtime.current()
r.board.set_counts_own_steps()
for step in range(8):
    r.board.step_done(step, time.time())
    if step <= 5 or "all" in sys.argv:
        r.board.set_published_step(step)
def save(limit_s):
    print("asked", flush=True)
    if "deaf" in sys.argv and r.rank == 1:
        time.sleep(600)
    time.sleep(0.2)
    r.board.set_published_step(7)
    return 7, ""
r.save_now = save
if "alone" not in sys.argv:
    r.start_watch()
    while math.isnan(r.board._floats[FloatCell.COMM_LOOKED_AT]):  # until then it counts as deaf
        time.sleep(0.01)
print("ready", flush=True)
time.sleep(600)
"""


async def ready(made: Bench) -> dict[int, int]:
    """Process ids of the ranks, once they wait."""
    started = await made.controller.wait(events.WorkersStarted)
    async with asyncio.timeout(DEADLINE_S):
        while not all("ready" in made.log(0, each.rank) for each in started.started):
            await asyncio.sleep(0.01)
    return {each.rank: each.pid for each in started.started}


async def stop(made: Bench, save_s: float) -> tuple[dict[int, RankAccount], float]:
    """Accounts, and how long it took where the machine is not late."""
    began = time.monotonic()
    with Lateness() as late:
        await made.controller.send(StopWorkers(why="test", node="n0", generation=0, grace_s=1.0, save_s=save_s))
        stopped = await made.controller.wait(events.WorkersStopped)
        took_s = time.monotonic() - began - late.seconds
    return {account.rank: account for account in stopped.accounts}, took_s


def play(tmp_path: Path, what: str, save_s: float, hurt: str = "") -> tuple[dict[int, int | None], float, str]:
    """Published steps after the stop, how long it took, and the agent's log."""
    (tmp_path / "train.py").write_text(RANK)

    async def story() -> tuple[dict[int, int | None], float, str]:
        async with bench(tmp_path, "train.py", nproc=2, args=(what,), env=FRESH) as made:
            await made.start_workers(0)
            pids = await ready(made)
            if hurt == "stop":
                os.kill(pids[1], signal.SIGSTOP)
            accounts, took_s = await stop(made, save_s)
            return {rank: account.published_step for rank, account in accounts.items()}, took_s, made.agent_log()

    return asyncio.run(story())


def test_the_last_step_is_saved_before_the_stop(tmp_path):
    published, took_s, _ = play(tmp_path, "late", 30.0)
    assert published == {0: 7, 1: 7}
    assert took_s < 2.5


def test_nothing_waits_when_everything_is_kept(tmp_path):
    published, took_s, log = play(tmp_path, "all", 30.0)
    assert published == {0: 7, 1: 7}
    assert took_s < 2.5
    assert "was asked to save" not in log


STEPS = """
import uncompiled
import time, torch, everstep
from everstep.worker.link import runtime
model = torch.nn.Linear(2, 2)
state = everstep.State(model=model)
runtime.current().start_watch()
rank = runtime.current().rank
for step in state.steps(1_000_000):
    print("began", step, flush=True)
    while step == 5 and runtime.current().hold._step is None:
        time.sleep(0.001)
    time.sleep(0.002 * (1 + rank))
"""


def test_a_stop_after_a_step_to_come_ends_all_ranks_after_it(tmp_path):
    """One rank is twice as fast as the other, and waits."""
    (tmp_path / "train.py").write_text(STEPS)

    async def story() -> tuple[list[RankAccount], list[str]]:
        async with bench(tmp_path, "train.py", nproc=2, env=FRESH) as made:
            await made.start_workers(0)
            async with asyncio.timeout(DEADLINE_S):
                while not all("began 5" in made.log(0, rank) for rank in range(2)):
                    await asyncio.sleep(0.01)
            stop = StopWorkers(
                why="test", node="n0", generation=0, grace_s=1.0, save_s=2.0, after_step=20, after_s=60.0
            )
            await made.controller.send(stop)
            stopped = await made.controller.wait(events.WorkersStopped)
            return list(stopped.accounts), [made.log(0, rank).split()[-1] for rank in range(2)]

    accounts, last = asyncio.run(story())
    assert [(each.last_step, each.published_step) for each in accounts] == [(20, 20)] * 2
    assert last == ["20", "20"]


def test_a_stop_that_is_wanted_at_once_after_all_waits_for_no_step(tmp_path):
    (tmp_path / "train.py").write_text(STEPS)

    async def story() -> None:
        async with bench(tmp_path, "train.py", nproc=1, env=FRESH) as made:
            await made.start_workers(0)
            async with asyncio.timeout(DEADLINE_S):
                while "began 5" not in made.log(0, 0):
                    await asyncio.sleep(0.01)
            stop = StopWorkers(
                why="test", node="n0", generation=0, grace_s=1.0, save_s=2.0, after_step=10**9, after_s=10**6
            )
            await made.controller.send(stop)
            async with asyncio.timeout(DEADLINE_S):
                while "began 6" not in made.log(0, 0):  # it is asked to go on to that step
                    await asyncio.sleep(0.01)
            await stop_now(made)
            await made.controller.wait(events.WorkersStopped)

    asyncio.run(story())


async def stop_now(made: Bench) -> None:
    await made.controller.send(StopWorkers(why="test", node="n0", generation=0, grace_s=1.0, save_s=2.0))


@pytest.mark.soak
@pytest.mark.parametrize("hurt", ["stop", ""])
def test_a_rank_that_is_stopped_or_deaf_keeps_its_step_and_holds_up_nobody_for_long(tmp_path, hurt):
    save_s = 30.0 if hurt else 5.0  # the deaf one gets all of it
    published, took_s, log = play(tmp_path, "late" if hurt else "deaf", save_s, hurt)
    assert published == {0: 7, 1: 5}
    assert took_s < (2.0 if hurt else 7.0)
    assert ("answers nothing" if hurt else "did not answer within 5 s") in log


@pytest.mark.soak
def test_a_rank_without_a_watch_thread_is_waited_for_a_moment_only(tmp_path):
    published, took_s, _ = play(tmp_path, "alone", 30.0)
    assert published == {0: 5, 1: 5}
    assert took_s < 2.5
