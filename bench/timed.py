"""Runs a training script, unchanged, and writes the time of every optimizer step: the clock of overhead.py.

    python timed.py SCRIPT [ARGS...]

Works under every launcher alike. Lines are those of recovery_script.py. With EVERSTEP_BENCH_SNAPSHOTS=off the script
gets a counter instead of everstep.State, which is what a State is outside `everstep run`: the difference between off
and on is what the snapshots cost.
"""

import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class Counter:
    """everstep.State without snapshots."""

    resumed = False

    def __init__(self, **objects: object) -> None:
        self.step = -1

    def steps(self, num_steps: int) -> "Counter":
        self._num_steps = num_steps
        return self

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        if self.step + 1 >= self._num_steps:
            raise StopIteration
        self.step += 1
        return self.step


def main() -> None:
    if os.environ.get("EVERSTEP_BENCH_SNAPSHOTS") == "off":
        import everstep

        everstep.State = Counter  # type: ignore[misc, assignment]
    rank = os.environ["RANK"]
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = os.open(Path(os.environ["EVERSTEP_BENCH_DIR"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = 0

    def stepped(*_: Any) -> None:  # noqa: ANN401
        nonlocal step
        os.write(log, f"{restart} {rank} {step} {time.monotonic():.6f} {os.getpid()}\n".encode())
        step += 1

    register_optimizer_step_post_hook(stepped)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
