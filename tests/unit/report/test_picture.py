"""The picture of a run: the same facts as `everstep status --json`, as rows that can be told again without harm."""

from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import goodput_of
from everstep.journal import kept
from everstep.journal.fold import fold
from everstep.journal.history import Sample, history_of, sampled
from everstep.journal.pace import MAX_INTERVALS, Pace
from everstep.journal.rank_nodes import RankNodes
from everstep.journal.reader import read_journal
from everstep.journal.view import GenerationView, RunView
from everstep.model.actions import CommitCheckpoint
from everstep.model.events import CheckpointCommitted, NodeJoined, NodeLost
from everstep.model.facts import Checkpoint, Exit, LossPoint, RankAccount
from everstep.model.record import Record
from everstep.report.asjson import status_json
from everstep.report.now.narrate import Narrator
from everstep.report.parts.asked import Asked
from everstep.report.picture.costs import GROUPS, Costs, goodput_row
from everstep.report.picture.fleet import fleet_rows
from everstep.report.picture.heads import drift_text, head_of
from everstep.report.picture.incidents import incident_page
from everstep.report.picture.lanes import generation_row
from everstep.report.picture.nodes import node_page
from everstep.report.picture.overview import Overview
from everstep.report.picture.paces import PaceRows
from everstep.report.picture.schema import Lane

JOURNAL = Path(__file__).parents[2] / "golden/journal.jsonl"
READING = read_journal(JOURNAL)
MOMENTS = range(1, len(READING.entries) + 1)


def run_at(seq: int) -> tuple[RunView, Asked]:
    view = fold(READING.header, READING.entries[:seq])
    assert view.last_at is not None
    return view, Asked(at=view.last_at + 0.25, controller_pid=7)


@pytest.mark.parametrize("seq", MOMENTS)
def test_the_head_says_at_each_moment_what_status_says(seq: int) -> None:
    view, asked = run_at(seq)
    head = msgspec.to_builtins(head_of(view, asked))
    status = status_json(view, goodput_of(history_of(view, asked.at)), asked)
    same = set(head) & set(status) - {"incident"}
    assert len(same) > 15
    assert {key: head[key] for key in same} == {key: status[key] for key in same} | {
        "mode": head["mode"],
        "why": head["why"],
        "notes": tuple(status["notes"]) if isinstance(head["notes"], tuple) else status["notes"],
    }
    assert head["incident"] == (status["incident"] or {"id": None})["id"]
    assert head["now"]


@pytest.mark.parametrize("seq", MOMENTS)
def test_segments_cover_the_run_once_and_one_at_most_lasts(seq: int) -> None:
    view, asked = run_at(seq)
    segments = [s for key, row in Overview().rows(view, asked).items() if "generation" in key for s in row["segments"]]
    segments.sort(key=lambda s: s[0])
    for one, following in pairwise(segments):
        assert one[1] is not None, f"{one} lasts, and {following} follows"
        assert one[1] == pytest.approx(following[0], abs=0.02), f"{one} and {following} do not meet"
    assert segments[0][0] == pytest.approx(view.started_at, abs=0.02)


def test_one_who_looks_again_and_again_sees_what_a_new_one_sees() -> None:
    again = Overview()
    for seq in MOMENTS:
        view, asked = run_at(seq)
        assert again.rows(view, asked) == Overview().rows(view, asked)


def test_shares_have_every_bucket_once_and_sum_to_one() -> None:
    assert sorted(bucket for group in GROUPS.values() for bucket in group) == sorted(Bucket)
    view, asked = run_at(len(READING.entries))
    shares = Overview().rows(view, asked)["goodput"]["shares"]
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_sample_of_all_ranks_is_the_whole() -> None:
    for seq in MOMENTS:
        view, asked = run_at(seq)
        if view.spec is None:
            continue
        sample = Sample(ranks=tuple(range(view.spec.world_size)))
        for _ in range(2):  # with what was kept as well
            found = goodput_of(sampled(view, sample, asked.at))
            assert found == goodput_of(history_of(view, asked.at))


def test_a_large_job_is_sampled_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    view, asked = run_at(len(READING.entries))
    assert Costs().row(view, None)["sampled_ranks"] is None
    monkeypatch.setattr("everstep.report.picture.costs.EXACT", 1)
    monkeypatch.setattr("everstep.report.picture.costs.SAMPLED", 1)
    assert Costs().row(view, None)["sampled_ranks"] == 1
    assert goodput_row(view, Costs().goodput(view, None))["shares"]["productive"] is not None
    assert asked


def test_every_incident_has_a_page_with_its_decision_and_what_to_do() -> None:
    view, _ = run_at(len(READING.entries))
    for incident in view.incidents.values():
        page = incident_page(view, incident, goodput_of(history_of(view)))
        assert page.chosen
        assert page.timeline
        assert page.commands
        assert [moment.at for moment in page.timeline] == sorted(moment.at for moment in page.timeline)
        assert all(other.id != incident.id for other in page.similar)


def test_the_page_of_a_machine_names_it_as_its_memory_does_and_says_who_takes_it_away() -> None:
    view, _ = run_at(10**6)
    name, known = next(iter(view.nodes.items()))
    known.lost, known.drained = None, ""
    page = node_page(view, name)
    assert page is not None
    assert page.commands[0] == f"everstep node show {known.host}"
    assert page.commands[-1] == f"everstep drain {name} --why TEXT"
    known.drained = "anna drains this node: a fan"
    page = node_page(view, name)
    assert page is not None
    assert (page.drained, page.commands[-1]) == (known.drained, f"everstep drain {name} --undo")


def test_machines_are_shown_by_rack_and_unknown_racks_in_chunks() -> None:
    view, _ = run_at(4)
    at = view.last_at or 0.0
    record = Record(seq=99, at=at, gen=0, event=NodeJoined(at=at, node="x", host="h", pid=1))
    joined = [
        msgspec.structs.replace(
            record,
            event=NodeJoined(at=at, node=f"gpu-{k:03}", host="h", pid=k, rack="A" if k < 100 else ""),
        )
        for k in range(200)
    ]
    view = fold(READING.header, joined)
    rows = fleet_rows(view)
    assert len(rows["A"].nodes) == len(rows["A"].health) == 100
    assert [len(rows[key].nodes) for key in ("#0", "#1")] == [64, 36]


def test_a_pace_of_a_month_stays_small_and_keeps_slow_and_fast_apart() -> None:
    pace = Pace()
    for k in range(100_000):
        pace.note(1000.0 + 26.0 * k, 10.0 if k % 20 == 0 else 2.0)
    intervals = pace.intervals()
    assert len(intervals) <= MAX_INTERVALS
    assert all(1.95 < i.median_s < 2.05 and 9.7 < i.p99_s < 10.3 for i in intervals)
    assert sum(i.num for i in intervals) == 100_000


def test_step_times_that_come_late_or_make_the_run_outgrow_its_intervals_are_in_the_rows() -> None:
    pace, kept = Pace(), PaceRows()
    at = [1000.0, 1010.0, 1004.0, 1500.0, 1001.0, 3000.0, 900_000.0, 5000.0, 900_001.0]
    for k, when in enumerate(at):
        before = kept.rows(pace)
        pace.note(when, 1.0 + k)
        after = kept.rows(pace)
        assert after == PaceRows().rows(pace)
        assert after != before
    again = kept.rows(pace)
    assert all(again[key] is row for key, row in after.items())


@pytest.mark.parametrize("step_s", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_no_step_time_is_no_point(step_s: float) -> None:
    pace = Pace()
    pace.note(1000.0, step_s)
    pace.note(float("nan"), 1.0)
    assert pace.intervals() == []


def test_a_month_of_checkpoints_is_remembered_thinly() -> None:
    found = kept.Kept()
    for step in range(3000):
        checkpoint = Checkpoint(step=step, path="/c", world_size=1, at=float(step), is_trusted=True)
        event = CheckpointCommitted(at=float(step), node="n0", step=step, checkpoint=checkpoint, dropped=(step - 3,))
        why = CommitCheckpoint(why="", node="n0", step=step, world_size=1, root="/c", keep=3, is_trusted=True)
        kept.note(found, Record(seq=step + 1, at=float(step), gen=0, event=event, actions=(why,)))
    assert len(found.commits) <= kept.MAX_COMMITS
    assert found.commits[-1].step == 2999
    assert [c.at for c in found.commits] == sorted(c.at for c in found.commits)


def lost(node: str, at: float, seq: int, reason: str = "gone") -> Record:
    return Record(seq=seq, at=at, gen=0, event=NodeLost(at=at, node=node, reason=reason))


def test_a_loss_that_is_told_again_is_one_loss() -> None:
    narrator = Narrator(READING.header)
    joined = Record(seq=1, at=1.0, gen=0, event=NodeJoined(at=1.0, node="n1", host="h", pid=1))
    told = [narrator.tell(each) for each in (joined, lost("n1", 5.0, 2), lost("n1", 9.0, 3, "the engine says so too"))]
    assert [len(lines) for lines in told] == [0, 1, 0]
    view = narrator.view
    assert [(loss.node, loss.at) for loss in view.losses] == [("n1", 5.0)]
    assert view.nodes["n1"].lost is not None
    assert view.nodes["n1"].lost.at == 5.0


def test_what_comes_after_the_last_ranks_end_is_idle() -> None:
    account = RankAccount(rank=0, spawned_at=0.0, loop_at=1.0, first_step=0, last_step=9, last_step_at=10.0)
    generation = GenerationView(number=0, begun_at=0.0, seq=1, resume_step=None, why="", node_of=RankNodes({0: "n0"}))
    generation.accounts = {0: account}
    view = RunView(run="r", everstep_version="", policy={}, started_at=0.0, generations=[generation], finished_at=60.0)
    assert [s.lane for s in generation_row(view, 0).segments] == [Lane.STARTING, Lane.PRODUCTIVE]
    generation.exits = {0: Exit(rank=0, at=12.0, code=0)}
    segments = [(s.begin, s.end, s.lane) for s in generation_row(view, 0).segments]
    assert segments == [(0.0, 1.0, Lane.STARTING), (1.0, 12.0, Lane.PRODUCTIVE), (12.0, 60.0, Lane.IDLE)]
    view.finished_at = None
    assert generation_row(view, 0).segments[-1].end is None, "it goes on"


@pytest.mark.parametrize(
    ("days", "now_s", "told"),
    [
        (0.5, 2.0, ""),
        (3.0, 2.0, "as a day ago (2.01s)"),
        (3.0, 2.2, "8% slower than a day ago (2.01s)"),
        (30.0, 1.6, "20% faster than a day ago (2.01s)"),
    ],
)
def test_it_says_whether_it_is_slower_than_a_day_ago(days: float, now_s: float, told: str) -> None:
    # Bins are 2 % wide: 2.0 is told as 2.01, and 10 % as 8.
    view, end = RunView(run="r1", everstep_version="", policy={}), 1000.0 + 86_400.0 * days
    at, last = 1000.0, max(3600.0, days * 86_400.0 / MAX_INTERVALS * 2)
    while at < end:
        view.pace.note(at, 2.0 if at < end - 2 * last else now_s)
        at += 30.0
    assert drift_text(view, end) == told


def test_losses_are_rows_and_what_was_trained_again_is_marked() -> None:
    header, entries = READING.header, list(READING.entries)
    view = fold(header, entries)
    points = [LossPoint(at=10.0 + step, step=step, loss=None if step == 3 else 1.0 / (step + 1)) for step in range(90)]
    view.loss.note(0, 2, points)
    view.loss.note(1, 2, [LossPoint(at=200.0, step=80, loss=0.01)])
    rows = Overview().rows(view, Asked(at=1000.0, controller_pid=7))
    told = [point for key in ("loss:0", "loss:1") for point in rows[key]["points"]]
    assert rows["loss:0"]["rank"] == 2
    assert len(told) == 91
    assert told[3] == [13.0, None, 3, 0, 0]
    resumed = view.generations[1].resume_step
    assert resumed is not None
    assert [point[2] for point in told if point[3]] == list(range(resumed + 1, 90))


def test_an_incident_says_what_the_loss_was_before_and_after() -> None:
    view = fold(READING.header, READING.entries)
    incident = next(each for each in view.incidents.values() if each.next_generation is not None and each.fault_at)
    assert not [moment for moment in incident_page(view, incident).timeline if moment.says.startswith("loss ")]
    fault_at, number, following = incident.fault_at, incident.generation, incident.next_generation
    assert fault_at is not None
    assert following is not None
    old = [LossPoint(at=fault_at - 1.0 + 0.25 * k, step=10 + k, loss=4.0 - k) for k in range(3)]
    view.loss.note(number, 0, [*old, LossPoint(at=fault_at - 0.1, step=13, loss=None)])
    view.loss.note(following, 0, [LossPoint(at=fault_at + 5.0, step=11, loss=3.01)])
    told = [moment.says for moment in incident_page(view, incident).timeline if moment.says.startswith("loss ")]
    assert told == [
        "loss NaN or infinite after step 13, the last that was noted before the fault",
        f"loss 3.01 after step 11, the first of generation {following}; it had been 3 after step 11",
    ]
