"""Faults that nobody announces, only a clock: a worker that never starts, a rendezvous that never completes."""

from pathlib import Path

import pytest
from real_run import Launcher, Run

from everstep.model.actions import Concluded, IncidentClosed, StartWorkers

STARTS_LATE = """
import os, sys, time
import uncompiled, torch, torch.distributed as dist
if os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(60)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def config(folder: Path, **values: float) -> Path:
    path = folder / "everstep.toml"
    path.write_text("[policy]\n" + "".join(f"{key} = {value}\n" for key, value in values.items()))
    return path


def codes(run: Run) -> list[str]:
    return [concluded.verdict.code for concluded in run.actions(Concluded)]


@pytest.mark.soak
def test_a_rank_that_never_calls_init_process_group_is_named(launcher: Launcher, tmp_path: Path):
    settings = config(tmp_path, rendezvous_timeout_s=2.0)
    run = launcher.start("--config", settings, "--nproc-per-node", 2, launcher.script(STARTS_LATE))
    assert run.wait() == 0, run.story()
    verdict = run.actions(Concluded)[-1].verdict
    assert (verdict.code, verdict.ranks) == ("ES-P05", (1,))
    assert verdict.sentence.startswith("ranks [0] wait in init_process_group")
    assert {start.generation for start in run.actions(StartWorkers)} == {0, 1}
    assert len(run.actions(IncidentClosed)) == 1


def test_a_worker_that_never_reaches_the_program(launcher: Launcher, tmp_path: Path):
    """The interpreter that PYTHON_EXEC names never gets anywhere: what a hung shared disk looks like."""
    stuck = tmp_path / "stuck-python"
    stuck.write_text("#!/bin/sh\nexec sleep 600\n")
    stuck.chmod(0o755)
    settings = config(tmp_path, start_timeout_s=1.0, max_restarts=1)
    env = {"PYTHON_EXEC": str(stuck), "EVERSTEP_TWINS": "off"}
    run = launcher.start("--config", settings, "--nproc-per-node", 2, launcher.script(), 3, env=env)
    assert run.wait() == 10, run.story()
    assert set(codes(run)) == {"ES-P04"}
    assert run.actions(Concluded)[-1].verdict.ranks == (0, 1)
    assert "1 restarts within 3600 s, 1 allowed" in run.err()
