"""An event costs what it touches: a report of one node in a large fleet asks neither other nodes nor their ranks."""

import sys
from pathlib import Path

import pytest

from everstep.core.invariants import InvariantError, check
from everstep.core.state.phases import Phase
from everstep.core.state.workers import Tally, Worker
from everstep.model.facts import Exit, RankAccount

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))

import msgspec

import scale


def calls_of(work) -> int:
    """Functions that were called meanwhile: what it costs, on whatever machine."""
    count = 0

    def seen(frame, what, arg):
        nonlocal count
        count += what in ("call", "c_call")

    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def running(num_nodes: int) -> scale.Fleet:
    fleet = scale.Fleet(num_nodes)
    fleet.begin()
    fleet.form()
    return fleet


def test_a_report_costs_the_same_in_a_fleet_of_any_size():
    small, large = running(8), running(256)
    per_report = [calls_of(lambda fleet=fleet: fleet.progress(0)) / len(fleet.state.slots) for fleet in (small, large)]
    assert per_report[1] < 1.2 * per_report[0], per_report


def test_a_restart_of_the_fleet_costs_each_node_the_same():
    def cycle(fleet: scale.Fleet) -> None:
        fleet.lose_and_stop()
        fleet.form()

    small, large = running(16), running(256)
    for fleet in (small, large):
        fleet.progress(0)
    per_node = [calls_of(lambda fleet=fleet: cycle(fleet)) / len(fleet.state.slots) for fleet in (small, large)]
    assert large.state.phase is Phase.RUNNING
    assert large.state.incident is None
    assert per_node[1] < 1.5 * per_node[0], per_node


def test_the_tally_is_what_the_workers_make_it():
    waiting = RankAccount(rank=1, spawned_at=0.0, entered_at=1.0, rendezvous_begun_at=2.0)
    stepped = RankAccount(rank=2, spawned_at=0.0, entered_at=1.0, first_step=0, last_step=4, published_step=3)
    workers = [
        Worker(rank=0, node="a"),
        Worker(rank=1, node="a", started=True, account=waiting),
        Worker(rank=2, node="b", started=True, account=stepped, exit=Exit(rank=2, at=9.0, signal=9)),
    ]
    tally = Tally.of(workers)
    assert (tally.unstarted, tally.alive, tally.unsuccessful, tally.unentered) == (1, 2, 3, 1)
    assert (tally.blocked, tally.in_rendezvous, tally.stepped, tally.incomplete) == (1, 1, 1, 2)
    assert tally.completed == {3: 1}, "the snapshot of step 4 was not complete"
    assert tally.completed_step is None, "two ranks have told of none"
    assert not tally.is_through(has_stepped=False)
    done = msgspec.structs.replace(workers[2], exit=Exit(rank=2, at=9.0, code=0))
    assert tally.changed([(workers[2], done)]) == Tally.of([*workers[:2], done])


def test_a_state_whose_tally_is_wrong_is_found():
    state = running(2).state
    with pytest.raises(InvariantError, match="the workers make it"):
        check(msgspec.structs.replace(state, tally=Tally()))
