"""Real launchers beside everstep: their processes find the same, and the programs of `examples/launchers` train."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from real_run import Launcher

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples/launchers"
needs_deepspeed = pytest.mark.skipif(find_spec("deepspeed") is None, reason="DeepSpeed is not installed")


@pytest.fixture(autouse=True)
def first_on_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("HF_HOME", str(tmp_path))  # the config file of whoever runs the tests


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "lines",
    [
        "accelerate",
        pytest.param("torchrun,launch,launch-env,accelerate-one,accelerate-fsdp", marks=pytest.mark.soak),
        pytest.param("accelerate-deepspeed,deepspeed,deepspeed-bare", marks=[needs_deepspeed, pytest.mark.soak]),
    ],
)
def test_processes_find_what_their_own_launcher_gives_them(lines):
    command = [sys.executable, ROOT / "bench/launchers.py", "--only", lines]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr[-3000:] + asked.stdout
    assert len(asked.stdout.splitlines()) == len(lines.split(","))


def test_the_example_of_accelerate_trains_on_two_ranks(launcher: Launcher):
    program = EXAMPLES / "train_accelerate.py"
    words = "accelerate launch --cpu --num_processes 1 --num_machines 1 --mixed_precision bf16 --dynamo_backend no"
    run = launcher.start("--nproc-per-node", 2, *words.split(), program, "--steps", 5)
    assert run.wait() == 0, run.story()
    assert "step 4 " in run.out()
    assert run.out().splitlines()[-1] == "2 ranks, bf16, cpu"


@needs_deepspeed
@pytest.mark.soak
def test_the_example_of_deepspeed_gets_its_local_rank(launcher: Launcher):
    program, config = EXAMPLES / "train_deepspeed.py", EXAMPLES / "zero.json"
    run = launcher.start("deepspeed", "--num_gpus", 2, program, "--deepspeed_config", config, "--steps", 4)
    assert run.wait() == 0, run.story()
    assert {line for line in run.out().splitlines() if line.startswith("rank ")} == {
        "rank 0 of 2, --local_rank=0",
        "rank 1 of 2, --local_rank=1",
    }


@pytest.mark.soak
@pytest.mark.parametrize("flags", [["--nprocs", 2], []])
def test_the_example_of_spawn_trains_either_way(launcher: Launcher, flags):
    own = [] if flags else ["--nproc-per-node", 2]
    run = launcher.start(*own, EXAMPLES / "train_spawn.py", *flags, "--steps", 5)
    assert run.wait() == 0, run.story()
    assert "step 4 " in run.out()
    assert {"rank 0 of 2", "rank 1 of 2"} <= set(run.out().splitlines())


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "launcher_name"), [("--local_rank", "deepspeed"), ("--local-rank", "torch.distributed")]
)
def test_a_program_that_wants_its_launchers_argument_is_told_which(launcher: Launcher, name, launcher_name):
    program = (
        f"import argparse\np = argparse.ArgumentParser()\np.add_argument({name!r}, required=True)\np.parse_args()\n"
    )
    run = launcher.start(launcher.script(program))
    assert run.wait() != 0
    assert launcher_name in run.err()
