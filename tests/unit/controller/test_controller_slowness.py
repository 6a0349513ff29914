"""The slowness watch: rounds that come in pieces, what is told and how often, and the job against its own past."""

import random
import re

import msgspec
import pytest

from everstep.analyzer.exits import FaultFacts
from everstep.analyzer.slowness.slow import SlowVerdict
from everstep.controller.detectors.slow.clocks import WINDOW_S, Clocks
from everstep.controller.detectors.slow.pace import Pace, _Value
from everstep.controller.detectors.slow.slowness import FINE_S, SlownessDetector
from everstep.controller.detectors.together import Detectors
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Incident, Member, Role, State, Worker
from everstep.core.state.workers import Tally
from everstep.model.facts import RankRound, Signals
from everstep.model.observations import RoundReported, SignalsReported
from everstep.model.verdict import Confidence

ROUND_S = 10.0
STEP_S = 0.1
STEPS = 60


def state_of(hosts=("h0", "h0"), **changes) -> State:
    nodes = [f"n{i}" for i in range(len(hosts))]
    workers = {rank: Worker(rank=rank, node=nodes[rank // 2]) for rank in range(2 * len(nodes))}
    state = State(
        phase=Phase.RUNNING,
        generation=0,
        slots=tuple(nodes),
        members={
            node: Member(node=node, host=host, pid=1, role=Role.ACTIVE, slot=i)
            for i, (node, host) in enumerate(zip(nodes, hosts, strict=True))
        },
        workers=workers,
        tally=Tally.of(workers.values()),
    )
    return msgspec.structs.replace(state, **changes)


class Job:
    """Four ranks on two nodes, one all_reduce per step, each with its own compute time; a report per node and round."""

    def __init__(self, state: State | None = None, **of_rank) -> None:
        self.state = state or state_of()
        self.watch = SlownessDetector(Policy())
        self.compute_s = dict.fromkeys(range(4), STEP_S)
        self.of_rank = of_rank  # name of a field -> value per rank
        self.dice = random.Random(0)
        self.number = 0
        self.seq = 0
        self.left_out: set[int] = set()
        self.ahead_s = dict.fromkeys(range(4), 0.0)

    def rounds(self, num: int) -> list:
        found = []
        for _ in range(num):
            found += self.round()
        return found

    def round(self) -> list:
        self.number += 1
        now = self.number * ROUND_S - STEPS * STEP_S
        arrivals = {rank: [] for rank in self.compute_s}
        for _ in range(STEPS):
            self.seq += 1
            came = {rank: now + s * self.dice.lognormvariate(0, 0.02) for rank, s in self.compute_s.items()}
            now = max(came.values())
            for rank, at in came.items():
                arrivals[rank].append((0, self.seq, at + self.ahead_s[rank]))
        found = []
        for node in self.state.active_nodes:
            ranks = tuple(
                RankRound(
                    rank=rank,
                    num_steps=STEPS,
                    window_s=ROUND_S,
                    num_entered=STEPS,
                    kinds=(("0", "all_reduce [64]"),),
                    arrivals=tuple(listed),
                    **{name: value(rank) for name, value in self.of_rank.items()},
                )
                for rank, listed in arrivals.items()
                if self.state.workers[rank].node == node and rank not in self.left_out
            )
            if ranks:
                found += self.watch.take(self.event(node, ranks), self.state)
        return found

    def event(self, node, ranks) -> RoundReported:
        at = self.number * ROUND_S
        return RoundReported(at=at, node=node, generation=self.state.generation, round=self.number, ranks=ranks)


def test_a_rank_that_becomes_slow_is_named_within_a_minute_and_once():
    job = Job()
    assert job.rounds(5) == []
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(5)
    assert (found.verdict.code, found.verdict.ranks, found.refusal) == ("ES-S01", (2,), None)
    assert found.verdict.blame == "machine"
    assert "30% longer" in found.verdict.sentence or "29% longer" in found.verdict.sentence, found.verdict.sentence
    says = found.verdict.evidence[0].says
    assert re.search(
        r"rank 2: computes 12\d ms per step, the others 10\d ms; it waits 0\.\d+ ms .* they wait 2\d", says
    )
    assert job.rounds(20) == [], "told once"


def test_it_is_another_fault_when_it_was_fine_for_a_minute():
    job = Job()
    job.rounds(3)
    job.compute_s[1] = 1.4 * STEP_S
    assert len(job.rounds(6)) == 1
    job.compute_s[1] = STEP_S
    assert job.rounds(int(FINE_S / ROUND_S) + 6) == []
    job.compute_s[1] = 1.4 * STEP_S
    assert len(job.rounds(6)) == 1


def test_a_rank_that_stays_slow_is_not_another_fault_when_its_group_is_fine_again(monkeypatch):
    """Accused with its group, slow alone since: a minute later one good round was enough to accuse it again."""
    job, now = Job(), []
    both = SlowVerdict(code="ES-S02", sentence="both", confidence=Confidence.HIGH, ranks=(2, 3))
    alone = SlowVerdict(code="ES-S01", sentence="alone", confidence=Confidence.HIGH, ranks=(3,))
    fine = SlowVerdict(code="ES-S00", sentence="fine", confidence=Confidence.HIGH)
    monkeypatch.setattr("everstep.controller.detectors.slow.slowness.judge", lambda *_, **__: now[0])
    found = []
    for verdict, rounds in ((both, 2), (alone, 2 + int(FINE_S / ROUND_S)), (fine, 1), (alone, 2)):
        now[:] = [verdict]
        found += [each.verdict.ranks for each in job.rounds(rounds)]
    assert found == [(2, 3)]


def test_another_generation_begins_from_nothing_but_knows_how_ranks_began():
    job = Job()
    job.rounds(5)
    job.compute_s[3] = 1.3 * STEP_S
    job.state = msgspec.structs.replace(job.state, generation=1)
    assert job.rounds(4) == [], "four rounds of this generation"
    (found,) = job.rounds(1)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S01", (3,)), "not excused as slow from its beginning"


def test_slow_from_the_beginning_is_refused_with_its_doubt_once():
    job = Job()
    job.compute_s[0] = 1.3 * STEP_S
    (found,) = job.rounds(20)
    assert found.verdict.code == "ES-S08"
    assert "or the machine was slow before" in found.refusal.why


def test_a_machine_that_becomes_slow_early_is_not_taken_for_how_the_job_is_made():
    job = Job()
    job.rounds(1)
    job.compute_s[0] = 1.3 * STEP_S
    (found,) = job.rounds(8)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S01", (0,))


def test_a_lead_from_the_beginning_that_moves_a_little_has_only_moved():
    job = Job()
    job.compute_s[0] = 1.18 * STEP_S
    job.rounds(1)
    job.compute_s[0] = 1.25 * STEP_S
    (found,) = job.rounds(10)
    assert found.verdict.code == "ES-S08"
    job.compute_s[0] = 1.6 * STEP_S
    (found,) = job.rounds(6)
    assert found.verdict.code == "ES-S01"


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("work", lambda rank: 1300.0 if rank == 2 else 1000.0, "ES-S04"),
        ("gc_s", lambda rank: STEPS * 0.03 if rank == 2 else 0.0, "ES-S06"),
        ("data_s", lambda rank: STEPS * 0.03 if rank == 2 else 0.0, "ES-S07"),
    ],
)
def test_what_is_no_machines_fault_is_refused_once(field, value, code):
    job = Job(**{field: value})
    job.rounds(3)
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(15)
    assert (found.verdict.code, found.refusal is not None) == (code, True)


def test_who_waited_for_a_processor_beside_its_neighbours_had_bad_luck():
    job = Job(delay_s=lambda rank: STEPS * 0.03 if rank == 2 else STEPS * 0.001)
    job.rounds(3)
    job.compute_s[2] = 1.3 * STEP_S
    assert job.rounds(15) == []


@pytest.mark.parametrize("sender", [2, 3])
@pytest.mark.parametrize("slowed", [{3: 1.6}, {2: 1.4, 3: 1.6}, {0: 1.4, 1: 1.4, 2: 1.4, 3: 1.9}])
def test_who_receives_over_a_slow_link_is_not_taken_for_a_slow_machine(sender, slowed):
    job = Job(send_s=lambda rank: STEPS * 0.004)
    job.rounds(6)
    job.of_rank["send_s"] = lambda rank: STEPS * (0.09 if rank == sender else 0.004)
    job.compute_s |= {rank: times * STEP_S for rank, times in slowed.items()}
    (found,) = job.rounds(15)
    assert (found.verdict.code, found.verdict.ranks, found.verdict.blame) == ("ES-S11", (sender,), "network")


def test_who_receives_over_a_slow_link_is_not_accused_where_steps_were_as_long_before():
    """A real run: others' work made the steps before as long as the link did then, and the receiver was called slow."""
    job = Job(send_s=lambda rank: STEPS * 0.004)
    job.compute_s = dict.fromkeys(range(4), 1.3 * STEP_S)
    job.rounds(6)
    job.of_rank["send_s"] = lambda rank: STEPS * (0.06 if rank == 2 else 0.004)
    job.compute_s = {**dict.fromkeys(range(4), 1.1 * STEP_S), 3: 1.35 * STEP_S}
    (found,) = job.rounds(10)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S11", (2,))


def test_what_the_kernel_saw_stays_evidence_where_its_answer_is_late():
    """The round in which a rank is named may be one without an answer of the observer."""
    late, line = False, "it slept 1.9 s for a file lock, ended by holder (pid 4711)"
    job = Job(
        kernel=lambda rank: (line,) if rank == 2 and not late else (),
        takers=lambda _: (),
        held=lambda _: None if late else {},
    )
    job.rounds(6)
    job.compute_s[2] = 1.4 * STEP_S
    job.rounds(3)
    late = True
    (found,) = job.rounds(3)
    assert line in str(found.verdict.evidence)
    late = False
    job.of_rank["kernel"] = lambda _: ()
    job.round()
    assert not job.watch._ballot.kernel[2], "somebody looked, and saw nothing"


def test_another_cause_of_the_same_rank_is_told_when_it_has_lasted():
    """A quota, and then a lock: told by rank alone, the second was never told."""
    job = Job(throttled_s=lambda _: 0.0, held=lambda _: {}, cpu_s=lambda _: STEPS * 0.06, delay_s=lambda _: 0.0)
    job.rounds(8)
    job.of_rank["throttled_s"] = lambda rank: STEPS * (0.03 if rank == 2 else 0.0)
    assert [found.verdict.code for found in job.rounds(8)] == ["ES-S09"]
    job.of_rank["held"] = lambda rank: {"futex": 0.3} if rank == 2 else {}
    assert job.rounds(5) == [], "not before it has lasted"
    assert [(found.verdict.code, found.verdict.ranks) for found in job.rounds(20)] == [("ES-S10", (2,))]
    job.compute_s[2] = 1.6 * STEP_S
    later = job.rounds(10)
    assert all(found.refusal is not None for found in later), "no machine is accused while that lasts"
    assert not {found.verdict.code for found in later} & {"ES-S09"}, "told"


def test_a_link_that_is_somewhat_slower_excuses_no_slow_machine():
    job = Job(send_s=lambda rank: STEPS * 0.004)
    job.rounds(6)
    job.of_rank["send_s"] = lambda rank: STEPS * (0.024 if rank == 2 else 0.004)
    job.compute_s[3] = 1.6 * STEP_S
    (found,) = job.rounds(6)
    assert (found.verdict.code, found.verdict.ranks) == ("ES-S01", (3,))


def test_a_machine_that_is_slow_when_the_link_is_well_again_is_named():
    job = Job(send_s=lambda rank: STEPS * 0.004)
    job.rounds(6)
    job.of_rank["send_s"] = lambda rank: STEPS * (0.09 if rank == 2 else 0.004)
    job.compute_s[3] = 1.6 * STEP_S
    assert [found.verdict.code for found in job.rounds(6)] == ["ES-S11"]
    job.of_rank["send_s"] = lambda rank: STEPS * 0.004
    assert [found.verdict.code for found in job.rounds(6)] == ["ES-S01"]


def test_a_machine_that_is_slow_when_its_cpu_is_free_again_is_named():
    """The rank was told to be starved, and was never accused for as long as it stayed slow."""
    delay = dict.fromkeys(range(4), 0.001)
    job = Job(delay_s=lambda rank: STEPS * delay[rank])
    job.rounds(6)
    delay[2], job.compute_s[2] = 0.03, 1.3 * STEP_S
    assert [(found.verdict.code, found.verdict.ranks) for found in job.rounds(6)] == [("ES-S03", (2,))]
    assert job.rounds(20) == [], "it is starved still, and no slow machine"
    delay[2], job.compute_s[2] = 0.001, STEP_S
    assert job.rounds(2) == []
    job.compute_s[2] = 1.6 * STEP_S
    assert job.rounds(3) == [], "it was starved within the last minute"
    assert [(found.verdict.code, found.verdict.ranks) for found in job.rounds(9)] == [("ES-S01", (2,))]


def test_how_a_rank_began_is_compared_with_how_the_others_were_then():
    """A job starts slower than it goes on. Whose machine was replaced meanwhile began faster, and the others seemed to
    have been slow from the beginning."""
    job = Job(state_of(("h0", "h1")))
    job.compute_s = dict.fromkeys(range(4), 1.6 * STEP_S)
    job.rounds(2)
    job.compute_s = dict.fromkeys(range(4), STEP_S)
    job.rounds(4)
    moved = state_of(("h0", "h1", "h2"))
    workers = {rank: msgspec.structs.replace(w, node="n2") if rank > 1 else w for rank, w in job.state.workers.items()}
    job.state = msgspec.structs.replace(moved, generation=1, slots=("n0", "n2"), workers=workers, tally=job.state.tally)
    job.rounds(6)
    job.compute_s[0] = 1.5 * STEP_S
    assert [(found.verdict.code, found.verdict.ranks) for found in job.rounds(8)] == [("ES-S01", (0,))]


def test_where_everybody_waits_for_a_processor_small_differences_mean_nothing():
    job = Job(delay_s=lambda rank: STEPS * 0.03)
    job.rounds(3)
    job.compute_s[2] = 1.25 * STEP_S
    assert job.rounds(10) == []
    job.compute_s[2] = 1.5 * STEP_S
    (found,) = job.rounds(6)
    assert found.verdict.ranks == (2,)


def test_a_machine_all_of_whose_ranks_wait_for_a_processor_is_slow():
    job = Job(state_of(("h0", "h1")), delay_s=lambda rank: STEPS * (0.03 if rank >= 2 else 0.001))
    job.rounds(3)
    job.compute_s |= {2: 1.3 * STEP_S, 3: 1.3 * STEP_S}
    (found,) = job.rounds(6)
    assert sorted(found.verdict.ranks) == [2, 3]


def test_uneven_work_is_said_once():
    job = Job()
    found = []
    for turn in range(20):
        job.compute_s = {rank: STEP_S * (1.3 if rank == turn % 4 else 1) for rank in range(4)}
        found += job.round()
    assert [event.verdict.code for event in found] == ["ES-S04"]
    assert found[0].refusal is not None


def test_a_missing_rank_makes_the_round_incomplete_and_the_rest_is_judged():
    job = Job()
    job.left_out = {0}
    job.rounds(3)
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(7)
    assert found.verdict.ranks == (2,)
    job = Job()
    job.left_out = {2}
    job.rounds(3)
    job.compute_s[2] = 1.3 * STEP_S
    assert job.rounds(7) == [], "the slow one is missing: everybody waits alike"


def test_nothing_is_told_while_a_fault_is_being_handled_and_all_of_it_afterwards():
    job = Job()
    job.rounds(3)
    job.compute_s[2] = 1.3 * STEP_S
    job.state = msgspec.structs.replace(job.state, phase=Phase.STOPPING)
    assert job.rounds(6) == []
    job.state = msgspec.structs.replace(job.state, phase=Phase.RUNNING)
    assert len(job.rounds(1)) == 1


def test_an_open_incident_comes_first():
    job = Job()
    job.compute_s[2] = 1.0
    incident = Incident(id="i1", opened_at=0.0, generation=0, facts=FaultFacts(at=0.0))
    job.state = msgspec.structs.replace(job.state, incident=incident)
    assert job.rounds(8) == []


def test_clocks_that_differ_blame_nobody_and_hide_nobody():
    job = Job(state_of(("h0", "h1")))
    job.ahead_s |= {2: 0.015, 3: 0.015}
    for node, ahead_s in (("n0", 0.0), ("n1", 0.015)):
        for i in range(100):
            job.watch._clocks.note(node, i + ahead_s, i + 0.001 + 0.01 * job.dice.random())
    assert job.rounds(8) == []
    job.compute_s[1] = 1.3 * STEP_S
    (found,) = job.rounds(6)
    assert found.verdict.ranks == (1,)


def test_clocks_forget_what_is_older_than_two_windows():
    clocks = Clocks()
    state = state_of(("h0", "h1"))
    for i in range(int(3 * WINDOW_S)):
        step = 0.5 if i > WINDOW_S else 0.0  # somebody sets the clock of n1
        clocks.note("n0", i, i + 0.001)
        clocks.note("n1", i + step, i + 0.001)
    ahead = clocks.ahead_s(state)
    assert ahead[2] - ahead[0] == pytest.approx(0.5, abs=0.001)
    assert clocks.ahead_s(state_of(("h", "h"))) == {}


def test_clocks_that_are_set_back_do_not_end_the_vote():
    job = Job()
    job.number = 1000
    job.rounds(3)
    job.number = 10
    job.compute_s[2] = 1.3 * STEP_S
    (found,) = job.rounds(6)
    assert found.verdict.ranks == (2,)


def test_switched_off_it_says_nothing():
    job = Job()
    job.watch = SlownessDetector(Policy(watch_slowness=False))
    job.compute_s[2] = 1.0
    assert job.rounds(8) == []


def test_the_watches_survive_garbage_in_a_round(caplog):
    watches = Detectors(Policy())
    broken = RankRound(rank=0, num_steps=9, window_s=1.0, num_entered=9, kinds=(), arrivals=((5, 1, 1.0),) * 100)
    for number in range(8):
        ranks = (broken, msgspec.structs.replace(broken, rank=1), msgspec.structs.replace(broken, rank=77))
        event = RoundReported(at=number, node="n0", generation=0, round=number, ranks=ranks)
        assert watches.take(event, state_of()) == []
    assert "failed" not in caplog.text


class Steps:
    """One rank's steps, seen twice a second."""

    def __init__(self) -> None:
        self.pace, self.state = Pace(), state_of()
        self.now, self.step, self.stepped_at = 0.0, 0, 0.0
        self.dice = random.Random(1)
        self.found = []

    def train(self, duration_s: float, step_s: float) -> None:
        end = self.now + duration_s
        while self.now < end:
            self.now += 0.5
            while self.stepped_at + step_s < self.now:
                self.stepped_at += step_s * self.dice.lognormvariate(0, 0.05)
                self.step += 1
            seen = Signals(rank=0, phase="train", last_step=self.step, last_step_at=self.stepped_at)
            event = SignalsReported(at=self.now, node="n0", generation=0, signals=(seen,))
            self.pace.take(event, self.state)
            verdict = self.pace.judge(self.now)
            if verdict is not None:
                self.pace.accept(verdict, self.now)
                self.found.append((self.now, verdict))

    def stall(self, duration_s: float) -> None:
        self.now += duration_s
        self.stepped_at = self.now


def test_a_job_that_became_slower_is_told_after_half_a_minute_and_once():
    steps = Steps()
    steps.train(90, 0.1)
    steps.train(200, 0.13)
    ((at, verdict),) = steps.found
    assert 120 <= at <= 150
    assert verdict.code == "ES-S03"
    assert verdict.since_step == pytest.approx(900, abs=60)
    steps.train(60, 0.2)
    assert len(steps.found) == 1, "too soon for another word"
    steps.train(200, 0.2)
    assert [round(verdict.since_step, -2) for _, verdict in steps.found] == [900, 2400], "another change"


def test_a_slower_time_that_was_there_before_is_no_news():
    steps = Steps()
    for _ in range(4):
        steps.train(70, 0.13)
        steps.train(70, 0.1)
    assert len(steps.found) <= 1


@pytest.mark.parametrize("stall_s", [2.0, 20.0, 60.0])
def test_single_evaluations_and_saves_are_no_change(stall_s):
    steps = Steps()
    for _ in range(6):
        steps.train(40, 0.1)
        steps.stall(stall_s)
    assert steps.found == []


def test_five_percent_are_not_worth_a_word():
    steps = Steps()
    steps.train(90, 0.1)
    steps.train(120, 0.105)
    assert steps.found == []


def test_another_generation_has_no_past():
    steps = Steps()
    steps.train(90, 0.1)
    steps.pace.begin()
    steps.train(120, 0.15)
    assert steps.found == []


def test_steps_that_are_counted_anew_have_no_past_either():
    steps = Steps()
    steps.train(90, 0.1)
    steps.step = 0
    steps.train(120, 0.15)
    assert steps.found == []
    steps.train(60, 0.1)
    steps.train(120, 0.2)
    assert len(steps.found) == 1


def test_a_change_that_begins_with_the_first_value_is_none():
    pace = Pace()
    pace._values.extend(_Value(at=float(i), step=500 + i if i < 60 else i, step_s=0.1 + (i >= 60)) for i in range(120))
    pace._values[0] = _Value(at=0.0, step=900, step_s=0.1)
    assert pace.judge(120.0) is None


def test_a_clock_that_is_set_back_does_not_silence_the_pace():
    steps = Steps()
    steps.train(90, 0.1)
    steps.train(200, 0.13)
    assert len(steps.found) == 1
    steps.now -= 250.0
    steps.stepped_at = steps.now
    steps.train(70, 0.13)
    steps.train(90, 0.2)
    assert len(steps.found) == 2, "minutes before the clock is where it was"


@pytest.mark.parametrize(("bad_at", "is_told"), [(3600.0, True), (9.0, False), (11.0, False)])
def test_somebody_who_was_slow_before_the_clock_was_set_back_explains_nothing(monkeypatch, bad_at, is_told):
    watch = SlownessDetector(Policy())
    event = SignalsReported(at=10.0, node="n0", generation=0, signals=())
    assert watch.take(event, state_of()) == ()
    slower = SlowVerdict(code="ES-S03", sentence="steps take longer.", confidence=Confidence.HIGH, since_step=1)
    monkeypatch.setattr(watch._pace, "judge", lambda now: slower)
    monkeypatch.setattr(watch._pace, "accept", lambda verdict, now: None)
    watch._bad_at = {1: bad_at}
    assert bool(watch.take(event, state_of())) == is_told


def test_who_does_not_read_what_a_rank_sends_is_said_with_whatever_is_found():
    job = Job()
    job.rounds(5)
    job.compute_s[2] = 1.3 * STEP_S
    job.of_rank["unread"] = lambda rank: "for 9 s of 10 s there was no room at 10.0.0.7 " * 9 if rank == 0 else ""
    (found,) = job.rounds(5)
    said = [each for each in found.verdict.evidence if each.source == "connections"]
    assert [each.rank for each in said] == [0]
    assert said[0].says.startswith("rank 0: for 9 s of 10 s there was no room at 10.0.0.7")
    assert len(said[0].says) < 200, "agents are not trusted"


def test_what_is_refused_says_who_does_not_read_too():
    """Nothing else shows it: a refusal opens no incident."""
    job = Job()
    job.compute_s[0] = 1.3 * STEP_S
    job.of_rank["unread"] = lambda rank: "for 9 s of 10 s there was no room at 10.0.0.7" if rank == 0 else ""
    (found,) = job.rounds(20)
    assert found.refusal is not None
    assert found.refusal.why.endswith("; rank 0: for 9 s of 10 s there was no room at 10.0.0.7")
