"""The agent traces one of its ranks on command: while it trains only. Real processes, real py-spy, no torch."""

import asyncio
import json
import os
import signal
import time

import msgspec
from fake_controller import bench, processes_of, wait_gone

from everstep.model import events, observations
from everstep.model.actions import TraceRank

TRAINING = """
import time
from everstep.worker.link.runtime import current
current().start_watch()
for step in range(100_000):
    current().step_done(step)
    time.sleep(0.05)
"""


def story_of(tmp_path, play):
    (tmp_path / "train.py").write_text(TRAINING)

    async def story():
        env = {"EVERSTEP_TWINS": "off"}
        async with bench(tmp_path, "train.py", nproc=2, env=env, watch_hangs=True) as made:
            await made.start_workers(0)
            await made.controller.wait(
                observations.SignalsReported,
                lambda e: len(e.signals) == 2 and all((signals.last_step or 0) > 3 for signals in e.signals),
            )
            return await play(made)

    return asyncio.run(story())


async def ask(made, seconds: float, rank: int = 1) -> None:
    await made.controller.send(
        TraceRank(
            why="it is slow", node="n0", generation=0, incident="i1", rank=rank, seconds=seconds, max_bytes=1 << 20
        )
    )


async def under_way(made) -> dict[int, str]:
    """Processes of the trace, py-spy among them."""
    for _ in range(1000):
        found = {
            pid: line
            for pid, line in processes_of(made.run_dir).items()
            if "tracer_main" in line or "py-spy record" in line
        }
        if len(found) >= 2:
            return found
        await asyncio.sleep(0.02)
    raise AssertionError("no trace began")


def test_a_rank_is_traced_while_it_trains(tmp_path):
    async def play(made):
        await ask(made, 1.0)
        told = await made.controller.wait(events.RankTraced)
        assert (told.rank, told.file, told.incident) == (1, "traces/i1-gen-0-rank-1.json", "i1"), told
        trace = json.loads((made.run_dir / told.file).read_bytes())
        said = {each["track"]: each for each in trace["otherData"]["tracks"]}
        assert said["steps"]["events"] > 3
        names = " ".join(event["name"] for event in trace["traceEvents"])
        assert "train.py" in names or said["stacks"]["is"] == "unknown", said

    story_of(tmp_path, play)


def test_a_stop_ends_the_trace_first(tmp_path):
    async def play(made):
        await ask(made, 60.0)
        tracing = await under_way(made)
        stopped = await made.stop_workers(0)
        assert all(exit_.stopped_by_us for exit_ in stopped.exits)
        told = await made.controller.wait(events.RankTraced)
        assert (told.file, told.why) == ("", "the ranks are being stopped")
        assert not wait_gone(lambda: tracing.keys() & processes_of(made.run_dir).keys(), 5.0)
        assert not list((made.run_dir / "traces").iterdir())

    story_of(tmp_path, play)


def test_a_rank_that_dies_ends_the_trace_of_another_one(tmp_path):
    async def play(made):
        started = await made.controller.wait(events.WorkersStarted)
        await ask(made, 60.0)
        await under_way(made)
        os.kill(next(each.pid for each in started.started if each.rank == 0), signal.SIGKILL)
        told = await made.controller.wait(events.RankTraced)
        assert (told.file, told.why) == ("", "rank 0 has ended")

    story_of(tmp_path, play)


def test_a_killed_agent_leaves_no_trace_running(tmp_path):
    async def play(made):
        await ask(made, 60.0)
        await under_way(made)
        (agent,) = made._agents
        begun = time.monotonic()
        agent.kill()
        left = await asyncio.to_thread(wait_gone, lambda: processes_of(made.run_dir), 20.0)
        assert not left, left
        assert time.monotonic() - begun < 20.0

    story_of(tmp_path, play)


def test_an_agent_that_does_not_know_a_command_goes_on_with_its_ranks(tmp_path):
    """As one from before traces, which is asked for one: it connects again, and obeys what it knows."""

    async def play(made):
        started = await made.controller.wait(events.WorkersStarted)
        for _ in range(3):
            hellos = len(made.controller.hellos)
            action = {"type": "TraceRankAsInAYear", "node": "n0", "rank": 1, "why": "it is slow"}
            await made.controller.send_raw(msgspec.msgpack.encode({"m": "Command", "id": "77.0", "action": action}))
            async with asyncio.timeout(30.0):
                while len(made.controller.hellos) == hellos:
                    await asyncio.sleep(0.02)
        assert all(os.path.exists(f"/proc/{each.pid}") for each in started.started)  # noqa: PTH110
        async with asyncio.timeout(30.0):  # the last one has been let in
            while not made.controller._sockets:
                await asyncio.sleep(0.02)
        await ask(made, 0.5)
        told = await made.controller.wait(events.RankTraced)
        assert told.file, told.why
        assert not [each for each in made.controller.events if isinstance(each, events.WorkerExited)]

    story_of(tmp_path, play)
