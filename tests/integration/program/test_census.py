"""A bare script can't tell that torchrun did not start it: bench/census.py, quick, against the page's list."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_bare_script_finds_no_difference_but_those_that_are_meant(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "bench/census.py", "--quick", "--keep", tmp_path]
    asked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert asked.returncode == 0, asked.stderr[-2000:] + asked.stdout
