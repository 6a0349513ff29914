"""A link that loses so much that hardly a step ends: who loses is named by two witnesses, and by no single one."""

import msgspec
import pytest

from everstep.controller.detectors.links import LinkReports
from everstep.controller.detectors.slow.losing import LossyLinkDetector
from everstep.controller.detectors.slow.slowness import SlownessDetector
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Member, Role, State, Worker
from everstep.core.state.workers import Tally
from everstep.model.events import AnomalyFound
from everstep.model.facts import LinkSeen, LinkState, RankRound
from everstep.model.observations import LinksReported, RoundReported

ROUND_S = 10.0
WORKERS = {rank: Worker(rank=rank, node=f"n{rank}") for rank in range(2)}
STATE = State(
    phase=Phase.RUNNING,
    generation=0,
    slots=("n0", "n1"),
    members={f"n{i}": Member(node=f"n{i}", host=f"h{i}", pid=1, role=Role.ACTIVE, slot=i) for i in range(2)},
    workers=WORKERS,
    tally=Tally.of(WORKERS.values()),
)


class Job:
    def __init__(self) -> None:
        self.links, self.slowness = LinkReports(), SlownessDetector(Policy())
        self.watch = LossyLinkDetector(Policy(), self.links, self.slowness)
        self.number = 0

    def see(self, state: LinkState) -> None:
        for node, other in (("n0", "n1"), ("n1", "n0")):
            seen = LinkSeen(to=other, state=state, for_s=9.0, sent=40, lost=5)
            self.links.take(LinksReported(at=self.number * ROUND_S, node=node, generation=0, links=(seen,)), STATE)

    def rounds(self, num: int, *, steps: int, **of_rank_1: object) -> list[AnomalyFound]:
        found: list[AnomalyFound] = []
        for _ in range(num):
            self.number += 1
            for rank in range(2):
                parts = {"send_share": 0.1, "lost": 0} | (of_rank_1 if rank == 1 else {})
                each = RankRound(rank=rank, num_steps=steps, window_s=ROUND_S, **parts)  # type: ignore[arg-type]
                event = RoundReported(
                    at=self.number * ROUND_S, node=f"n{rank}", generation=0, round=self.number, ranks=(each,)
                )
                found += self.watch.take(event, STATE)
        return found


LOSING = {"send_share": 0.97, "lost": 4}


def test_the_rank_whose_data_is_lost_is_named_once_within_five_rounds() -> None:
    job = Job()
    assert job.rounds(10, steps=100) == []
    job.see(LinkState.LOSSY)
    (found,) = job.rounds(5, steps=2, **LOSING)
    assert (found.verdict.code, found.verdict.ranks, found.verdict.blame) == ("ES-S11", (1,), "network")
    assert "12 segments were sent again" in found.verdict.sentence
    assert "6 steps in 30 s, usually 300" in found.verdict.sentence
    assert "n0 and n1: probes are lost now and then" in found.verdict.sentence
    assert job.rounds(20, steps=2, **LOSING) == []


def test_a_machine_whose_clock_was_ahead_once_ends_no_watch() -> None:
    job = Job()
    each = RankRound(rank=0, num_steps=100, window_s=ROUND_S)
    ahead = RoundReported(at=0.0, node="n0", generation=0, round=1_000_000, ranks=(each,))
    assert job.watch.take(ahead, STATE) == ()
    assert job.rounds(10, steps=100) == []
    job.see(LinkState.LOSSY)
    (found,) = job.rounds(5, steps=2, **LOSING)
    assert found.verdict.ranks == (1,)


def test_a_try_again_comes_later_and_later() -> None:
    job = Job()
    job.rounds(10, steps=100)
    job.see(LinkState.LOSSY)
    job.rounds(1, steps=2, **LOSING)
    assert job.rounds(1, steps=0, send_share=1.0, lost=0) == []
    job.rounds(1, steps=0, send_share=1.0, lost=1)
    (found,) = job.rounds(1, steps=0, send_share=1.0, lost=0)
    assert found.verdict.ranks == (1,)


@pytest.mark.parametrize(
    ("link", "steps", "parts"),
    [
        (LinkState.GOOD, 2, LOSING),  # an upload to a store elsewhere
        (LinkState.UNKNOWN, 2, LOSING),
        (LinkState.LOSSY, 90, LOSING),  # it copes
        (LinkState.LOSSY, 2, {"send_share": 0.97, "lost": 0}),
        (LinkState.LOSSY, 2, {"send_share": 0.1, "lost": 9}),
        (LinkState.LOSSY, 2, {"send_share": None, "lost": None}),
        (LinkState.LOSSY, 2, {"send_share": float("nan"), "lost": 4}),
        (LinkState.LOSSY, 2, {"send_share": 1e308, "lost": 4}),
    ],
)
def test_one_witness_names_nobody(link: LinkState, steps: int, parts: dict[str, object]) -> None:
    job = Job()
    job.rounds(10, steps=100)
    job.see(link)
    assert job.rounds(8, steps=steps, **parts) == []


def test_steps_of_a_minute_tell_nothing() -> None:
    job = Job()
    for _ in range(5):
        job.rounds(5, steps=0)
        job.rounds(1, steps=1)
    job.see(LinkState.LOSSY)
    assert job.rounds(8, steps=0, **LOSING) == []


def test_ends_that_both_send_again_are_not_told_apart() -> None:
    job = Job()
    job.rounds(10, steps=100)
    job.see(LinkState.LOSSY)
    job.number += 1
    found = []
    for number in range(job.number, job.number + 6):
        for rank in range(2):
            each = RankRound(rank=rank, num_steps=1, window_s=ROUND_S, send_share=0.9, lost=4 + rank)
            at = number * ROUND_S
            event = RoundReported(at=at, node=f"n{rank}", generation=0, round=number, ranks=(each,))
            found += job.watch.take(event, STATE)
    assert found == []


def test_a_rank_that_is_explained_is_not_named_again() -> None:
    job = Job()
    job.rounds(10, steps=100)
    job.see(LinkState.LOSSY)
    assert job.slowness.note_explained(1, "ES-S11", 1.0)
    assert job.rounds(8, steps=2, **LOSING) == []


def test_while_a_fault_is_handled_and_in_another_generation_nothing_is_said() -> None:
    job = Job()
    job.rounds(10, steps=100)
    job.see(LinkState.LOSSY)
    each = RankRound(rank=1, num_steps=0, window_s=ROUND_S, **LOSING)  # type: ignore[arg-type]
    for number in range(11, 20):
        event = RoundReported(at=number * ROUND_S, node="n1", generation=1, round=number, ranks=(each,))
        assert job.watch.take(event, msgspec.structs.replace(STATE, generation=1)) == ()
