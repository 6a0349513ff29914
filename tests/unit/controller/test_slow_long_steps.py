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
from everstep.model.verdict import Verdict

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


def counted(watch: SlownessDetector, first: int, num: int, *, rounds: int = 1, **of_rank_1: object) -> list[Verdict]:
    """Rounds of a job that enters no collectives that are seen: no vote at all. `rounds`: that a step takes."""
    found = []
    numbers = {"held": {"timer": 0.0}, "cpu_s": 2.0, "delay_s": 1.0, "throttled_s": 0.0, "takers": ()}
    for number in range(first, first + num):
        ranks = tuple(
            RankRound(
                rank=rank,
                num_steps=int(number % rounds == 0),
                window_s=ROUND_S,
                **numbers | (of_rank_1 if rank else {}),  # type: ignore[arg-type]
            )
            for rank in range(2)
        )
        event = RoundReported(at=number * ROUND_S, node="n0", generation=0, round=number, ranks=ranks)
        found += [each.verdict for each in watch.take(event, STATE)]
    return found


def test_a_second_cause_that_comes_and_goes_does_not_add_up() -> None:
    """Of a rank that is known to be slow, another cause is told when it has lasted for five rounds in a row."""
    watch, files = SlownessDetector(Policy()), {"timer": 0.0, "write": 0.2}
    counted(watch, 1, 30)
    assert [each.code for each in counted(watch, 31, 8, throttled_s=3.0)] == ["ES-S09"]
    for first in range(39, 87, 12):
        assert counted(watch, first, 5, throttled_s=3.0, held=files) == []
        assert counted(watch, first + 5, 7, throttled_s=3.0) == []
    assert [each.code for each in counted(watch, 87, 14, throttled_s=3.0, held=files)] == ["ES-S07"]


def test_what_was_fine_for_a_minute_is_told_again_also_without_a_vote() -> None:
    """Where no vote is ever held, a cause was told once in the life of the job."""
    watch = SlownessDetector(Policy())
    counted(watch, 1, 30)
    for first in (31, 81):
        assert [each.code for each in counted(watch, first, 20, throttled_s=3.0)] == ["ES-S09"]
        assert counted(watch, first + 20, 30) == []


def test_a_step_of_three_rounds_has_what_was_counted_in_all_of_them() -> None:
    """It said 8 s of 24 s: what a round without a step had counted was of no step."""
    watch = SlownessDetector(Policy())
    assert counted(watch, 1, 39, rounds=3) == []
    (verdict,) = counted(watch, 40, 21, rounds=3, held={"timer": 0.8})
    assert "for 24.00 s per step" in verdict.evidence[0].says


def test_nothing_is_told_while_a_fault_is_handled() -> None:
    watch = SlownessDetector(Policy())
    played(watch, 1, 30)
    global STATE
    before, STATE = STATE, msgspec.structs.replace(STATE, phase=Phase.STOPPING)
    try:
        assert played(watch, 31, 8, held={"timer": 0.25}) == []
    finally:
        STATE = before
