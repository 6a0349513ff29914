"""What the journal of a run with updates says: which version runs, what each cost, and that none of it was a fault."""

import pytest

from everstep.core.state.policy import Policy
from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import goodput_of
from everstep.journal.fold import fold
from everstep.journal.history import history_of
from everstep.journal.view import RunView
from everstep.model import events
from everstep.model.facts import Started
from everstep.model.record import Header
from everstep.model.spec import RunSpec
from everstep.model.versions import Stage
from everstep.report.now.narrate import Narrator
from everstep.report.now.status import render_status
from everstep.report.parts.asked import Asked
from everstep.report.updates import cold_text, cost_of, render_update, render_updates, running_text, updates_json
from everstep.testing.cluster import Cluster

HEADER = Header(run="r0001", everstep_version="test", policy={"max_restarts": 10, "budget_window_s": 3600.0})


def cluster(policy: Policy | None = None) -> Cluster:
    made = Cluster(RunSpec(program="train.py", cwd="/home/anna/job", nproc_per_node=2), policy)
    made.start()
    made.train(10)
    return made


def update(made: Cluster, version: str, *, is_urgent: bool = True, code: str = "/run/code/a") -> None:
    made.feed(
        events.UpdateRequested(
            at=made.clock.now,
            version=version,
            source="git 3f2c1a9",
            code=code,
            root="/home/anna/job",
            is_urgent=is_urgent,
            by="anna",
        )
    )


def view_of(made: Cluster) -> RunView:
    return fold(HEADER, made.records)


def test_an_urgent_update_is_told_with_its_cost():
    made = cluster()
    update(made, "v1")
    made.train(1, step_s=0.25)
    view = view_of(made)
    line = "v1 (git 3f2c1a9, urgent, by anna) applied at step 10: 0.25s, 0 steps lost"
    assert running_text(view) == line
    asked = Asked(at=made.clock.now, controller_pid=1)
    assert line in render_status(view, goodput_of(history_of(view, made.clock.now)), asked)
    assert f"* {line}" in render_updates(view)
    found = updates_json(view)[0]
    assert (found["id"], found["at_step"], found["lost_steps"], found["took_s"]) == ("v1", 10, 0, 0.25)
    assert [view.generations[0].version, view.generations[1].version] == ["v0", "v1"]


@pytest.mark.parametrize(
    ("hows", "expected"),
    [
        (("fresh", "fresh"), "all ranks started cold (fresh interpreters): "),
        (("twin", "fresh"), "rank 1 started cold (fresh interpreters): "),
        (("twin", "twin"), ""),
    ],
)
def test_a_cold_start_is_explained(hows, expected):
    made = cluster()
    update(made, "v1")
    made.train(1, step_s=0.25)
    view = view_of(made)
    started = {rank: Started(rank=rank, pid=rank + 1, how=how, why="", at=0.0) for rank, how in enumerate(hows)}
    view.generations[1].started = started
    assert cold_text(view, view.updates["v1"]).startswith(expected)
    assert bool(cold_text(view, view.updates["v1"])) is bool(expected)


def test_it_is_no_fault_and_uses_up_no_restart():
    made = cluster()
    update(made, "v1")
    made.train(6)
    view = view_of(made)
    assert (view.incidents, view.restarts, made.state.restarts) == ({}, [], ())
    assert view.updates["v1"].stage is Stage.TRAINED


def test_its_seconds_are_accounted_as_waiting_for_a_start_and_starting():
    made = cluster()
    made.held_back = {"StopWorkers"}
    update(made, "v1")
    made.wait(2.0)
    stopping = goodput_of(history_of(view_of(made), made.clock.now))
    assert stopping.seconds[Bucket.IDLE] == 0.0
    made.held_back = set()
    made.restart_controller()
    made.train(5)
    goodput = goodput_of(history_of(view_of(made), made.clock.now))
    assert goodput.seconds[Bucket.SCHEDULE] == pytest.approx(2 * 2.0)  # on both ranks
    assert goodput.seconds[Bucket.IDLE] == 0.0
    assert goodput.invalid.num_interruptions == 0


def test_one_that_waits_and_one_that_was_merged():
    made = cluster()
    update(made, "v1", is_urgent=False)
    assert "v0 (as the run was started); v1 (git 3f2c1a9, by anna) waiting: " in running_text(view_of(made))
    made.kill(0)
    made.train(1)
    assert running_text(view_of(made)).endswith("0 steps lost, merged into the restart of i1")


def test_one_that_was_taken_back():
    made = cluster()
    update(made, "v1")
    made.raise_in(0)
    made.train(6)
    view = view_of(made)
    assert running_text(view) == "v0 (as the run was started)"
    assert "did no step; rolled back to v0: v1 failed before its first new step" in render_updates(view)
    text = render_update(view, view.updates["v1"])
    assert "code     /run/code/a for /home/anna/job" in text
    assert "rolled-back: v1 failed before its first new step" in text
    assert cost_of(view, view.updates["v1"]).took_s is None
    assert view.incidents["i1"].decision.rule == "roll-back"


def test_one_that_was_refused():
    made = cluster()
    made.broken["v1"] = "train.py:3: SyntaxError: invalid syntax"
    update(made, "v1")
    narrator = Narrator(HEADER)
    told = [line for record in made.records for line in narrator.tell(record)]
    assert any(line.endswith("v1 asked for by anna: git 3f2c1a9, urgent") for line in told)
    assert any(line.endswith("v1 refused: train.py:3: SyntaxError: invalid syntax") for line in told)
    assert made.state.generation == 0


def test_a_run_without_updates_says_nothing_of_versions():
    view = view_of(cluster())
    assert running_text(view) == ""
    assert updates_json(view) == []


def test_what_is_asked_for_is_made_of_what_came_before():
    made = cluster()
    update(made, "v1")
    at = made.clock.now
    made.feed(events.UpdateRequested(at=at, version="v2", args=("--lr", "1"), env={"A": "1"}, is_urgent=True))
    made.feed(events.UpdateRequested(at=at, version="v3", env={"B": "2"}, is_urgent=True))
    running = made.state.formation.version
    assert (running.id, running.code, running.root) == ("v3", "/run/code/a", "/home/anna/job")
    assert (running.args, running.env) == (("--lr", "1"), {"A": "1", "B": "2"})


def test_values_that_are_kept_apart_take_the_place_of_earlier_ones_and_the_other_way_round():
    made = cluster()
    update(made, "v1")
    at = made.clock.now
    made.feed(events.UpdateRequested(at=at, version="v2", env={"A": "1", "C": "3"}, is_urgent=True))
    made.feed(events.UpdateRequested(at=at, version="v3", variables={"A": "v3", "B": "v3"}, is_urgent=True))
    made.feed(events.UpdateRequested(at=at, version="v4", variables={"B": "v4"}, is_urgent=True))
    running = made.state.formation.version
    assert (running.id, running.env, running.variables) == ("v4", {"C": "3"}, {"A": "v3", "B": "v4"})
    made.feed(events.UpdateRequested(at=at, version="v5", env={"B": "5"}, is_urgent=True))
    running = made.state.formation.version
    assert (running.env, running.variables) == ({"B": "5", "C": "3"}, {"A": "v3"})


def test_back_to_the_start_is_back_to_its_copy():
    spec = RunSpec(program="train.py", cwd="/j", nproc_per_node=2, code_copy="/run/code/0", code_root="/j")
    made = Cluster(spec)
    made.start()
    made.train(10)
    assert made.state.formation.version is None  # where the user has it
    update(made, "v1")
    made.raise_in(0)
    back = made.state.formation.version
    assert (back.id, back.code, back.root) == ("v0", "/run/code/0", "/j")
    made.kill(0)
    assert made.state.formation.version == back
