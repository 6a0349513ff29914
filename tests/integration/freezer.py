"""Processes in uninterruptible sleep that SIGKILL does not end: the v1 freezer holds them, as a dead disk would."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

FREEZER = Path("/sys/fs/cgroup/freezer")

needs_freezer = pytest.mark.skipif(
    not os.access(FREEZER / "cgroup.procs", os.W_OK), reason="needs root and the v1 freezer"
)


class Freezer:
    def __init__(self, path: Path) -> None:
        self.path = path

    def freeze(self, *pids: int) -> None:
        for pid in pids:
            (self.path / "cgroup.procs").write_text(str(pid))
        self._become("FROZEN")

    def held(self) -> set[int]:
        """What it was told to freeze, and what that forked before it stood still."""
        return set(map(int, (self.path / "cgroup.procs").read_text().split()))

    def thaw(self) -> None:
        self._become("THAWED")

    def _become(self, state: str) -> None:
        deadline = time.monotonic() + 60
        while (self.path / "freezer.state").read_text().strip() != state:
            (self.path / "freezer.state").write_text(state)
            assert time.monotonic() < deadline
            time.sleep(0.01)


@contextlib.contextmanager
def freezer() -> Iterator[Freezer]:
    """What it holds is let go at the end, and the cgroup removed."""
    path = FREEZER / f"everstep-test-{os.getpid()}-{time.monotonic_ns()}"
    path.mkdir()
    made = Freezer(path)
    try:
        yield made
    finally:
        made.thaw()
        deadline = time.monotonic() + 60
        while path.exists():
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (FREEZER / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                path.rmdir()
            assert time.monotonic() < deadline, "its processes do not end"
            time.sleep(0.02)
