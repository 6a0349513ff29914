"""The controller's watch over numbers: what it reports, how often, and what it leaves alone."""

import math

import msgspec
import pytest
from one_node import running

from everstep.analyzer.exits import FaultFacts
from everstep.analyzer.numbers.series import NumberSeries, judge_numbers
from everstep.controller.detectors.numbers import FINE_S, NumberDetector
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Incident
from everstep.model.events import AnomalyFound
from everstep.model.facts import NumberPoint, RankNumbers
from everstep.model.observations import NumbersReported

NAN = math.nan
STATE = running(2)
INCIDENT = Incident(id="i1", generation=0, opened_at=1.0, facts=FaultFacts(at=1.0))


class Job:
    def __init__(self, **policy: bool) -> None:
        self.watch = NumberDetector(Policy(**policy))
        self.state = STATE
        self.at = 0.0
        self.step = 0
        self.found: list[AnomalyFound] = []

    def say(self, *losses: float, rank: int = 0, source: str = "step", name: str = "loss", generation: int = 0) -> None:
        for value in losses:
            point = NumberPoint(step=self.step, **{name: value})
            numbers = (RankNumbers(rank=rank, source=source, points=(point,)),)
            self.at += 1.0
            self.step += 1
            event = NumbersReported(at=self.at, node="n0", generation=generation, numbers=numbers)
            self.found += self.watch.take(event, self.state)

    def say_at_once(self, *losses: float) -> None:
        points = tuple(NumberPoint(step=self.step + ahead, loss=loss) for ahead, loss in enumerate(losses))
        self.at += 1.0
        self.step += len(losses)
        numbers = (RankNumbers(rank=0, source="step", points=points),)
        event = NumbersReported(at=self.at, node="n0", generation=0, numbers=numbers)
        self.found += self.watch.take(event, self.state)

    @property
    def codes(self) -> list[str]:
        return [found.verdict.code for found in self.found]


def test_a_nan_is_one_incident_however_long_it_lasts():
    job = Job()
    job.say(*[1.0] * 5, *[NAN] * 200)
    assert job.codes == ["ES-N01", "ES-N07"], "seen at once, and again when it stays"
    for found in job.found:
        assert "step 5" in found.verdict.sentence
        assert (found.verdict.ranks, found.verdict.blame) == ((), "unknown")


def test_a_nan_that_comes_in_one_report_is_the_lasting_one():
    job = Job()
    job.say(*[1.0] * 5)
    job.say_at_once(*[NAN] * 3)
    assert job.codes == ["ES-N07"]


def test_losses_that_recover_and_skipped_steps_do_not_last():
    job = Job()
    job.say(*[1.0, NAN, NAN, 1.0] * 5)
    assert job.codes == ["ES-N01"]


def test_undoing_can_be_switched_off():
    job = Job(undo_nan=False)
    job.say(*[1.0] * 5, *[NAN] * 20)
    assert job.codes == ["ES-N01"]


def test_the_same_again_after_it_was_fine_is_another():
    job = Job()
    job.say(*[1.0] * 5, NAN, *[1.0] * int(FINE_S), NAN)
    assert job.codes == ["ES-N01", "ES-N01"]
    job = Job()
    job.say(*[1.0] * 5, NAN, *[1.0] * int(FINE_S / 2), NAN)
    assert job.codes == ["ES-N01"]
    job.say(1.0, NAN, generation=1)
    assert job.codes == ["ES-N01", "ES-N01"]


def test_what_stays_wrong_while_the_brain_is_busy_is_found_afterwards():
    job = Job()
    job.state = msgspec.structs.replace(STATE, phase=Phase.STOPPING)
    job.say(*[1.0] * 9, NAN, NAN)
    job.state = msgspec.structs.replace(STATE, incident=INCIDENT)
    job.say(NAN)
    assert job.codes == []
    job.state = STATE
    job.say(NAN)
    assert job.codes == ["ES-N07"]


def test_who_sees_it_is_evidence():
    job = Job()
    job.say(1.0, 1.1, rank=0)
    job.say(1.0, rank=1)
    job.say(NAN, rank=1)
    says = [evidence.says for evidence in job.found[0].verdict.evidence]
    assert any("not finite on rank 1; finite by then: rank 0" in text for text in says)
    assert any("loss 1.1" in text for text in says)


def test_a_jump_is_found_once_and_a_new_level_is_accepted():
    job = Job()
    job.say(*[2.0, 2.1, 1.9, 2.0] * 5, *[11.0] * 100)
    assert job.codes == ["ES-N02"]


@pytest.mark.parametrize(
    "losses",
    [
        [100 / (1 + i) for i in range(200)],  # falls fast
        [math.sin(i) * 3 for i in range(300)],  # around zero
        [0.01, 0.02, 0.5, 0.01, -0.3, 0.03] * 40,  # reinforcement learning
        [1.0, 3.0, 0.5, 4.0] * 50,
        [0.0] * 100,
        [0.0] * 50 + [0.1] * 50,  # a level of zero is none
    ],
)
def test_usual_losses_are_no_jump(losses):
    job = Job()
    job.say(*losses)
    assert job.codes == []


def test_one_gradient_spike_is_usual_and_two_are_not():
    usual = [1.0, 1.2, 0.9, 1.1] * 5
    job = Job()
    for _ in range(5):
        job.say(*usual, 9.0, name="grad_norm")
    assert job.codes == []
    job.say(*usual * 4, 30.0, 1.0, 31.0, name="grad_norm")
    assert job.codes == ["ES-N03"]


def test_infinite_norms_of_loss_scaling_are_usual():
    job = Job()
    job.say(1.0, math.inf, math.inf, 1.0, math.inf, 1.0, name="grad_norm")
    assert job.codes == []
    job.say(*[math.inf] * 5, name="grad_norm")
    assert job.codes == ["ES-N01"]


def test_switched_off_it_sees_nothing():
    job = Job(watch_numbers=False)
    job.say(NAN)
    assert job.codes == []


def test_a_series_point_by_point_agrees_with_the_whole_on_plain_faults():
    for bad in (NAN, 50.0):
        points = [NumberPoint(step=i, loss=3.0 - 0.01 * i) for i in range(40)]
        points.append(NumberPoint(step=40, loss=bad))
        series = NumberSeries()
        found = [finding for point in points if (finding := series.take(point, 0.0))]
        whole = judge_numbers(points, 0.0)
        assert whole is not None
        assert [(f.code, f.sentence) for f in found] == [(whole.code, whole.sentence)]


def test_numbers_are_lost_only_for_a_while():
    job = Job()
    job.say(1.0, 1.0)
    assert not job.watch.is_lost(job.at)
    job.state = msgspec.structs.replace(STATE, incident=INCIDENT)
    job.say(NAN)
    assert job.watch.is_lost(job.at), "whether it was told or not"
    assert job.watch.is_lost(job.at - 1.0), "of a node whose clock is behind"
    job.say(*[1.0] * int(FINE_S))
    assert not job.watch.is_lost(job.at)
    job.say(NAN)
    job.say(1.0, generation=1)
    assert not job.watch.is_lost(job.at)
