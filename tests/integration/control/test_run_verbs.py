"""`everstep drill`, `approve` and `stop` against a real run."""

import json
import subprocess
import sys

import pytest
from real_run import TIMEOUT_S, Launcher, Run

from everstep.model.actions import Finish, Refused, StartWorkers
from everstep.model.events import DrillRequested, ProposalApproved


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
