"""`everstep drill`, `approve` and `stop` against a real run."""

import json
import subprocess
import sys

import pytest
from real_run import LOOP, TIMEOUT_S, Launcher, Run

from everstep.model.actions import Concluded, Finish, Refused, StartWorkers
from everstep.model.events import DrillRequested, NodeJoined, ProposalApproved


def verb(*argv: object, run: Run) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "everstep.cli.main", *map(str, argv)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=run.run_dir, check=False)


def test_drills_on_a_live_run_and_then_stop(launcher: Launcher):
    run = launcher.start(*launcher.loop())
    run.until_step(1)
    killed = verb("drill", "kill-rank", 1, "--run", run.run_dir, "--json", run=run)
    assert killed.returncode == 0, killed.stdout + killed.stderr + run.story()
    result = json.loads(killed.stdout)
    assert (result["drill"], result["passed"], result["outcome"]) == ("d1", True, "recovered")
    assert result["incident"] == "i1"
    agent = verb("drill", "kill-agent", "--run", run.run_dir, run=run)
    assert agent.returncode == 0, agent.stdout + agent.stderr + run.story()
    assert "PASS" in agent.stdout
    controller = verb("drill", "kill-controller", "--run", run.run_dir, run=run)
    assert controller.returncode == 0, controller.stdout + controller.stderr
    assert "took over" in controller.stdout
    nobody = verb("drill", "kill-rank", 7, "--run", run.run_dir, run=run)
    assert nobody.returncode == 1
    assert "refused: there is no rank 7" in nobody.stdout
    assert [event.drill for event in run.events(DrillRequested)] == ["d1", "d2", "d3", "d4"]
    assert verb("stop", run.run_dir, run=run).returncode == 0
    assert run.wait() == 143
    over = verb("stop", run.run_dir, run=run)
    assert over.returncode == 3
    assert "has no controller" in over.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["explode"], "no drill 'explode'; there are: kill-rank"),
        (["kill-rank"], "needs a rank: everstep drill kill-rank 0"),
        (["kill-rank", "first"], "needs a rank"),
        (["kill-controller", "now"], "takes no target"),
    ],
)
def test_a_drill_that_makes_no_sense(argv, words, capsys):
    from everstep.cli.main import main

    assert main(["drill", *argv]) == 2
    assert words in capsys.readouterr().err


def test_mode_advise_waits_for_approval(launcher: Launcher):
    text = "[ -e once ] && exit 0; sleep 0.2; [ $RANK = 0 ] || exec sleep 100; touch once; exit 3"
    run = launcher.start("--mode", "advise", *launcher.loop(0, text))
    run.until("the proposal", lambda: run.actions(Refused))
    wrong = verb("approve", "i9", run.run_dir, run=run)
    assert wrong.returncode == 2
    assert "incident i9 is not open; open: i1" in wrong.stderr
    assert {start.generation for start in run.actions(StartWorkers)} == {0}
    approved = verb("approve", "i1", run.run_dir, run=run)
    assert approved.returncode == 0, approved.stderr
    assert run.wait() == 0, run.story()
    assert run.events(ProposalApproved)[0].incident == "i1"
    assert run.actions(Finish)[0].outcome == "succeeded"


def test_a_machine_that_is_drained_is_left_for_the_standby(launcher: Launcher):
    nodes = ("--local-nodes", 2, "--standby", 1, "--max-restarts", 0)
    run = launcher.start(*nodes, "--no-python", "sh", launcher.script(LOOP, "loop.sh"), 10_000)
    run.until_step(1)
    run.until("the standby", lambda: len(run.events(NodeJoined)) == 3)
    nobody = verb("drain", "n7", "--run", run.run_dir, run=run)
    assert nobody.returncode == 2
    assert "this run has no node 'n7'; it has: n0 (" in nobody.stderr
    undone = verb("drain", "n1", "--undo", "--run", run.run_dir, run=run)
    assert "n1 is not drained: nothing to undo" in undone.stderr
    for generation, node in ((1, "n1"), (2, "n0")):  # the breaker would allow one in an hour, and no restart is left
        drained = verb("drain", node, "--why", "a fan", "--json", "--run", run.run_dir, run=run)
        assert drained.returncode == 0, drained.stdout + drained.stderr
        assert json.loads(drained.stdout)["node"] == node
        assert "a standby takes its place" in json.loads(drained.stdout)["follows"]
        run.until_step(1, generation=generation)
        run.until("another standby", lambda num=3 + generation: len(run.events(NodeJoined)) == num)
    whose = {start.node for start in run.actions(StartWorkers) if start.generation == 2}
    assert whose == {"n2", "n3"}
    assert {(each.verdict.code, each.decision.rule) for each in run.actions(Concluded)} == {("ES-M39", "drain")}
    assert "drains this node: a fan" in run.err()
    assert verb("stop", run.run_dir, run=run).returncode == 0
    assert run.wait() == 143
