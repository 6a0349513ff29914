"""A node that lies about ranks which another node runs: none of the watches hears it."""

import msgspec
from one_node import running

from everstep.controller.detectors.together import Detectors
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Member, Role, State, Worker
from everstep.model import events, observations
from everstep.model.collective import RankOps
from everstep.model.facts import NumberPoint, RankCounts, RankDigest, RankNumbers, RankRound, Signals


def two_nodes() -> State:
    state = running(2)
    other = Member(node="n1", host="g", pid=2, role=Role.ACTIVE, slot=1)
    workers = {rank: Worker(rank=rank, node="n0" if rank < 2 else "n1") for rank in range(4)}
    return msgspec.structs.replace(state, slots=("n0", "n1"), members={**state.members, "n1": other}, workers=workers)


class Heard:
    """Stands where a watch stands."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def take(self, event: object, state: State) -> tuple[()]:
        self.events.append(event)
        return ()


def said(node: str, ranks: range) -> list[events.Event]:
    told = {"at": 1.0, "node": node, "generation": 0}
    point = NumberPoint(step=1, loss=9.0)
    return [
        observations.SignalsReported(**told, signals=tuple(Signals(rank=r, phase="train") for r in ranks)),
        observations.NumbersReported(
            **told, numbers=tuple(RankNumbers(rank=r, source="step", points=(point,)) for r in ranks)
        ),
        observations.DigestsReported(
            **told,
            digests=tuple(RankDigest(rank=r, step=1, values={"w": "x"}, replicas=(0, 1, 2, 3)) for r in ranks),
            counts=tuple(RankCounts(rank=r, runs=((1, 1, 1, 1),)) for r in ranks),
        ),
        observations.RoundReported(
            **told,
            round=1,
            ranks=tuple(RankRound(rank=r, num_steps=1, window_s=1.0) for r in ranks),
            collectives=tuple(RankOps(rank=r) for r in ranks),
        ),
    ]


def test_what_a_node_says_of_ranks_of_another_is_left_out(caplog):
    detectors, heard, state = Detectors(Policy()), Heard(), two_nodes()
    detectors._all = (heard,)
    for event in said("n1", range(-1, 5)):
        detectors.take(event, state)
    assert heard.events == said("n1", range(2, 4))
    assert caplog.text.count("n1 names ranks that it does not run") == 1


def test_what_it_says_of_its_own_is_heard_as_it_is(caplog):
    detectors, heard, state = Detectors(Policy()), Heard(), two_nodes()
    detectors._all = (heard,)
    for event in said("n0", range(2)):
        detectors.take(event, state)
        assert heard.events[-1] is event
    assert caplog.text == ""
