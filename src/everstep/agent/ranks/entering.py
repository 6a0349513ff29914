"""Whether a program runs although its interpreter did not say so: one that ignores PYTHONPATH (`PYTHON_EXEC` with -I)
runs unobserved, and is not to be taken for one that hangs before its first line.
"""

import os
from pathlib import Path

from everstep.agent.ranks.workers import Worker

BUSY_S = 3.0
"""Processor time that no interpreter needs to come as far as a program."""


def has_surely_begun(worker: Worker) -> bool:
    """It has written something, or worked for long."""
    return any(_size(path) > 0 for path in (worker.paths.stdout, worker.paths.stderr)) or _cpu_s(worker.pid) > BUSY_S


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0
