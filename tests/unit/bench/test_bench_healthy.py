"""bench/healthy.py's pure parts: the plan, what counts as hurt, and what is read from journals and notes."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from healthy import MODES, WHO, plan, report
from jobs.healthy_kinds import ONCE, STATE_ONLY, kinds_listed
from jobs.healthy_run import Case, Events, Told, _pairs, as_json


def told(mode: str = "plain", **what: object) -> Told:
    case = Case(kind="upload", who="one", mode=mode, seconds=5.0, times=5, once=False)
    return Told(case=case, times=5, exit_code=0, **what)


def test_there_are_many_kinds_and_the_special_ones_are_among_them():
    kinds = kinds_listed()
    assert len(kinds) == len(set(kinds)) >= 80
    assert {*ONCE, *STATE_ONLY} <= set(kinds)


def test_a_seed_is_a_plan_with_every_kind_in_both_modes_once():
    kinds = kinds_listed()
    cases = plan(kinds, [5.0, 30.0], MODES, 5, seed=3, whole=False)
    assert cases == plan(kinds, [5.0, 30.0], MODES, 5, seed=3, whole=False)
    assert len(cases) == 2 * len(kinds) - len(STATE_ONLY)
    assert {(case.kind, case.mode) for case in cases} == {
        (kind, mode) for kind in kinds for mode in MODES if mode == "state" or kind not in STATE_ONLY
    }
    assert {case.who for case in cases} == set(WHO)
    assert {case.seconds for case in cases} == {5.0, 30.0}
    assert all(case.times == (1 if case.kind in ONCE else 5) for case in cases)


def test_the_whole_plan_is_every_combination():
    cases = plan(["upload"], [5.0, 30.0], MODES, 5, seed=0, whole=True)
    assert len({case.name for case in cases}) == len(cases) == 2 * 3 * 2


@pytest.mark.parametrize(
    ("mode", "restarts", "evictions", "hurt"),
    [
        ("plain", 0, 0, ""),
        ("plain", 1, 0, "1 restarts"),
        ("state", 1, 0, ""),
        ("state", 2, 0, "2 restarts"),
        ("state", 0, 1, "1 evictions"),
    ],
)
def test_a_plain_program_may_never_be_restarted_and_nobody_evicted(mode, restarts, evictions, hurt):
    one = told(mode, restarts=restarts, evictions=evictions)
    assert one.hurt == hurt
    assert ("FAIL" in report([one])) == bool(hurt)


def test_trouble_is_no_pass_even_where_nobody_was_hurt():
    text = report([told(trouble="not within 5 s: an end")])
    assert text.endswith("FAIL")
    assert "TROUBLE upload-one-plain-5: not within 5 s" in text


def test_what_was_cut_off_by_a_restart_has_no_duration(tmp_path):
    rows = [("begin", 1.0), ("begin", 10.0), ("end", 12.5), ("begin", 20.0), ("end", 21.0), ("begin", 30.0)]
    lines = [json.dumps({"what": what, "at": at}) for what, at in rows]
    (tmp_path / "events-0.jsonl").write_text("\n".join(lines) + "\n")
    events = Events(tmp_path, 1)
    events.read()
    assert [end["at"] - begin["at"] for begin, end in _pairs(events, 0)] == [2.5, 1.0]


def test_a_result_is_one_row_for_programs():
    found = as_json(told(restarts=2, waits=[5.1]))
    assert found["kind"] == "upload"
    assert found["hurt"] == "2 restarts"
    assert (found["times"], found["done"], found["waits"]) == (5, 5, [5.1])
