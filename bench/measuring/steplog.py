"""What the ranks of a benchmarked training wrote: reads the files of recovery_script.py as they grow.

Answers: which ranks are alive and how far they are, and when a new attempt of all ranks did its first step.
Every time is CLOCK_MONOTONIC of this machine. Must not judge; called by recovery.py.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """One rank finished one step."""

    restart: int  # TORCHELASTIC_RESTART_COUNT of the process: tells attempts apart
    rank: int
    step: int
    at: float
    pid: int
    cpu_s: float = math.nan  # of the process so far; only timed.py writes it
    loop_s: float = math.nan  # in everstep.State between steps, so far; only timed.py writes it


def parse_line(line: str) -> StepDone | None:
    """None for anything that is not a whole line of ours, for example the torn last line of a killed rank."""
    fields = line.split()
    if len(fields) not in (5, 7):
        return None
    try:
        restart, rank, step, pid = (int(fields[i]) for i in (0, 1, 2, 4))
        cpu_s, loop_s = (float(fields[5]), float(fields[6])) if len(fields) == 7 else (math.nan, math.nan)
        at = float(fields[3])
        return StepDone(restart=restart, rank=rank, step=step, at=at, pid=pid, cpu_s=cpu_s, loop_s=loop_s)
    except ValueError:
        return None


class StepLogs:
    """All that the ranks have written so far. `read` takes what is new."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self.done: list[StepDone] = []

    def read(self) -> list[StepDone]:
        """The new whole lines; a line still being written is left for the next call."""
        fresh: list[StepDone] = []
        for path in sorted(self._folder.glob("rank-*.log")):
            offset = self._offsets.get(path, 0)
            with path.open("rb") as stream:
                stream.seek(offset)
                data = stream.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            parsed = (parse_line(line) for line in whole.decode(errors="replace").splitlines())
            fresh += [step for step in parsed if step is not None]
        self.done += fresh
        return fresh


def latest_by_rank(steps: Iterable[StepDone]) -> dict[int, StepDone]:
    """The newest step of each rank."""
    latest: dict[int, StepDone] = {}
    for step in steps:
        if step.rank not in latest or step.at >= latest[step.rank].at:
            latest[step.rank] = step
    return latest


def steps_of_attempt(steps: Iterable[StepDone], pids: set[int]) -> dict[int, int]:
    """How many steps each rank has done, counting only these processes."""
    counts: dict[int, int] = {}
    for step in steps:
        if step.pid in pids:
            counts[step.rank] = counts.get(step.rank, 0) + 1
    return counts


def first_step_of_slowest(
    steps: Iterable[StepDone], *, after: float, old_pids: set[int], num_ranks: int
) -> float | None:
    """When the last rank of a new attempt did its first step; None when no new attempt has all its ranks yet.

    A launcher may need several attempts. Ranks of different attempts never make one whole.
    """
    firsts: dict[int, dict[int, float]] = {}
    for step in steps:
        if step.at <= after or step.pid in old_pids:
            continue
        attempt = firsts.setdefault(step.restart, {})
        attempt[step.rank] = min(step.at, attempt.get(step.rank, step.at))
    whole = [max(attempt.values()) for attempt in firsts.values() if len(attempt) == num_ranks]
    return min(whole, default=None)
