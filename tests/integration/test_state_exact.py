"""Training that is killed at random moments equals training that is not, bit for bit, with real processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

NURSERY = Path(__file__).with_name("state_nursery.py")


def run_nursery(tmp_path: Path, **job) -> dict:
    job = {"folder": str(tmp_path), "num_steps": 24, "kills": 4, **job}
    done = subprocess.run([sys.executable, NURSERY, json.dumps(job)], capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("num_ranks", "wrap", "seed"),
    [(3, "before", 1), (2, "bare", 2), (3, "after", 3), (4, "bare", 4)],
)
def test_killed_equals_never_killed(tmp_path: Path, num_ranks: int, wrap: str, seed: int) -> None:
    """`wrap`: the State is given the DDP module, the bare one, or the bare one before DDP is made."""
    result = run_nursery(tmp_path, num_ranks=num_ranks, wrap=wrap, seed=seed)
    resumed = [-1 if step is None else step for step in result["resumed"]]
    assert max(resumed) > 0, "nothing was ever resumed"
    assert resumed == sorted(resumed)
    assert max(result["lost"]) <= 1, "at most the step that the fastest rank had done and the slowest had not"
    for plain, killed in zip(result["plain"], result["run"], strict=True):
        truth = dict(line.split() for line in plain)
        lines = [line.split() for line in killed]
        assert {step for step, _ in lines} == set(truth)
        assert [(step, loss) for step, loss in lines if truth[step] != loss] == []
    assert result["run_final"] == result["plain_final"]
