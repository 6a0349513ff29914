"""A bare script can't tell that torchrun did not start it: bench/census.py against the page's list."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", [["--quick"], pytest.param(["--only", "bare"], marks=pytest.mark.soak)], ids=" ".join)
def test_a_bare_script_finds_no_difference_but_those_that_are_meant(tmp_path: Path, how: list[str]) -> None:
    """Once under each launcher; and twice, as a second run meets what the first one has left."""
    command = [sys.executable, ROOT / "bench/census.py", *how, "--keep", tmp_path]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr[-2000:] + asked.stdout
