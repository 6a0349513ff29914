"""Runs a training script, unchanged, and writes the time of every optimizer step: the clock of overhead.py.

    python timed.py SCRIPT [ARGS...]

Works under every launcher alike. Lines are those of recovery_script.py with two more fields, both since the process
began: its CPU seconds, and the seconds that the training thread spent inside everstep.State between steps. With
EVERSTEP_BENCH_SNAPSHOTS=off the script gets a counter instead of everstep.State, which is what a State is outside
`everstep run`: the difference between off and on is what the snapshots cost.
"""

import os
import runpy
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

import everstep


class Counter:
    """everstep.State without snapshots."""

    resumed = False
    step = -1

    def __init__(self, **objects: object) -> None:
        pass

    def steps(self, num_steps: int) -> Iterator[int]:
        for step in range(num_steps):
            yield step
            self.step = step


class Clock:
    """Seconds spent inside State's loop, so far."""

    loop_s = 0.0

    def of(self, kind: Any) -> type:  # noqa: ANN401
        """The same class, with its loop timed."""
        clock = self

        class Timed(kind):  # type: ignore[misc]
            def steps(self, num_steps: int) -> Iterator[int]:
                steps = super().steps(num_steps)
                while True:
                    began = time.perf_counter()
                    step = next(steps, None)
                    clock.loop_s += time.perf_counter() - began
                    if step is None:
                        return
                    yield step

        return Timed


def main() -> None:
    clock = Clock()
    without = os.environ.get("EVERSTEP_BENCH_SNAPSHOTS") == "off"
    everstep.State = clock.of(Counter if without else everstep.State)  # type: ignore[misc, assignment]
    rank = os.environ["RANK"]
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    log = os.open(Path(os.environ["EVERSTEP_BENCH_DIR"]) / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    step = 0

    def stepped(*_: Any) -> None:  # noqa: ANN401
        nonlocal step
        clocks = f"{time.process_time():.6f} {clock.loop_s:.6f}"
        os.write(log, f"{restart} {rank} {step} {time.monotonic():.6f} {os.getpid()} {clocks}\n".encode())
        step += 1

    register_optimizer_step_post_hook(stepped)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
