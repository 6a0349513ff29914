"""A process that sees a small library of ours in the place of the driver's NVML."""

import os
import subprocess
import sys
from pathlib import Path


def lines(script: str, nvml: Path, tmp_path: Path, states: list[str]) -> list[str]:
    """What the script prints; it reads one state of the GPUs per line of its input."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "FAKE_NVML_STATE": str(tmp_path / "state")}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input="\n".join(states) + "\n",
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
