"""Crashes that nothing explains, in real runs: real programs examine the machines, and who fails is replaced."""

import os
import signal
import subprocess
import sys

import pytest
from real_run import Launcher, Run

from everstep.model.actions import Concluded, EvictNode, ExamineNode, StartWorkers
from everstep.model.events import NodeExamined
from everstep.model.facts import ExamKind

LIMIT_S = 240.0
CONFIG = """
[policy]
digest_every = 1000000
watch_numbers = false
exam_limit_s = 90
"""
"""Nothing else may find the machine: this is about examinations. The limit is for a machine that does much besides."""


def rules(run: Run) -> list[str]:
    """Of all decisions, without repeats in a row."""
    told = [action.decision.rule for action in run.actions(Concluded)]
    return [rule for at, rule in enumerate(told) if at == 0 or told[at - 1] != rule]


def until_trained(run: Run, generation: int, world_size: int) -> None:
    files = [run.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log" for rank in range(world_size)]
    run.until(
        f"step 3 of generation {generation}",
        lambda: all(f.exists() and "step 3\n" in f.read_text() for f in files),
        LIMIT_S,
    )


def crash(run: Run, rank: int, generation: int, world_size: int) -> None:
    """Once all ranks train; then until the next generation does."""
    until_trained(run, generation, world_size)
    os.kill(run.rank_pid(rank, generation), signal.SIGSEGV)
    until_trained(run, generation + 1, world_size)


def break_machine(run: Run, node: str, *options: str) -> None:
    """It computes wrongly from now on. Nobody waits for what the job makes of it."""
    words = ("drill", "miscompute", node, *options, "--timeout", "0.5", "--run", str(run.run_dir))
    subprocess.run(
        [sys.executable, "-m", "everstep.cli.main", *words], capture_output=True, timeout=LIMIT_S, check=False
    )


@pytest.mark.soak
def test_the_second_crash_has_all_machines_examined_and_the_bad_one_replaced(launcher: Launcher) -> None:
    config = launcher.folder / "everstep.toml"
    config.write_text(CONFIG)
    run = launcher.start("--config", config, "--local-nodes", 3, "--standby", 1, launcher.script(), 1_000_000)
    crash(run, 0, 0, 3)
    assert rules(run) == ["restart-in-place"]
    assert not run.actions(ExamineNode), "the first is bad luck, and no check is cheaper than a restart"
    bad = next(start.node for start in run.actions(StartWorkers) if start.slot == 1)
    break_machine(run, bad)
    crash(run, 0, 1, 3)
    examined = {action.kind for action in run.actions(ExamineNode)}
    assert examined == {ExamKind.SELF, ExamKind.ALL_GATHER, ExamKind.ALIGNMENT}, "one rank per node: nothing inside"
    assert [action.node for action in run.actions(EvictNode)] == [bad], run.story()
    assert rules(run) == ["restart-in-place", "examine", "evict"]
    assert len({event.node for event in run.events(NodeExamined)}) == 3
    run.process.send_signal(signal.SIGINT)
    run.wait(LIMIT_S)
    run.assert_nothing_left(30.0)


@pytest.mark.soak
def test_a_machine_that_computes_wrongly_now_and_then_is_found_by_replays(launcher: Launcher) -> None:
    """Straight to the replay: the checks before it would find this machine as well, sooner or later."""
    config = launcher.folder / "everstep.toml"
    config.write_text(f"{CONFIG}blind_restarts = 0\nexamine = false\nreplay_limit_s = 200\n")
    run = launcher.start("--config", config, "--local-nodes", 6, "--standby", 1, launcher.script(), 1_000_000)
    until_trained(run, 0, 6)
    bad = next(start.node for start in run.actions(StartWorkers) if start.slot == 4)
    break_machine(run, bad, "--chance", "0.3")
    crash(run, 0, 0, 6)
    assert {action.kind for action in run.actions(ExamineNode)} == {ExamKind.REPLAY}
    groups = [{action.group for action in run.actions(ExamineNode) if action.exam == f"i1/{n}"} for n in (1, 2, 3)]
    assert [len(each) for each in groups] == [3, 3, 1], "m = 2, n = 3, and one candidate to confirm"
    assert [action.node for action in run.actions(EvictNode)] == [bad], run.story()
    assert rules(run) == ["replay", "evict"]
    run.process.send_signal(signal.SIGINT)
    run.wait(LIMIT_S)
    run.assert_nothing_left(30.0)
