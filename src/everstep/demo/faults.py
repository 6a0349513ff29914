"""The faults of the demo: what happens at which step, and how it is caused (`everstep drill`, as anyone could)."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    at_step: int
    drill: tuple[str, ...]
    announces: str


def plan_faults(num_steps: int, num_ranks: int) -> list[Fault]:
    """A killed rank, an exception in a rank, a killed controller, spread over the run."""
    quarter = num_steps // 4
    return [
        Fault(quarter, ("kill-rank", str(num_ranks - 1)), f"kill -9 of rank {num_ranks - 1}"),
        Fault(2 * quarter, ("raise", "0"), "an exception in rank 0"),
        Fault(3 * quarter, ("kill-controller",), "kill -9 of the controller"),
    ]


class Drill:
    """One `everstep drill` in the background."""

    def __init__(self, fault: Fault, run_dir: Path) -> None:
        self.fault = fault
        argv = [sys.executable, "-P", "-m", "everstep", "drill", *fault.drill, "--run", str(run_dir), "--json"]
        self._process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def result(self) -> str | None:
        """One line when it is over, None before."""
        if self._process.poll() is None:
            return None
        out, err = self._process.communicate()
        try:
            told = json.loads(out)
        except ValueError:
            return f"drill failed: {err.strip() or out.strip()}"
        figures = []
        if told["recover_s"] is not None:
            figures.append(f"every rank stepping again {told['recover_s']:.2f} s later")
        if told["lost_steps"] is not None:
            figures.append(f"{told['lost_steps']} steps lost")
        return ", ".join([f"{'✓' if told['passed'] else '✗'} {told['got']}", *figures])

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
