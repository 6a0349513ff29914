"""A run that is watched through its run directory: the generations, and the steps that ranks have printed."""

import re
import time
from collections.abc import Callable
from pathlib import Path

STEP = re.compile(r"step (\d+) ([\d.]+)")


class Watched:
    """One rank per node. A subclass sets `run_dir` and `num_ranks`, and says with `said` what the run has said."""

    run_dir: Path
    num_ranks: int

    def said(self) -> str:
        raise NotImplementedError

    def generation(self) -> int:
        return max((int(path.name[4:]) for path in self.run_dir.glob("logs/gen-*")), default=-1)

    def steps(self, generation: int, rank: int) -> list[tuple[int, float]]:
        """Number and time of each."""
        path = self.run_dir / f"logs/gen-{generation}/rank-{rank}/stdout.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return [(int(found[1]), float(found[2])) for found in map(STEP.fullmatch, text.splitlines()) if found]

    def all_stepped(self, generation: int, number: int = 1) -> bool:
        return all(len(self.steps(generation, rank)) >= number for rank in range(self.num_ranks))

    def until(self, what: str, condition: Callable[[], bool], limit_s: float = 240.0) -> None:
        ends_at = time.monotonic() + limit_s
        while not condition():
            if time.monotonic() > ends_at:
                raise SystemExit(f"never came: {what}\n{self.said()[-4000:]}")
            time.sleep(0.02)
