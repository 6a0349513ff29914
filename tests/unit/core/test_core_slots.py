"""Which slot a host gets: the one that it was meant for, as long as no other one was meant for it, else the first."""

import pytest

from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.model.events import NodeJoined, RunStarted
from everstep.model.spec import RunSpec


@pytest.mark.parametrize(
    ("meant_for", "slots"),
    [
        ((None, None, None), ("n0", "n1", "n2")),
        ((2, 0, 1), ("n1", "n2", "n0")),
        ((2, 2, None), ("n1", "n2", "n0")),
        ((None, 0, 1), ("n1", "n2", "n0")),  # who came without a number leaves a slot that is named later
        ((None, None, 0), ("n2", "n1", "n0")),
        ((7, -1, None), ("n0", "n1", "n2")),
    ],
)
def test_a_host_gets_the_slot_that_it_was_meant_for(meant_for, slots):
    spec = RunSpec(program="train.py", num_slots=3, num_standby=1)
    state, _ = step(State(), RunStarted(at=1.0, run="r1", spec=spec, everstep_version="0", policy="default"), Policy())
    for number, slot in enumerate(meant_for):
        joined = NodeJoined(at=2.0, node=f"n{number}", host=f"h{number}", pid=1, meant_for=slot)
        state, _ = step(state, joined, Policy())
    assert state.slots == slots
    state, _ = step(state, NodeJoined(at=3.0, node="n3", host="h3", pid=1, meant_for=0), Policy())
    assert state.slots == slots, "a standby takes nobody's place"
