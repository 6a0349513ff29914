"""What the agent sees of a live rank, and what it collects of it on request. Real processes, real py-spy, no torch."""

import asyncio
import json
import os
import signal
import time

import pytest
from fake_controller import bench

from everstep.model import events
from everstep.model.actions import CollectEvidence, Inject, StartWorkers
from everstep.probes.stack import find_py_spy

FRESH = {"EVERSTEP_TEMPLATE": "off"}
QUIET = """
import time
from everstep.worker.runtime import current
current().start_watch()
print("ready", flush=True)
for step in range(20):
    current().step_done(step)
    time.sleep(0.05)
while True:
    time.sleep(0.05)
"""
needs_py_spy = pytest.mark.skipif(find_py_spy() is None, reason="py-spy is not installed")


def story_of(tmp_path, play):
    (tmp_path / "train.py").write_text(QUIET)

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
    found = await made.controller.wait(events.SignalsReported, lambda e: bool(e.signals) and accept(e.signals[0]))
    return found.signals[0]


def collect(incident: str = "i1") -> CollectEvidence:
    return CollectEvidence(why="test", node="n0", generation=0, incident=incident, limit_s=2.0)


@needs_py_spy
def test_a_quiet_rank_is_seen_quiet_and_its_stack_is_taken(tmp_path):
    async def play(made):
        busy = await seen(made, lambda s: s.last_step is not None and s.last_step < 19)
        assert (busy.phase, busy.stack_s, busy.looking) == ("train", None, False)
        quiet = await seen(made, lambda s: s.last_step == 19 and (s.device_s or 0) > 1.5 and not s.looking)
        assert quiet.communication_s is None, "there is no process group"
        assert quiet.log_s > 1.0
        assert quiet.stack_s is None, "one stack of an idle rank is enough"
        assert not quiet.paused

    story_of(tmp_path, play)


@needs_py_spy
def test_evidence_of_a_rank(tmp_path):
    async def play(made):
        await seen(made, lambda s: s.last_step == 19)
        await made.controller.send(collect())
        answer = await made.controller.wait(events.EvidenceCollected)
        (gathered,) = answer.gathered
        assert gathered.has == ("states", "stack")
        assert "flight record: KeyError" in gathered.unavailable[0], "no torch in this program, and that is said"
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
        began = time.monotonic()
        await made.controller.send(collect())
        (gathered,) = (await made.controller.wait(events.EvidenceCollected)).gathered
        assert time.monotonic() - began < 3.0
        assert gathered.has == ("states", "stack"), gathered
        assert "did not answer within 1 s" in gathered.unavailable[0]
        envelope = json.loads((made.run_dir / gathered.file).read_bytes())
        assert envelope["states"][0][1] == "T"
        began = time.monotonic()
        stopped = await made.stop_workers(0, grace_s=0.5)
        assert time.monotonic() - began < 2.0
        assert stopped.exits[0].stopped_by_us

    story_of(tmp_path, play)


@pytest.mark.parametrize("kind", ["python-loop", "native-call"])
def test_hang_drills(tmp_path, kind):
    async def play(made):
        await seen(made, lambda s: s.last_step is not None)
        started = await made.controller.wait(events.WorkersStarted)
        await made.controller.send(Inject(why="test", drill="d1", kind=kind, node="n0", rank=0, generation=0))
        if kind == "python-loop":
            quiet = await seen(made, lambda s: s.stack_s is not None and s.stack_s > 0.5)
            assert quiet.device_s < 0.6  # processor time is counted every half second
        else:
            quiet = await seen(made, lambda s: s.last_step_at is not None and (s.device_s or 0) > 1.0)
        assert quiet.state == ("R" if kind == "python-loop" else "S")
        os.kill(started.started[0].pid, signal.SIGKILL)
        await made.controller.wait(events.WorkerExited)

    story_of(tmp_path, play)


def test_evidence_of_a_generation_that_is_not_here(tmp_path):
    async def play(made):
        await made.controller.wait(events.WorkersStarted)
        await made.controller.send(CollectEvidence(why="test", node="n0", generation=7, incident="i9", limit_s=1.0))
        assert (await made.controller.wait(events.EvidenceCollected)).gathered == ()

    story_of(tmp_path, play)
