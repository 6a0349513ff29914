"""Evidence of other hosts may come after the report that names it: the diagnosis waits for it, and not for long."""

import asyncio
import time

from everstep.controller.diagnosing import Diagnosing
from everstep.model.events import EvidenceCollected
from everstep.model.facts import Gathered

NAME = "evidence/i1/gen-0/rank-0.json"


def noted(run_dir, has=("states",)):
    diagnosing = Diagnosing(run_dir)
    gathered = (Gathered(rank=0, file=NAME, has=has),)
    diagnosing.note(EvidenceCollected(at=1.0, node="n1", generation=0, incident="i1", gathered=gathered, took_s=0.1))
    return diagnosing


def test_a_file_on_its_way_is_waited_for(tmp_path):
    async def story():
        path = tmp_path / NAME
        path.parent.mkdir(parents=True)
        asyncio.get_running_loop().call_later(0.05, path.write_text, "{}")
        await noted(tmp_path).wait("i1", 60.0)
        assert path.exists()

    asyncio.run(story())


def test_what_never_comes_or_was_never_written_holds_up_nothing(tmp_path):
    began = time.monotonic()
    asyncio.run(noted(tmp_path).wait("i1", 0.05))
    asyncio.run(noted(tmp_path).wait("i2", 60.0))
    asyncio.run(noted(tmp_path, has=()).wait("i1", 60.0))
    assert time.monotonic() - began < 30.0
