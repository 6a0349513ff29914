"""A recorded run with another policy: the same way, another way, and what is said about which."""

import json
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.core.state.policy import Policy
from everstep.model.actions import Finish
from everstep.model.spec import RunSpec
from everstep.simulate.whatif import what_if
from everstep.testing.cluster import Cluster

GOLDEN = Path(__file__).parents[2] / "golden" / "journal.jsonl"


def killed(times: int, policy: Policy | None = None) -> Cluster:
    """Two nodes of two ranks; rank 1 is killed so often, with steps in between."""
    cluster = Cluster(RunSpec(program="train.py", num_slots=2, nproc_per_node=2), policy)
    cluster.start()
    for _ in range(times):
        cluster.train(3)
        cluster.kill(1)
    cluster.train(1)
    return cluster


def test_the_same_policy_goes_the_same_way():
    cluster = killed(3)
    found = what_if(cluster.records, Policy(), Policy())
    assert found.diverged is None
    assert found.differences == ()
    assert found.timings == ()
    assert found.num_other_version == 0
    assert found.num_incidents == 3


def test_a_tighter_budget_would_have_given_up_and_says_why():
    cluster = killed(4)
    found = what_if(cluster.records, Policy(), Policy(max_restarts=2))
    assert found.diverged is not None
    assert found.diverged.incident == "i3"
    assert found.diverged.would.chosen == "give up"
    assert "2 restarts within 3600 s, 2 allowed" in found.diverged.would.why
    assert found.diverged.was.chosen.startswith("restart all 4 ranks")
    assert found.diverged.would.does == ("Finish",)
    followed = [each for each in found.differences if each.is_followed]
    assert followed[-1] == found.diverged, "nothing is followed beyond it"
    assert {each.incident for each in found.differences if not each.is_followed} == {"i4"}, "asked as it was recorded"
    assert found.num_asked == found.num_records - [r.seq for r in cluster.records].index(found.diverged.seq) - 1


def test_other_durations_are_no_other_decision():
    cluster = killed(2)
    found = what_if(cluster.records, Policy(), Policy(stop_grace_s=30.0))
    assert found.diverged is None
    assert [(each.what, each.was_s, each.would_s, each.count) for each in found.timings] == [
        ("StopWorkers.grace_s", 5.0, 30.0, 2)
    ]


def test_a_decision_that_this_version_would_not_take_is_told():
    cluster = killed(1)
    *before, last = cluster.records
    altered = msgspec.structs.replace(last, actions=(*last.actions, Finish(outcome="failed", exit_code=1, why="old")))
    assert what_if([*before, altered], Policy(), Policy()).num_other_version == 1


def test_the_verb_tells_one_run_and_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    run = tmp_path / "runs" / "r1"
    run.mkdir(parents=True)
    (run / "journal.jsonl").write_bytes(GOLDEN.read_bytes())
    assert main(["replay", "r1", "--set", "max_restarts=0"]) == 0
    page = capsys.readouterr().out
    assert "would have gone another way at record" in page
    assert "max_restarts" in page
    assert "the journal answers what was done, and not what would have been" in page
    assert main(["replay", "r1", "--set", "max_restarts=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["what_if"]["diverged"]["would"]["chosen"] == "give up"
    assert main(["replay", "--all", "--days", "36500", "--set", "max_restarts=0"]) == 0
    assert "1 would have gone another way" in capsys.readouterr().out
    assert main(["replay", "r1"]) == 2
    assert "say which policy" in capsys.readouterr().err


def test_a_damaged_journal_does_not_hide_the_others(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVERSTEP_HOME", str(tmp_path))
    for name, data in (("r1", GOLDEN.read_bytes()), ("r2", b"nothing\n")):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "journal.jsonl").write_bytes(data)
    assert main(["replay", "--all", "--days", "36500", "--policy", "default"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("1 run of the last")
    assert "r2: " in page


@pytest.mark.parametrize("wrong", [["--policy", "bold"], ["--set", "x"], ["--set", "watch_hangs=perhaps"]])
def test_what_is_no_policy_is_refused(wrong, capsys):
    assert main(["replay", str(GOLDEN), *wrong]) == 2
    assert capsys.readouterr().err.startswith("everstep: ")
