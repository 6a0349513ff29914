"""Evidence of other hosts may come after the report that names it: the diagnosis waits for it, and not for long."""

import asyncio
import time

from everstep.controller.diagnosing import Diagnosing, diagnose_folder
from everstep.model.actions import Diagnose
from everstep.model.events import EvidenceCollected, HangSuspected
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


def suspicion():
    return HangSuspected(at=1.0, generation=0, ranks=(0,), since=0.0, window_s=2.0, why="silent")


def test_a_reader_loads_before_there_is_evidence_and_is_asked_once(tmp_path):
    async def story():
        diagnosing = Diagnosing(tmp_path)
        diagnosing.prepare()
        ahead = diagnosing._ahead
        diagnosing.note(suspicion())
        assert diagnosing._ahead is ahead
        (tmp_path / "evidence/i1").mkdir(parents=True)
        action = Diagnose(why="a hang", incident="i1", generation=0, world_size=2)
        answer = await diagnosing.answer(action, lambda: False)
        assert answer.verdict.code == "ES-H15"
        assert diagnosing._ahead is None
        assert ahead.returncode is not None

    asyncio.run(story())


def test_a_reader_that_died_costs_nothing_and_one_that_nobody_asks_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("everstep.controller.diagnosing.AHEAD_S", 0.05)

    async def story():
        diagnosing = Diagnosing(tmp_path)
        diagnosing.note(suspicion())
        diagnosing._ahead.kill()
        found = diagnose_folder(tmp_path, 2, diagnosing._ahead)
        diagnosing._ahead = None
        assert found.verdict.code == "ES-H15"
        diagnosing.note(suspicion())
        unused = diagnosing._ahead
        await asyncio.sleep(0.3)
        assert diagnosing._ahead is None
        assert unused.returncode is not None

    asyncio.run(story())
