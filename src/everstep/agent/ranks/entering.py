"""Whether a program runs although its interpreter did not say so: one that ignores PYTHONPATH (`PYTHON_EXEC` with -I)
runs unobserved, and is not to be taken for one that hangs before its first line.
"""

from pathlib import Path

from everstep.agent.ranks.workers import Worker
from everstep.linux import proc

BUSY_S = 3.0
"""More CPU time than any interpreter needs to reach its program."""


def has_surely_begun(worker: Worker) -> bool:
    """It has written something, or worked for long."""
    return any(_size(path) > 0 for path in (worker.paths.stdout, worker.paths.stderr)) or _cpu_s(worker.pid) > BUSY_S


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _cpu_s(pid: int) -> float:
    found = proc.stat(pid)
    return 0.0 if found is None else found.cpu_s
