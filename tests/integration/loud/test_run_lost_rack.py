"""A rack goes, with both of its machines and their memory: standbys go on from the copies in the other rack."""

from collections import Counter

import pytest
from exact_training import TRAIN
from real_run import Launcher, Run

from everstep.model.actions import IncidentClosed, Inject, PlaceBackups, StartWorkers
from everstep.model.events import MarksReported, NodeJoined, NodeLost, ProgressReported, RestoreFailed

LIMIT_S = 240.0
"""Six agents on a machine of two processors."""


def all_copied(run: Run, step: int) -> bool:
    """Every rank's copy of this step, or of a newer one, is at its place."""
    told = [*run.events(MarksReported), *run.events(ProgressReported)]
    accounts = [account for event in told for account in event.accounts]
    copied = {a.rank for a in accounts if a.backed_up_step is not None and a.backed_up_step >= step}
    return len(copied) == 4


def knows_all(run: Run) -> bool:
    return len({event.node for event in run.events(NodeJoined)}) == 6


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_lost_rack_costs_neither_the_run_nor_a_bit_of_its_result(launcher: Launcher):
    script = launcher.script(TRAIN)
    quiet = launcher.start("--local-nodes", 4, script, 60, 0.0, run_dir="quiet")
    assert quiet.wait(LIMIT_S) == 0, quiet.story()
    run = launcher.start("--local-nodes", 4, "--standby", 2, "--racks", "a,a,b,b,c,c", script, 60, 0.25, 55)
    run.until("copies of all ranks, and standbys", lambda: all_copied(run, 5) and knows_all(run), LIMIT_S)
    racks = {event.node: event.rack for event in run.events(NodeJoined)}
    first = [action for action in run.actions(PlaceBackups) if action.generation == 0]
    assert len(first) == 4
    for action in first:
        assert all(racks[backup.node] != racks[action.node] for backup in action.backups)
    [(rack, _)] = Counter(racks[action.node] for action in first).most_common(1)
    gone = {node for node in racks if racks[node] == rack}
    result = run.drill("lose-rack", rack, "--timeout", LIMIT_S, limit_s=LIMIT_S + 20)
    assert result.passed, result
    assert run.wait(LIMIT_S) == 0, run.story()
    assert {action.node for action in run.actions(Inject)} == gone
    assert {(e.node, e.kept) for e in run.events(NodeLost)} == {(node, ()) for node in gone}
    assert not run.events(RestoreFailed)
    assert run.actions(IncidentClosed)[-1].lost_steps in (0, 1), "a copy may be on its way"
    last = max(start.generation for start in run.actions(StartWorkers))
    fetched = {f.rank: f.node for s in run.actions(StartWorkers) if s.generation == last for f in s.fetch}
    lost = {s.first_rank for s in run.actions(StartWorkers) if s.generation == 0 and s.node in gone}
    assert fetched.keys() == lost
    assert all(racks[node] != rack for node in fetched.values()), "from the copies in other racks"
    for rank in range(4):
        assert run.said(rank) == quiet.said(rank)
