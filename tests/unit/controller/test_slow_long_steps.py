"""Steps so long that a round has two of them: the vote waits for more, what the kernel counts does not."""

import random

import msgspec
import pytest

from everstep.controller.detectors.slow.slowness import SlownessDetector
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Member, Role, State, Worker
from everstep.core.state.workers import Tally
from everstep.model.events import AnomalyFound
from everstep.model.facts import RankRound, Taken
from everstep.model.observations import RoundReported

ROUND_S, STEPS = 10.0, 2
WORKERS = {rank: Worker(rank=rank, node="n0") for rank in range(2)}
STATE = State(
    phase=Phase.RUNNING,
    generation=0,
    slots=("n0",),
    members={"n0": Member(node="n0", host="h", pid=1, role=Role.ACTIVE, slot=0)},
    workers=WORKERS,
    tally=Tally.of(WORKERS.values()),
)
HEALTHY = {"cpu_s": 2.0, "delay_s": 6.0, "throttled_s": 0.0, "io_s": 0.0}


def played(watch: SlownessDetector, first: int, num: int, **of_rank_1: object) -> list[tuple[int, AnomalyFound]]:
    """Rounds of two ranks on a machine where both wait for CPUs for most of the time."""
    dice, found = random.Random(first), []
    for number in range(first, first + num):
        ranks = []
        for rank in range(2):
            parts = HEALTHY | {"held": {"timer": 0.06 * dice.uniform(0.9, 1.1)}, "takers": ()}
            parts |= of_rank_1 if rank == 1 else {}
            at = [number * ROUND_S + step * ROUND_S / STEPS + dice.uniform(0, 2) for step in range(STEPS)]
            arrivals = tuple((0, STEPS * number + step, at[step]) for step in range(STEPS))
            ranks.append(
                RankRound(
                    rank=rank,
                    num_steps=STEPS,
                    window_s=ROUND_S,
                    num_entered=STEPS,
                    kinds=(("0", "all_reduce [64]"),),
                    arrivals=arrivals,
                    **parts,  # type: ignore[arg-type]
                )
            )
        event = RoundReported(at=number * ROUND_S, node="n0", generation=0, round=number, ranks=tuple(ranks))
        found += [(number - first + 1, each) for each in watch.take(event, STATE)]
    return found


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"held": {"timer": 0.25}}, "ES-S10"),
        ({"held": {"timer": 0.06, "write": 0.2}}, "ES-S07"),
        ({"throttled_s": 3.0}, "ES-S09"),
        ({"takers": (Taken(71, "burn", 0.2),)}, "ES-S03"),
    ],
)
def test_what_the_kernel_counts_names_the_rank_within_five_rounds(parts: dict[str, object], code: str) -> None:
    watch = SlownessDetector(Policy())
    assert [each.verdict.ranks for _, each in played(watch, 1, 30) if each.verdict.ranks] == []
    told = [(after, each.verdict) for after, each in played(watch, 31, 12, **parts) if each.verdict.ranks]
    assert [(verdict.code, verdict.ranks) for _, verdict in told] == [(code, (1,))]
    assert told[0][0] <= 5


def test_a_part_that_comes_and_goes_names_nobody() -> None:
    watch = SlownessDetector(Policy())
    played(watch, 1, 30)
    for first in range(31, 61, 6):
        assert [each for _, each in played(watch, first, 3, held={"timer": 0.25}) if each.verdict.ranks] == []
        assert [each for _, each in played(watch, first + 3, 3) if each.verdict.ranks] == []


def test_nothing_is_told_while_a_fault_is_handled() -> None:
    watch = SlownessDetector(Policy())
    played(watch, 1, 30)
    global STATE
    before, STATE = STATE, msgspec.structs.replace(STATE, phase=Phase.STOPPING)
    try:
        assert played(watch, 31, 8, held={"timer": 0.25}) == []
    finally:
        STATE = before
