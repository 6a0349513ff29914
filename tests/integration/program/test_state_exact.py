"""Training that is killed at random moments equals training that is not, bit for bit, with real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NURSERY = Path(__file__).parents[1] / "state_nursery.py"


def run_nursery(tmp_path: Path, **job) -> dict:
    job = {"folder": str(tmp_path), "num_steps": 24, "kills": 4, **job}
    done = subprocess.run([sys.executable, NURSERY, json.dumps(job)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("num_ranks", "wrap", "seed", "unhurried"),
    [(3, "before", 1, False), (2, "bare", 2, True), (3, "after", 3, True), (4, "bare", 4, False)],
)
def test_killed_equals_never_killed(tmp_path: Path, num_ranks: int, wrap: str, seed: int, unhurried: bool) -> None:
    """`wrap`: the State is given the DDP module, the bare one, or the bare one before DDP is made."""
    result = run_nursery(tmp_path, num_ranks=num_ranks, wrap=wrap, seed=seed, unhurried=unhurried)
    resumed = [-1 if step is None else step for step in result["resumed"]]
    assert max(resumed) > 0, "nothing was ever resumed"
    assert resumed == sorted(resumed)
    # At most the step that the fastest rank had done and the slowest had not, and one whose copy was under way.
    assert max(result["lost"]) <= 1 + unhurried
    for plain, killed in zip(result["plain"], result["run"], strict=True):
        truth = dict(line.split() for line in plain)
        lines = [line.split() for line in killed]
        assert {step for step, _ in lines} == set(truth)
        assert [(step, loss) for step, loss in lines if truth[step] != loss] == []
    assert result["run_final"] == result["plain_final"]


@pytest.mark.parametrize(
    ("num_ranks", "wrap", "seed"), [pytest.param(4, "bare", 7, marks=pytest.mark.soak), (2, "before", 8)]
)
def test_a_state_that_is_divided_among_the_ranks_of_a_node(
    tmp_path: Path, num_ranks: int, wrap: str, seed: int
) -> None:
    result = run_nursery(tmp_path, num_ranks=num_ranks, wrap=wrap, seed=seed, unhurried=True, divided=True)
    assert max(-1 if step is None else step for step in result["resumed"]) > 0
    whole_bytes = 3 * 4 * (33 * 70 + 70 + 70 * 33 + 33 + 33 + 33)
    assert max(result["num_bytes"]) < whole_bytes / num_ranks + whole_bytes / 4 + 20_000
    for plain, killed in zip(result["plain"], result["run"], strict=True):
        truth = dict(line.split() for line in plain)
        lines = [line.split() for line in killed]
        assert {step for step, _ in lines} == set(truth)
        assert [(step, loss) for step, loss in lines if truth[step] != loss] == []
    assert result["run_final"] == result["plain_final"]


def test_not_every_step_kept_and_all_ranks_keep_the_same(tmp_path: Path) -> None:
    """Copies of one rank take longer than its forward and backward: all ranks come to keep every fourth step only."""
    job = {"num_ranks": 2, "wrap": "bare", "seed": 5, "unhurried": True, "slow_copies": True}
    # Killed in the first half: more than a hundred steps are left to agree on a pace in.
    result = run_nursery(tmp_path, num_steps=200, kills=2, reach=45, **job)
    assert result["every"] == [4, 4]
    assert max(-1 if step is None else step for step in result["resumed"]) > 0
    assert max(result["lost"]) <= 4 + 2
    for plain, killed in zip(result["plain"], result["run"], strict=True):
        truth = dict(line.split() for line in plain)
        assert {line.split()[0] for line in killed} == set(truth)
        assert [line for line in killed if truth[line.split()[0]] != line.split()[1]] == []
    assert result["run_final"] == result["plain_final"]
