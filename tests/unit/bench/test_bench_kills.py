"""bench/kills.py's pure parts: the plan, the folded journal, the comparison of loss curves, the verdict."""

import itertools
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from killing.killplan import SIGNALS, TARGETS, plan, steps_needed
from killing.killreport import Verdict, report
from killing.strikes import Outcome
from measuring.figures import NEVER
from measuring.journaltail import JournalTail
from measuring.losslog import Comparison, LossLog, compare, parse_line


@given(st.integers(), st.sampled_from([*TARGETS, "mix"]), st.integers(min_value=1, max_value=60))
def test_a_seed_is_a_plan_in_which_every_kill_finds_its_step(seed: int, target: str, num_kills: int):
    kills = plan(num_kills=num_kills, seed=seed, target=target, num_ranks=4, first_step=10)
    assert kills == plan(num_kills=num_kills, seed=seed, target=target, num_ranks=4, first_step=10)
    steps = [kill.after_step for kill in kills]
    assert steps[0] == 10
    assert all(later - earlier >= 2 for earlier, later in itertools.pairwise(steps))
    assert steps_needed(kills) > steps[-1] + 1
    assert all(0 <= kill.rank < 4 and 0 <= kill.phase < 1 for kill in kills)


def test_a_hundred_kills_use_every_rank_every_signal_and_every_target():
    ranks = plan(num_kills=100, seed=1, target="rank", num_ranks=4, first_step=10)
    assert {kill.signal for kill in ranks} == set(SIGNALS)
    assert {kill.rank for kill in ranks} == {0, 1, 2, 3}
    mixed = plan(num_kills=100, seed=1, target="mix", num_ranks=4, first_step=10)
    assert {(kill.target, kill.in_recovery_s is not None) for kill in mixed} == {
        ("rank", False),
        ("agent", False),
        ("agent", True),
        ("controller", False),
        ("controller", True),
    }
    assert {kill.signal for kill in mixed if kill.target != "rank"} == {signal.SIGKILL}


def journal(*records: dict) -> bytes:
    lines = [{"v": 1, "kind": "everstep-journal", "run": "r1"}]
    lines += [{"v": 1, "at": 0.0, "gen": 0, "seq": seq, **record} for seq, record in enumerate(records, 1)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


HISTORY = (
    {"event": {"type": "ControllerStarted", "at": 1.0, "pid": 10}},
    {"event": {"type": "NodeJoined", "at": 1.1, "node": "n1", "pid": 20}},
    {
        "event": {
            "type": "WorkersStarted",
            "at": 2.0,
            "generation": 0,
            "started": [{"rank": 0, "pid": 30}, {"rank": 1, "pid": 31}],
        }
    },
    {
        "event": {"type": "WorkerExited", "at": 3.0, "generation": 0},
        "actions": [{"type": "IncidentOpened", "incident": "i1", "why": ""}],
    },
    {"event": {"type": "WorkersStarted", "at": 3.1, "generation": 1, "started": [{"rank": 1, "pid": 41}]}},
    {"event": {"type": "WorkersStarted", "at": 3.1, "generation": 1, "started": [{"rank": 0, "pid": 40}]}},
    {"event": {"type": "WorkersStarted", "at": 3.2, "generation": 0, "started": [{"rank": 0, "pid": 39}]}},
    {"event": {"type": "NodeLost", "at": 3.3, "node": "n1"}},
    {"event": {"type": "NodeJoined", "at": 3.4, "node": "n2", "pid": 21}},
    {
        "event": {"type": "MarksReported", "at": 3.5},
        "actions": [
            {"type": "IncidentClosed", "incident": "i1", "outcome": "recovered", "recovered_at": 3.45, "lost_steps": 0}
        ],
    },
)


def test_the_journal_says_who_lives_and_what_is_open(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    data = journal(*HISTORY)
    path.write_bytes(data)
    found = JournalTail(path).read()
    assert (found.generation, found.ranks) == (1, {0: 40, 1: 41})
    assert found.agents == {"n2": 21}
    assert found.controllers == [(1.0, 10)]
    assert found.num_open == 0
    assert [(one.outcome, one.recovered_at, one.lost_steps) for one in found.closed] == [("recovered", 3.45, 0)]
    assert found.holes == 0


def test_a_journal_read_at_any_moment_of_its_growth_folds_to_the_same(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    data = journal(*HISTORY)
    path.write_bytes(data)
    whole = JournalTail(path).read()
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        tail = JournalTail(path)
        tail.read()
        path.write_bytes(data)
        assert tail.read() == whole


def test_an_incident_without_an_end_is_open_and_a_hole_is_counted(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(
        b"\n".join(journal(*HISTORY[:4]).splitlines()[:2] + journal(*HISTORY[:4]).splitlines()[4:]) + b"\n"
    )
    found = JournalTail(path).read()
    assert found.num_open == 1
    assert found.holes == 1


def test_a_journal_that_lost_whole_lines_is_refused(tmp_path: Path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(journal(*HISTORY))
    tail = JournalTail(path)
    tail.read()
    path.write_bytes(journal(*HISTORY[:2]))
    with pytest.raises(ValueError, match="got shorter"):
        tail.read()


def test_losses_are_compared_as_text():
    same = compare({0: ["0.5"], 1: ["0.25"]}, {0: ["0.5"], 1: ["0.25", "0.25"]})
    assert same.identical
    assert same.redone == 1
    assert compare({0: ["0.5"]}, {0: ["0.50"]}).different == (0,)
    assert compare({0: ["0.5"], 1: ["0.25"]}, {0: ["0.5"]}).missing == (1,)
    assert compare({0: ["0.5"]}, {0: ["0.5"], 1: ["0.1"]}).different == (1,)


def test_one_redone_step_with_another_loss_is_a_difference():
    assert compare({3: ["0.5"]}, {3: ["0.4", "0.5"]}).different == (3,)


def test_two_empty_curves_are_not_identical():
    assert not compare({}, {}).identical


@pytest.mark.parametrize("line", ['{"step": 7, "loss": 1.25}', "7 1.25", "7,1.25"])
def test_a_loss_is_read_in_each_form(line: str):
    assert parse_line(line) == (7, "1.25")


@given(st.text())
def test_any_text_is_a_loss_or_nothing(line: str):
    parsed = parse_line(line)
    assert parsed is None or isinstance(parsed[0], int)


def test_a_loss_log_cut_anywhere_gives_each_loss_once(tmp_path: Path):
    data = b"".join(b"%d %d.5\n" % (step, step) for step in range(12))
    path = tmp_path / "losses"
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        log = LossLog(path)
        log.read()
        path.write_bytes(data)
        log.read()
        assert log.losses == {step: [f"{step}.5"] for step in range(12)}


def test_a_cut_and_redone_step_is_kept_beside_the_first_one(tmp_path: Path):
    path = tmp_path / "losses"
    path.write_bytes(b"0 0.5\n1 0.4\n2 0.3\n")
    log = LossLog(path)
    assert log.read() == 3
    path.write_bytes(b"0 0.5\n1 0.4\n")
    assert log.read() == 0
    path.write_bytes(b"0 0.5\n1 0.4\n2 0.31\n3 0.2\n")
    assert log.read() == 2
    assert log.losses == {0: ["0.5"], 1: ["0.4"], 2: ["0.3", "0.31"], 3: ["0.2"]}


def verdict() -> Verdict:
    (kill,) = plan(num_kills=1, seed=1, target="rank", num_ranks=4, first_step=10)
    outcome = Outcome(kill=kill, recovered_s=0.4, lost_steps=0, disturbed=True)
    same = Comparison(num_steps=20, missing=(), different=(), redone=0)
    return Verdict(
        planned=1,
        outcomes=(outcome,),
        comparison=same,
        same_final=True,
        exit_code=0,
        finished="succeeded",
        holes=0,
        leftover=(),
    )


def test_a_clean_run_passes_and_says_so():
    text = report(verdict())
    assert "1 kills planned, 1 done, 1 recovered" in text
    assert text.endswith("PASS")


@pytest.mark.parametrize(
    "change",
    [
        {"planned": 2},
        {"same_final": False},
        {"same_final": None},
        {"exit_code": 10},
        {"exit_code": None},
        {"holes": 1},
        {"leftover": (4242,)},
        {"comparison": Comparison(num_steps=20, missing=(3,), different=(), redone=0)},
        {"outcomes": (replace(verdict().outcomes[0], recovered_s=NEVER),)},
    ],
)
def test_anything_less_fails(change: dict):
    failed = replace(verdict(), **change)
    assert not failed.passed
    assert report(failed).endswith("FAIL")


def test_a_controller_kill_that_restarts_workers_fails():
    one = verdict().outcomes[0]
    kill = replace(one.kill, target="controller", in_recovery_s=None)
    assert not replace(verdict(), outcomes=(replace(one, kill=kill, disturbed=True),)).passed
    assert replace(verdict(), outcomes=(replace(one, kill=kill, disturbed=False),)).passed
