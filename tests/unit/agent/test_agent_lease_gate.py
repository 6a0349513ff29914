"""How long a node that asks whether it is still counted on waits for the answer: as long as somebody may give it."""

import asyncio

import pytest

from everstep.agent.lease import doubt as lease_gate
from everstep.agent.lease.clock import Lease
from everstep.agent.lease.doubt import UNANSWERED_S, UNREACHED_S, LeaseGate
from everstep.errors import LeaseOverError
from everstep.model.actions import SettleDoubt
from everstep.model.events import NodeInDoubt
from everstep.wire.messages import Command

ENDS_S = 3.0


class Play:
    """A link and a clock of which every look at the doubt takes a tenth of a second."""

    def __init__(self, arrives_after_s: float, silent_from_s: float, answers_after_s: float) -> None:
        self.now = 100.0
        self.asked: list[NodeInDoubt] = []
        self._arrives_after_s = arrives_after_s
        self._silent_from_s = silent_from_s
        self._answers_after_s = answers_after_s
        self.lease = Lease(ENDS_S, self.clock)
        self.lease.begin()
        self.now += 8.0
        assert self.lease.is_over()
        self.began = self.now
        self.gate = LeaseGate(
            "n0",
            self.lease,
            self,  # type: ignore[arg-type]
            host=self,
            carry_out=lambda _: None,
            clock=self.clock,
        )

    def ranks(self) -> None:
        """None runs here."""

    def clock(self) -> float:
        return self.now

    def report(self, event: NodeInDoubt) -> None:
        self.asked.append(event)

    def heard_at(self) -> float | None:
        """As the link says it: None while something is under way."""
        since_s = self.now - self.began
        return self.now if self._arrives_after_s <= since_s < self._silent_from_s else None

    async def tick(self, _s: float) -> None:
        self.now += 0.1
        question = self.asked[-1]
        if self.now - self.began >= self._answers_after_s:
            action = SettleDoubt(why="test", node="n0", number=question.number, may_go_on=True)
            self.gate.command(Command(id="1.0", action=action))

    def settle(self, monkeypatch) -> float:
        """How long it took."""
        monkeypatch.setattr(lease_gate.asyncio, "sleep", self.tick)
        asyncio.run(self.gate.settle())
        return self.now - self.began


NEVER = 1e9


def test_a_question_that_arrived_is_waited_for_also_while_the_next_one_is_under_way(monkeypatch):
    play = Play(arrives_after_s=0.3, silent_from_s=0.6, answers_after_s=5.0)
    assert play.settle(monkeypatch) == pytest.approx(5.0, abs=0.3)
    assert len(play.asked) > 1
    assert not play.lease.is_over()


def test_a_question_that_never_arrives_is_not_waited_for(monkeypatch):
    play = Play(arrives_after_s=NEVER, silent_from_s=NEVER, answers_after_s=NEVER)
    with pytest.raises(LeaseOverError, match="nothing arrived there"):
        play.settle(monkeypatch)
    assert play.now - play.began == pytest.approx(UNREACHED_S, abs=0.3)


def test_one_that_nobody_answers_is_waited_for_longer(monkeypatch):
    play = Play(arrives_after_s=0.3, silent_from_s=NEVER, answers_after_s=NEVER)
    with pytest.raises(LeaseOverError, match="no answer came"):
        play.settle(monkeypatch)
    assert play.now - play.began == pytest.approx(UNANSWERED_S, abs=0.3)
