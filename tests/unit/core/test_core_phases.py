"""The table of phases: complete, followed, shown in the docs; a change that it does not list ends no run."""

import logging
import re
from pathlib import Path

import msgspec
import pytest

from everstep.controller.record.ledger import Drafted, Ledger
from everstep.core.invariants import STORY, InvariantError, check_step
from everstep.core.state.phases import MEANINGS, REOPENABLE, TRANSITIONS, Phase, is_legal
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.state.turn import Turn
from everstep.model import events
from everstep.model.record import Record
from everstep.model.spec import RunSpec
from everstep.report.parts.state_machine import render_state_machine
from everstep.testing import Cluster

ROOT = Path(__file__).parents[3]
SPEC = RunSpec(program="train.py", nproc_per_node=1, num_slots=2)


def test_the_page_is_in_sync() -> None:
    expected = "run `python -m everstep.report.parts.state_machine > docs/state-machine.md`"
    assert (ROOT / "docs/state-machine.md").read_text() == render_state_machine(), expected


def test_every_phase_has_a_row_and_a_meaning() -> None:
    assert set(TRANSITIONS) == set(MEANINGS) == set(Phase)


def test_every_phase_can_be_reached_and_every_run_can_end() -> None:
    def reached(start: Phase) -> set[Phase]:
        found, todo = {start}, [start]
        while todo:
            new = set(TRANSITIONS[todo.pop()]) - found
            found |= new
            todo += new
        return found

    assert reached(Phase.NEW) == set(Phase)
    assert all(Phase.OVER in reached(phase) for phase in Phase)
    assert not TRANSITIONS[Phase.OVER], "over is over"


def test_a_new_attempt_goes_on_from_every_phase_that_is_neither_new_nor_over() -> None:
    assert set(REOPENABLE) == set(Phase) - {Phase.NEW, Phase.OVER}
    assert all(is_legal(phase, Phase.GATHERING, is_reopened=True) for phase in REOPENABLE)
    assert not is_legal(Phase.OVER, Phase.GATHERING, is_reopened=True)
    assert not is_legal(Phase.RUNNING, Phase.FORMING, is_reopened=True), "a new attempt begins with its nodes"


def test_only_enter_changes_the_phase() -> None:
    found = []
    for path in (ROOT / "src/everstep/core").rglob("*.py"):
        found += [path.name for call in re.findall(r"\bset\([^)]*?\bphase=", path.read_text()) if call]
    assert found == ["turn.py"], "in `Turn.enter`; all others call it"


@pytest.mark.parametrize("before", Phase)
@pytest.mark.parametrize("after", Phase)
def test_each_pair_is_entered_and_noted_if_it_is_not_listed(before: Phase, after: Phase) -> None:
    turn = Turn(State(phase=before), Policy(), at=1.0)
    turn.enter(after)
    assert turn.state.phase is after, "the run goes on"
    assert bool(turn.state.unlisted) == (after not in TRANSITIONS[before])


def _broken() -> tuple[State, State]:
    before = State(phase=Phase.SAVING)
    turn = Turn(before, Policy(), at=1.0)
    turn.enter(Phase.RUNNING)
    return before, turn.state


def test_a_change_that_is_not_listed_breaks_a_rule() -> None:
    with pytest.raises(InvariantError, match="not in the table of phases: saving to running"):
        check_step(*_broken())


def test_a_broken_rule_tells_the_last_records() -> None:
    job = Cluster(SPEC)
    job.start()
    job.train(20)
    with pytest.raises(InvariantError) as caught:
        check_step(*_broken(), job.records)
    told = re.findall(r"^  #(\d+) at .*generation .* -> ", str(caught.value), re.MULTILINE)
    assert told == [str(record.seq) for record in job.records[-STORY:]]


def test_the_cluster_tells_the_record_that_broke_the_rule() -> None:
    job = Cluster(SPEC)
    job.start()
    job.state = msgspec.structs.replace(job.state, restarts=(2.0, 1.0))
    with pytest.raises(InvariantError, match=r"restarts are not in order(?s:.*)StopRequested.* -> StopWorkers"):
        job.feed(events.StopRequested(at=3.0, signal=15, why="a test"))


def test_the_controller_of_a_real_run_says_so_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    before, after = _broken()
    ledger = Ledger.__new__(Ledger)
    ledger.state = before
    ledger._note = lambda record: None  # type: ignore[method-assign]
    record = Record(seq=7, at=1.0, gen=0, event=events.StopRequested(at=1.0, signal=15, why="a test"))
    with caplog.at_level(logging.ERROR):
        ledger.take([Drafted(record=record, state=after, is_stale=False)])
        ledger.take([Drafted(record=record, state=after, is_stale=False)])
    assert ledger.state is after
    assert [line for line in caplog.messages if "saving to running" in line and "the run goes on" in line][1:] == []
    assert len(caplog.messages) == 1
