"""The loop under what it cannot handle: an input that breaks the brain ends it twice, and is then left out."""

import asyncio

import pytest

from everstep.controller.loop import Controller
from everstep.controller.peers.gate import Gate
from everstep.controller.peers.peers import Input
from everstep.controller.record import ledger as ledgers
from everstep.controller.record.drafting import PoisonedError
from everstep.controller.record.ledger import Ledger
from everstep.controller.record.spec_file import SpecFile
from everstep.core.state.policy import Policy
from everstep.journal.reader import read_journal
from everstep.model.events import (
    DrillFailed,
    DrillRequested,
    Event,
    NodeAlerted,
    NodeJoined,
    ProgressReported,
)
from everstep.model.facts import Alert
from everstep.model.observations import DigestsReported
from everstep.model.spec import RunSpec
from everstep.wire.credentials import RunSecret

WANTED = SpecFile(run="r1", spec=RunSpec(program="train.py"), policy=Policy())
GATE = Gate(RunSecret("secret of a test, and long enough", "r1"), run="r1")
POISON = Input(event=NodeJoined(at=1.0, node="bad", host="h", pid=1), source="bad", seq=1)
GOOD = Input(event=NodeJoined(at=2.0, node="n0", host="h", pid=1), source="n0", seq=1)


async def one_life(tmp_path, *inputs, until=lambda controller: True) -> Controller:
    """A controller that handles these inputs, then ends in order. Raises PoisonedError as a process would end."""
    ledger = Ledger.open(tmp_path, WANTED, pid=1, at=0.0)
    controller = Controller(tmp_path, WANTED, ledger, GATE)
    try:
        for item in inputs:
            controller.queue.put_nowait(item)
        running = asyncio.create_task(controller.run())
        settled = asyncio.create_task(_until(controller, until))
        done, _ = await asyncio.wait([running, settled], return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        if running in done:
            running.result()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return controller
    finally:
        ledger.close()


async def _until(controller, condition) -> None:
    async with asyncio.timeout(60):
        await controller.queue.join()
        while not condition(controller):
            await asyncio.sleep(0)


@pytest.fixture
def broken_brain(monkeypatch):
    real = ledgers.step

    def step(state, event, policy):
        if isinstance(event, NodeJoined) and event.node == "bad":
            raise KeyError("no such slot")
        return real(state, event, policy)

    monkeypatch.setattr(ledgers, "step", step)


def test_poison_is_skipped_after_two_crashes(tmp_path, broken_brain):
    for _ in range(2):
        with pytest.raises(PoisonedError, match="no such slot"):
            asyncio.run(one_life(tmp_path, POISON, GOOD))
    controller = asyncio.run(one_life(tmp_path, POISON, GOOD))
    assert controller.dropped == {"poison": 1}
    assert set(controller.ledger.state.members) == {"n0"}


def test_what_came_before_the_poison_in_one_batch_is_not_half_done(tmp_path, broken_brain):
    with pytest.raises(PoisonedError):
        asyncio.run(one_life(tmp_path, GOOD, POISON))
    controller = asyncio.run(one_life(tmp_path))
    assert controller.ledger.state.members == {}, "neither recorded nor acknowledged: its peer sends it again"


def test_the_same_report_twice_in_one_batch_counts_once(tmp_path):
    controller = asyncio.run(one_life(tmp_path, GOOD, GOOD))
    assert controller.dropped == {"duplicate": 1}
    recorded = [entry.event for entry in read_journal(tmp_path / "journal.jsonl").entries]
    assert sum(isinstance(event, NodeJoined) for event in recorded) == 1


def test_a_drill_whose_agent_is_away_is_recorded_as_failed(tmp_path):
    drill = Input(event=DrillRequested(at=3.0, drill="d1", kind="kill-agent"))

    def failed(controller):
        return "d1" in controller.ledger.fold.view.drills and controller.ledger.fold.view.drills["d1"].failed

    controller = asyncio.run(one_life(tmp_path, GOOD, drill, until=failed))
    assert controller.ledger.fold.view.drills["d1"].failed == "n0 is not connected"
    assert controller.ledger.state.pending_drills == {}


@pytest.mark.parametrize(("severity", "is_flushed"), [("warning", False), ("error", True)])
def test_a_node_that_only_warns_puts_nobodys_progress_on_record(tmp_path, severity, is_flushed):
    alert = Alert(
        at=4.0, code="ES-M38", sentence="s", component="disk", blame="machine", severity=severity, action="NONE"
    )
    alerted = Input(event=NodeAlerted(at=4.0, node="n0", alerts=(alert,)), source="n0", seq=2)
    held = ProgressReported(at=3.0, node="n1", generation=0, accounts=())
    ledger = Ledger.open(tmp_path, WANTED, pid=1, at=0.0)
    try:
        controller = Controller(tmp_path, WANTED, ledger, GATE)
        ledger.thinning.held["n1"] = held
        assert [item.event for item in controller._due(alerted)] == [held] * is_flushed + [alerted.event]
        assert bool(ledger.thinning.held) != is_flushed
    finally:
        ledger.close()


def test_what_a_watch_finds_in_a_report_is_dealt_with_before_the_report_that_came_after_it(tmp_path, monkeypatch):
    """Else the end of the ranks would be in the way of what led to it."""
    found = DrillFailed(at=5.0, drill="d", why="found")

    async def heard() -> list[Event]:
        ledger = Ledger.open(tmp_path, WANTED, pid=1, at=0.0)
        try:
            controller = Controller(tmp_path, WANTED, ledger, GATE)
            monkeypatch.setattr(controller.detectors, "take", lambda *_: (found,))
            controller.settle_at_once("n0", 1, DigestsReported(at=4.0, node="n0", generation=0, digests=()))
            controller.queue.put_nowait(GOOD)
            await asyncio.sleep(0)
            return [controller.queue.get_nowait().event for _ in range(2)]
        finally:
            ledger.close()

    assert asyncio.run(heard()) == [found, GOOD.event]
