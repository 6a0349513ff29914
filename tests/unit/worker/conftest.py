"""What the tests of State share."""

import pytest
from test_state import Agent

from everstep.worker.link import runtime


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(runtime, "_current", None)
    agent = Agent()
    yield agent
    agent.close()
