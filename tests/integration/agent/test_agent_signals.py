"""What the agent sees of a live rank, and what it collects of it on request. Real processes, real py-spy, no torch."""

import asyncio
import json
import os
import signal
import time

import pytest
from fake_controller import bench
from lateness import Lateness

from everstep.model import events, observations
from everstep.model.actions import CollectEvidence, Inject, StartWorkers
from everstep.probes.rank.stack import find_py_spy

FRESH = {"EVERSTEP_TWINS": "off"}
QUIET = """
import os, time
from everstep.worker.link.runtime import current
current().start_watch()
print("ready", flush=True)
step = 0
while step < 20 or not os.path.exists("quiet"):
    current().step_done(step)
    step += 1
    time.sleep(0.05)
while True:
    time.sleep(0.05)
"""
needs_py_spy = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


def story_of(tmp_path, play, becomes_quiet=True):
    (tmp_path / "train.py").write_text(QUIET)
    if becomes_quiet:  # after 20 steps
        (tmp_path / "quiet").touch()

    async def story():
        async with bench(tmp_path, "train.py", nproc=1, env=FRESH, watch_hangs=True) as made:
            start = StartWorkers(
                why="test", node="n0", generation=0, slot=0, first_rank=0, num_ranks=1, world_size=1, num_slots=1,
                store_host="127.0.0.1", store_port=1, resume_step=None,
            )  # fmt: skip
            await made.controller.send(start)
            return await play(made)

    return asyncio.run(story())


async def seen(made, accept) -> object:
    """The first signals of rank 0 that are accepted."""
    found = await made.controller.wait(observations.SignalsReported, lambda e: bool(e.signals) and accept(e.signals[0]))
    return found.signals[0]


def collect(limit_s: float = 10.0) -> CollectEvidence:
    return CollectEvidence(why="test", node="n0", generation=0, incident="i1", limit_s=limit_s)


async def long_quiet(made, accept) -> object:
    """The first signals of rank 0 that are accepted when its last step was more than 1.5 s ago."""
    found = await made.controller.wait(
        observations.SignalsReported,
        lambda e: (
            bool(e.signals)
            and e.signals[0].last_step_at is not None
            and e.at - e.signals[0].last_step_at > 1.5
            and accept(e.signals[0])
        ),
    )
    return found.signals[0]


@needs_py_spy
def test_a_quiet_rank_is_seen_quiet_and_its_stack_is_taken(tmp_path):
    async def play(made):
        busy = await seen(made, lambda s: s.last_step is not None and s.stack_s is None and not s.looking)
        assert busy.phase == "train"
        (tmp_path / "quiet").touch()
        quiet = await long_quiet(made, lambda s: (s.device_s or 0) > 1.5 and not s.looking)
        assert quiet.communication_s is None, "there is no process group"
        assert quiet.log_s > 1.0
        assert quiet.stack_s is None, "one stack of an idle rank is enough"
        assert not quiet.paused

    story_of(tmp_path, play, becomes_quiet=False)


@needs_py_spy
def test_evidence_of_a_rank(tmp_path):
    async def play(made):
        await seen(made, lambda s: s.last_step == 19)
        await made.controller.send(collect())
        answer = await made.controller.wait(events.EvidenceCollected)
        (gathered,) = answer.gathered
        assert gathered.has == ("states", "stack")
        assert any("flight record: KeyError" in why for why in gathered.unavailable), "no torch here, and that is said"
        envelope = json.loads((made.run_dir / gathered.file).read_bytes())
        assert (envelope["rank"], envelope["generation"], envelope["everstep_evidence"]) == (0, 0, 1)
        assert any(frame["filename"].endswith("train.py") for t in envelope["stacks"] for frame in t["frames"])

    story_of(tmp_path, play)


@needs_py_spy
def test_a_stopped_rank_answers_nothing_and_is_seen_as_stopped(tmp_path):
    async def play(made):
        await seen(made, lambda s: s.last_step == 19)
        await made.controller.send(Inject(why="test", drill="d1", kind="stop", node="n0", rank=0, generation=0))
        await seen(made, lambda s: s.state == "T")
        began, limit_s = time.monotonic(), 6.0  # half of it for the flight record that does not come
        with Lateness() as late:
            await made.controller.send(collect(limit_s))
            (gathered,) = (await made.controller.wait(events.EvidenceCollected)).gathered
        assert time.monotonic() - began < limit_s + 4.0 + late.seconds
        assert gathered.has == ("states", "stack"), gathered
        assert any("did not answer within 3 s" in why for why in gathered.unavailable)
        envelope = json.loads((made.run_dir / gathered.file).read_bytes())
        assert envelope["states"][0][1] == "T"
        began = time.monotonic()
        with Lateness() as late:
            stopped = await made.stop_workers(0, grace_s=30.0)
        assert time.monotonic() - began < 10.0 + late.seconds, "the grace of 30 s is not waited for"
        assert stopped.exits[0].stopped_by_us

    story_of(tmp_path, play)


@pytest.mark.parametrize("kind", ["python-loop", "native-call"])
def test_hang_drills(tmp_path, kind):
    async def play(made):
        await seen(made, lambda s: s.last_step is not None)
        started = await made.controller.wait(events.WorkersStarted)
        await made.controller.send(Inject(why="test", drill="d1", kind=kind, node="n0", rank=0, generation=0))
        if kind == "python-loop":
            await long_quiet(
                made,
                # Processor time is counted every half second.
                lambda s: (s.stack_s or 0) > 0.5 and s.device_s is not None and s.device_s < 0.6 and s.state == "R",
            )
        else:
            await long_quiet(made, lambda s: (s.device_s or 0) > 1.0 and s.state == "S")
        os.kill(started.started[0].pid, signal.SIGKILL)
        await made.controller.wait(events.WorkerExited)

    story_of(tmp_path, play)


def test_evidence_of_a_generation_that_is_not_here(tmp_path):
    async def play(made):
        await made.controller.wait(events.WorkersStarted)
        await made.controller.send(CollectEvidence(why="test", node="n0", generation=7, incident="i9", limit_s=1.0))
        assert (await made.controller.wait(events.EvidenceCollected)).gathered == ()

    story_of(tmp_path, play)
