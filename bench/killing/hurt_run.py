"""What every bench that hurts a run does alike: the criteria that hold whatever was killed, and its answer."""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console

from killing.strikes import StalledError
from measuring.figures import NEVER
from measuring.launched import adopt_orphans, end_on_sigterm
from measuring.losslog import Comparison


class Recovered(Protocol):
    """Of one kill."""

    @property
    def recovered_s(self) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HurtRun:
    """What a whole run showed."""

    planned: int
    comparison: Comparison
    same_final: bool | None  # None: one of the runs wrote none
    exit_code: int | None
    finished: str | None
    holes: int
    leftover: tuple[int, ...]
    stalled: str = ""

    def went_on(self, outcomes: Sequence[Recovered]) -> bool:
        """Every kill was recovered from, to the last bit, and nothing was left behind."""
        return (
            len(outcomes) == self.planned
            and all(one.recovered_s != NEVER for one in outcomes)
            and self.comparison.identical
            and self.same_final is True
            and self.exit_code == 0
            and not self.holes
            and not self.leftover
        )


class Judged(Protocol):
    @property
    def passed(self) -> bool: ...


V = TypeVar("V", bound=Judged)


def answer(
    args: argparse.Namespace,
    run: Callable[[Path, Console], V],
    report: Callable[[V], str],
    document: Callable[[V, argparse.Namespace], dict[str, object]],
) -> int:
    """Run it in a folder that goes (or stays: --keep), print and write (--json) what it showed; the exit code."""
    adopt_orphans()
    end_on_sigterm()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        try:
            verdict = run(args.keep or Path(scratch), console)
        except StalledError as error:
            console.print(f"the uninterrupted run failed: {error}", soft_wrap=True)
            return 1
    print(report(verdict))
    if args.json is not None:
        args.json.write_text(json.dumps(document(verdict, args), indent=1) + "\n")
    return 0 if verdict.passed else 1
