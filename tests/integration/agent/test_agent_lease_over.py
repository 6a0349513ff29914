"""A real agent and its rank, stopped for longer than the lease: when they go on, the controller's word decides."""

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from fake_controller import Bench, bench, is_alive

from everstep.engines import freezing
from everstep.errors import LeaseOverError
from everstep.model import events

TICK = """
import time
while True:
    print(time.time(), flush=True)
    time.sleep(0.02)
"""
LEASE_S = 1.2
DEADLINE_S = 60.0


@dataclass
class Trained:
    made: Bench
    rank: int

    @property
    def agent(self) -> int:
        assert self.made.agent is not None
        return self.made.agent.pid

    def times(self) -> list[float]:
        return [float(line) for line in self.made.log(0, 0).split("\n")[:-1]]

    async def freeze(self) -> float:
        """The machine stands still for longer than the lease; when it went on."""
        freezing.freeze(self.agent)
        await asyncio.sleep(LEASE_S + 0.5)  # there is nothing to wait for
        thawed_at = time.time()
        freezing.thaw(self.agent)
        return thawed_at

    async def ended(self) -> int:
        await until(lambda: not is_alive(self.rank))
        await until(lambda: self.made.agent.poll() is not None)
        return self.made.agent.returncode


async def until(condition) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def training(folder: Path) -> AsyncIterator[Trained]:
    (folder / "train.py").write_text(TICK)
    async with bench(folder, "train.py", nproc=1, env={"EVERSTEP_TWINS": "off"}, start=False) as made:
        made.run_dir.mkdir(exist_ok=True)
        (made.run_dir / "spec.json").write_text(json.dumps({"policy": {"node_silent_s": LEASE_S / 0.85}}))
        made.start_agent()
        await made.controller.wait(events.NodeJoined)
        await made.start_workers(0)
        started = await made.controller.wait(events.WorkersStarted)
        trained = Trained(made, started.started[0].pid)
        await until(lambda: len(trained.times()) > 3)
        yield trained


def test_a_node_that_was_replaced_ends_its_rank_and_itself_before_anything_else(tmp_path):
    async def story() -> None:
        async with training(tmp_path) as trained:
            trained.made.controller.counts_on = False
            thawed_at = await trained.freeze()
            assert await trained.ended() == LeaseOverError.exit_code
            assert max(trained.times()) < thawed_at + 1.0, "the rank was stopped, not asked"
            told = [event for event in trained.made.controller.events if event.at > thawed_at]
            # It asks again where an answer takes more than a second.
            assert {type(event) for event in told} == {events.NodeInDoubt}

    asyncio.run(story())


def test_a_node_that_is_counted_on_goes_on_as_if_nothing_had_been(tmp_path):
    """And until it knows, it does no step, tells nothing and does nothing that it is told."""

    async def story() -> None:
        async with training(tmp_path) as trained:
            controller = trained.made.controller
            controller.counts_on = None
            await trained.freeze()
            doubt = await controller.wait(events.NodeInDoubt)
            assert doubt.silent_s > LEASE_S
            await until(lambda: Path(f"/proc/{trained.rank}/stat").read_text().rpartition(")")[2].split()[0] == "T")
            stopped_at = time.time()
            skip = len(controller.events)
            await controller.wait(events.NodeInDoubt, skip=skip)  # asked again: it has not been answered
            done = len(trained.times())  # what it printed before may have come to the file later
            assert max(trained.times()) <= stopped_at
            controller.counts_on = True  # for the next question
            await until(lambda: len(trained.times()) > done + 10)
            assert is_alive(trained.rank)
            assert not [event for event in controller.events if isinstance(event, events.WorkerExited)]
            skip = len(controller.events)
            os.kill(trained.rank, signal.SIGKILL)
            await controller.wait(events.WorkerExited, skip=skip)

    asyncio.run(story())


def test_what_came_meanwhile_is_told_and_done_afterwards_in_order(tmp_path):
    async def story() -> None:
        async with training(tmp_path) as trained:
            controller = trained.made.controller
            controller.counts_on = None
            await trained.freeze()
            doubt = await controller.wait(events.NodeInDoubt)
            os.kill(trained.rank, signal.SIGKILL)
            skip = len(controller.events)
            await controller.wait(events.NodeInDoubt, skip=skip)  # a second later nothing else was told
            assert not [event for event in controller.events if isinstance(event, events.WorkerExited)]
            await controller.settle(doubt, may_go_on=True)  # too old an answer counts as little as none
            controller.counts_on = True
            exited = await controller.wait(events.WorkerExited)
            assert exited.exit.signal == signal.SIGKILL
            stopped = await trained.made.stop_workers(0)
            assert stopped.generation == 0

    asyncio.run(story())
