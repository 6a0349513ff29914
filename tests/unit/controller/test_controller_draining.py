"""`everstep drain`: which node is meant, and what the asker is told."""

import msgspec
import pytest

from everstep.analyzer.numbers.alerts import SeenAlert
from everstep.controller.draining import drain_alert, named, what_follows
from everstep.core.state.schema import Member, Role, State
from everstep.model.spec import Mode, RunSpec


def member(node: str, host: str, role: Role = Role.ACTIVE) -> Member:
    return Member(node=node, host=host, pid=1, role=role, slot=0 if role is Role.ACTIVE else None)


def state(*members: Member, mode: Mode = Mode.ACT) -> State:
    spec = RunSpec(program="train.py", num_slots=2, mode=mode)
    return State(members={each.node: each for each in members}, spec=spec)


N1, N2 = member("n1", "gpu-1"), member("n2", "gpu-2")
SPARE, GONE = member("n3", "gpu-3", Role.STANDBY), member("n4", "gpu-4", Role.OUT)


@pytest.mark.parametrize(("name", "found"), [("n1", N1), ("gpu-2", N2), ("n3", SPARE)])
def test_a_node_is_named_by_its_id_or_its_host(name, found):
    assert named(state(N1, N2, SPARE, GONE), name) == found


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpu-4", "this run has no node 'gpu-4'; it has: n1 (gpu-1), n2 (gpu-2)"),
        ("n4", "no node 'n4'"),
        ("", "no node ''"),
    ],
)
def test_a_name_of_nobody_names_those_that_there_are(name, words):
    with pytest.raises(ValueError, match="no node") as error:
        named(state(N1, N2, GONE), name)
    assert words in str(error.value)


def test_a_host_with_several_nodes_is_not_guessed_about():
    with pytest.raises(ValueError, match=r"several nodes.*n1 \(gpu-1\), n5 \(gpu-1\)"):
        named(state(N1, member("n5", "gpu-1")), "gpu-1")


def test_what_would_change_nothing_is_refused():
    before = state(N1)
    with pytest.raises(ValueError, match="nothing to undo"):
        drain_alert(before, N1, why="", by="anna", is_undone=True, at=1.0)
    told = drain_alert(before, N1, why="a fan", by="anna", is_undone=False, at=1.0)
    assert told.sentence == "anna drains this node: a fan"
    after = msgspec.structs.replace(before, alerts=(SeenAlert(node="n1", alert=told),))
    with pytest.raises(ValueError, match="drained already"):
        drain_alert(after, N1, why="", by="anna", is_undone=False, at=2.0)
    assert drain_alert(after, N1, why="", by="anna", is_undone=True, at=2.0).severity == "info"


@pytest.mark.parametrize(
    ("before", "who", "words"),
    [
        (state(N1, SPARE), N1, "at the next step (1 ready)"),
        (state(N1, N2), N1, "no standby is ready: it stays until one joins"),
        (state(N1, SPARE), SPARE, "it ends now"),
        (state(N1, SPARE, mode=Mode.ADVISE), N1, "mode is advise"),
    ],
)
def test_the_asker_is_told_what_follows(before, who, words):
    assert words in what_follows(before, who, is_undone=False)
