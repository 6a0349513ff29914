"""Least privilege of the link: every event has exactly one place, and nobody speaks for somebody else."""

import typing

import pytest

from everstep.model import events
from everstep.wire import allowed


def test_no_event_is_forgotten_and_none_is_the_controllers_and_a_peers():
    known = allowed.OF_AGENTS | allowed.OF_LAUNCHER | allowed.OF_CONTROLLER
    assert known == set(typing.get_args(events.Event)), "say in wire/allowed.py who may say the new event"
    assert not allowed.OF_CONTROLLER & (allowed.OF_AGENTS | allowed.OF_LAUNCHER)
    assert {events.DrillFailed, events.NodeAlerted} == allowed.OF_AGENTS & allowed.OF_LAUNCHER


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (events.NodeJoined(at=1.0, node="n1", host="h", pid=1), "n0 speaks for another node in NodeJoined"),
        (events.NodeLost(at=1.0, node="n0", reason="r"), "an agent may not say NodeLost"),
        (events.StopRequested(at=1.0, why="w", signal=15), "an agent may not say StopRequested"),
        (events.TimerFired(at=1.0, key="k"), "an agent may not say TimerFired"),
        (events.NodeJoined(at=1.0, node="n0", host="h", pid=1), ""),
        (events.DrillFailed(at=1.0, drill="d1", why="w"), ""),
    ],
)
def test_an_agent_speaks_only_as_itself(event, why):
    assert allowed.objection("agent", "n0", event) == why


def test_a_launcher_tells_of_nodes_and_is_none():
    assert allowed.objection("launcher", "launcher-1", events.NodeLost(at=1.0, node="n0", reason="r")) == ""
    assert "may not say" in allowed.objection(
        "launcher", "launcher-1", events.NodeJoined(at=1.0, node="n", host="", pid=1)
    )
