"""Snapshots between real agents: backed up, fetched, trusted, forgotten; and what happens when that fails.

The ranks write snapshots of their own making, without torch, so that the tests are about the agents.
"""

import asyncio
import contextlib
import functools
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_controller import Bench, bench, kill
from lateness import Lateness
from snapshot_writer import WRITER

from everstep.model import events
from everstep.model.actions import (
    PlaceBackups,
    StartWorkers,
    StopWorkers,
    TrustStep,
)
from everstep.model.facts import Backup, Fetch, Held, RankAccount

FRESH = {"EVERSTEP_TWINS": "off"}
DEADLINE_S = 60.0


class Two:
    """Two agents: n0 has rank 0, n1 rank 1; more may join."""

    def __init__(self, made: Bench) -> None:
        self.made = made
        self.joined: dict[str, events.NodeJoined] = {}

    async def join(self, node: str) -> None:
        skip = len(self.made.controller.events)
        self.made.start_agent(node)
        self.joined[node] = await self.made.controller.wait(events.NodeJoined, lambda e: e.node == node, skip=skip)
        assert self.joined[node].endpoint.startswith("127.0.0.1:")

    async def start(
        self, generation: int, nodes: tuple[str, ...], resume_step: int | None = None, **fetch: Fetch
    ) -> None:
        for slot, node in enumerate(nodes):
            await self.made.controller.send_to(
                node,
                StartWorkers(
                    why="test",
                    node=node,
                    generation=generation,
                    slot=slot,
                    first_rank=slot,
                    num_ranks=1,
                    world_size=2,
                    num_slots=2,
                    store_host="127.0.0.1",
                    store_port=1,
                    resume_step=resume_step,
                    fetch=(fetch[node],) if node in fetch else (),
                ),
            )

    async def place(self, generation: int, **backups: tuple[int, str]) -> None:
        """node=(rank, to)"""
        for node, (rank, to) in backups.items():
            backup = Backup(rank=rank, node=to, endpoint=self.joined[to].endpoint)
            await self.made.controller.send_to(
                node, PlaceBackups(why="test", node=node, generation=generation, backups=(backup,))
            )

    async def stop(self, node: str, generation: int, **more: float) -> events.WorkersStopped:
        skip = len(self.made.controller.events)
        action = StopWorkers(why="test", node=node, generation=generation, grace_s=2.0, **more)
        await self.made.controller.send_to(node, action)
        return await self.made.controller.wait(events.WorkersStopped, lambda e: e.node == node, skip=skip)

    async def backed_up(self, rank: int, step: int) -> None:
        """This step or a later one, and nothing is newer, as the account of the rank says."""

        def is_there(account: RankAccount) -> bool:
            return (
                account.rank == rank and account.backed_up_step == account.published_step and account.num_steps > step
            )

        await self.made.controller.wait(events.ProgressReported, lambda e: any(map(is_there, e.accounts)))


@contextlib.asynccontextmanager
async def two(tmp_path: Path, last_step: int = 20, **options: Any) -> AsyncIterator[Two]:
    (tmp_path / "train.py").write_text(WRITER)
    async with bench(tmp_path, "train.py", nproc=1, args=(str(last_step),), env=FRESH, start=False, **options) as made:
        pair = Two(made)
        await pair.join("n0")
        await pair.join("n1")
        yield pair


async def until(what: str, condition: Callable[[], Any], limit_s: float = DEADLINE_S) -> Any:
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.01)
    return found


def whole_line(begins: str, log: str) -> str:
    """The log, once it has such a line to its end: a program without a buffer prints a line in pieces."""
    return log if any(line.startswith(begins) and line.endswith("\n") for line in log.splitlines(keepends=True)) else ""


def is_connected(port: int) -> bool:
    """Whether somebody on this machine has a connection to the port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return any(words[2].endswith(f":{port:04X}") and words[3] == "01" for words in lines)


def test_a_node_that_is_lost_goes_on_elsewhere_from_the_copy_in_its_peers_memory(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            made = pair.made
            await pair.start(0, ("n0", "n1"))
            await until("both are through", lambda: all("step 20\n" in made.log(0, rank) for rank in (0, 1)))
            await pair.place(0, n0=(0, "n1"), n1=(1, "n0"))
            await pair.backed_up(0, 20)
            await pair.backed_up(1, 20)
            kill(made.agents["n1"].pid)  # no launcher here: its memory is gone with it
            stopped = await pair.stop("n0", 0)
            assert stopped.held[0].steps[-1] == 20
            assert stopped.backups == (Held(rank=1, steps=(20,), generations=(0,), world_size=2),)
            assert stopped.accounts[0].backed_up_step == 20
            await pair.join("n2")
            wanted = Fetch(rank=1, step=20, node="n0", endpoint=pair.joined["n0"].endpoint)
            await pair.start(1, ("n0", "n2"), 20, n2=wanted)
            assert "restored 20 True 1\n" in await until("restored", lambda: whole_line("restored", made.log(1, 1)))
            (tmp_path / "go on").touch()
            await pair.place(1, n0=(0, "n2"), n2=(1, "n0"))
            await until("on n2 as well", lambda: "step 25\n" in made.log(1, 1))
            (tmp_path / "go on").unlink()
            await made.controller.wait(
                events.ProgressReported,
                lambda e: e.generation == 1 and e.node == "n0" and e.accounts[0].backed_up_step is not None,
            )
            stopped = await pair.stop("n2", 1)
            assert stopped.held[0].generations[-1] == 1
            assert stopped.backups[0].rank == 0

    asyncio.run(story())


def test_a_rank_that_is_placed_elsewhere_leaves_nothing_where_it_was_before(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            await pair.join("n2")
            await pair.start(0, ("n0", "n1"))
            await until("both are through", lambda: all("step 20\n" in pair.made.log(0, rank) for rank in (0, 1)))
            await pair.place(0, n0=(0, "n1"))
            await pair.backed_up(0, 20)
            await pair.place(0, n0=(0, "n2"))
            (tmp_path / "go on").touch()  # up to the next step that all ranks copy
            dropped = "rank 0 is copied elsewhere now, and its copies on n1 are dropped"
            await until("dropped", lambda: dropped in pair.made.agent_log())
            assert (await pair.stop("n1", 0)).backups == ()
            assert [held.rank for held in (await pair.stop("n2", 0)).backups] == [0]

    asyncio.run(story())


def test_what_cannot_be_fetched_stops_the_start_and_says_why(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            await pair.start(0, ("n0",))
            await until("it is through", lambda: "step 20\n" in pair.made.log(0, 0))
            wanted = Fetch(rank=1, step=17, node="n0", endpoint=pair.joined["n0"].endpoint)
            await pair.start(1, ("n0", "n1"), 17, n1=wanted)
            failed = await pair.made.controller.wait(events.RestoreFailed)
            assert (failed.node, failed.rank, failed.step, failed.source, failed.where) == ("n1", 1, 17, "peer", "n0")
            assert "holds no snapshot of rank 1 at step 17" in failed.why
            assert "n1" not in {e.node for e in pair.made.controller.events if isinstance(e, events.WorkersStarted)}
            skip = len(pair.made.controller.events)
            await pair.start(1, ("n0", "n1"), 17, n1=wanted)  # asked again: answered again
            await pair.made.controller.wait(events.RestoreFailed, skip=skip)
            assert (await pair.stop("n1", 1)).exits == ()

    asyncio.run(story())


@pytest.mark.soak
def test_a_start_that_waits_for_a_peer_that_hangs_can_be_stopped(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            await pair.start(0, ("n0",))
            await until("it is through", lambda: "step 20\n" in pair.made.log(0, 0))
            os.kill(pair.made.agents["n0"].pid, signal.SIGSTOP)
            try:
                wanted = Fetch(rank=1, step=17, node="n0", endpoint=pair.joined["n0"].endpoint)
                await pair.start(1, ("n1",), 17, n1=wanted)
                began = time.monotonic()
                with Lateness() as late:
                    await pair.stop("n1", 1)
                assert time.monotonic() - began < 3.0 + late.seconds
            finally:
                os.kill(pair.made.agents["n0"].pid, signal.SIGCONT)

    asyncio.run(story())


@pytest.mark.soak
def test_a_trusted_step_stays_here_and_at_the_peer_while_the_job_goes_on(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            made = pair.made
            await pair.start(0, ("n0", "n1"))
            await pair.place(0, n0=(0, "n1"))
            await pair.backed_up(0, 20)
            for node in ("n0", "n1"):
                await made.controller.send_to(node, TrustStep(why="test", node=node, generation=0, step=20))
            (tmp_path / "go on").touch()
            await until("far on", lambda: "step 60\n" in made.log(0, 0))
            (tmp_path / "go on").unlink()
            await pair.backed_up(0, 60)
            stopped = await pair.stop("n0", 0)
            assert 20 in stopped.held[0].steps
            assert stopped.held[0].steps[-1] >= 60
            other = await pair.stop("n1", 0)
            assert 20 in other.backups[0].steps
            assert other.backups[0].steps[-1] == stopped.held[0].steps[-1]
            await pair.start(1, ("n0", "n1"), 20)
            assert "restored 20 True" in await until("restored", lambda: whole_line("restored", made.log(1, 0)))
            other = await pair.stop("n1", 1)
            assert other.backups == (Held(rank=0, steps=(20,), generations=(0,), world_size=2),), (
                "later steps are done again"
            )

    asyncio.run(story())


@pytest.mark.soak
def test_a_peer_that_is_gone_costs_the_copy_and_a_line(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            made = pair.made
            await pair.start(0, ("n0", "n1"))
            kill(made.agents["n1"].pid)
            await pair.place(0, n0=(0, "n1"))
            await until("it says so", lambda: "no backup on n1" in made.agent_log())
            (tmp_path / "go on").touch()
            await until("training continues", lambda: "step 60\n" in made.log(0, 0))
            began = time.monotonic()
            with Lateness() as late:
                stopped = await pair.stop("n0", 0)
            assert time.monotonic() - began < 1.5 + late.seconds
            assert stopped.accounts[0].backed_up_step is None
            assert made.agent_log().count("no backup on n1") == 1

    asyncio.run(story())


@pytest.mark.soak
def test_a_peer_that_hangs_does_not_hold_up_a_stop(tmp_path):
    async def story() -> None:
        async with two(tmp_path) as pair:
            await pair.start(0, ("n0",))
            await until("it is through", lambda: "step 20\n" in pair.made.log(0, 0))
            os.kill(pair.made.agents["n1"].pid, signal.SIGSTOP)
            try:
                await pair.place(0, n0=(0, "n1"))
                port = int(pair.joined["n1"].endpoint.rpartition(":")[2])
                await until("a push is under way", functools.partial(is_connected, port))
                began = time.monotonic()
                with Lateness() as late:
                    await pair.stop("n0", 0)
                assert time.monotonic() - began < 1.5 + late.seconds
            finally:
                os.kill(pair.made.agents["n1"].pid, signal.SIGCONT)

    asyncio.run(story())


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_machine_lost_at_any_moment_leaves_a_whole_copy_of_a_step_that_all_have(tmp_path, seed):
    """Also in the middle of a push, a fetch or a start. What is chosen here is what core would choose."""
    chance = random.Random(seed)

    async def story() -> None:
        async with two(tmp_path, last_step=0) as pair:
            made, there, resume_step = pair.made, "n1", None
            (tmp_path / "go on").touch()
            fetch: dict[str, Fetch] = {}
            for generation in range(20):
                await pair.start(generation, ("n0", there), resume_step, **fetch)
                await pair.place(generation, n0=(0, there), **{there: (1, "n0")})
                if generation % 3:
                    await until("it runs", functools.partial(made.log, generation, 1))
                await asyncio.sleep(chance.uniform(0.0, 0.6))
                kill(made.agents[there].pid)
                stopped = await pair.stop("n0", generation)
                mine = {step for held in stopped.held for step in held.steps if held.rank == 0}
                copied = {step for held in stopped.backups for step in held.steps if held.rank == 1}
                common = mine & copied
                if generation > 1:
                    assert common, (generation, mine, copied)
                    assert max(common) >= (resume_step or 0)
                there = f"n{generation + 2}"
                await pair.join(there)
                resume_step = max(common, default=None)
                wanted = Fetch(rank=1, step=resume_step or 0, node="n0", endpoint=pair.joined["n0"].endpoint)
                fetch = {there: wanted} if common else {}
                told = [made.log(generation, rank) for rank in (0, 1)]
                assert not any("False" in text for text in told), told
            assert not any(isinstance(event, events.RestoreFailed) for event in made.controller.events)

    asyncio.run(story())
