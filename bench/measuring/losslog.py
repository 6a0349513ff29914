"""The loss curve that examples/train_gpt.py wrote, and whether two curves are the same to the last bit.

Answers from the files' text: losses are compared as they were written, never rounded. Called by kills.py.
"""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How an interrupted curve differs from an uninterrupted one."""

    num_steps: int  # of the uninterrupted run
    missing: tuple[int, ...]
    different: tuple[int, ...]  # any of the values written for this step is another one
    redone: int  # steps that were written more than once

    @property
    def identical(self) -> bool:
        return self.num_steps > 0 and not self.missing and not self.different


def parse_line(line: str) -> tuple[int, str] | None:
    """Step and loss as text, from "step loss" or an object with both; None for a torn line."""
    if line.startswith("{"):
        try:
            entry = json.loads(line)
            return int(entry["step"]), str(entry["loss"])
        except (ValueError, KeyError, TypeError):
            return None
    fields = line.replace(",", " ").split()
    if len(fields) != 2 or not fields[0].isdecimal():
        return None
    return int(fields[0]), fields[1]


class LossLog:
    """Every loss ever seen for every step, in order. `read` takes what is new; only whole lines count.

    A restarted rank cuts the lines of the steps that it does again, so the file may get shorter. What was cut is
    remembered here: a redone step must have the same loss, too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: list[bytes] = []  # of the file, as it was at the last look
        self._seen = (0, 0)
        self.losses: dict[int, list[str]] = {}
        self.num_torn = 0

    def read(self) -> int:
        """The number of new losses."""
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return 0
        if (stat.st_size, stat.st_mtime_ns) == self._seen:
            return 0
        self._seen = (stat.st_size, stat.st_mtime_ns)
        data = self._path.read_bytes()
        lines = data[: data.rfind(b"\n") + 1].split(b"\n")[:-1]
        fresh = lines[_num_common(self._lines, lines) :]
        self._lines = lines
        return sum(self._take(line) for line in fresh)

    def _take(self, line: bytes) -> bool:
        parsed = parse_line(line.decode(errors="replace"))
        if parsed is None:
            self.num_torn += 1
            return False
        self.losses.setdefault(parsed[0], []).append(parsed[1])
        return True

    @property
    def last_step(self) -> int:
        return max(self.losses, default=-1)


def compare(uninterrupted: Mapping[int, list[str]], interrupted: Mapping[int, list[str]]) -> Comparison:
    """A step that the uninterrupted run does not have counts as different."""
    wanted = {step: values[-1] for step, values in uninterrupted.items()}
    different = {step for step, values in interrupted.items() if any(value != wanted.get(step) for value in values)}
    return Comparison(
        num_steps=len(wanted),
        missing=tuple(sorted(set(wanted) - set(interrupted))),
        different=tuple(sorted(different)),
        redone=sum(len(values) - 1 for values in interrupted.values()),
    )


def _num_common(before: list[bytes], now: list[bytes]) -> int:
    """Length of the common beginning."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(before, now, strict=False))
    return sum(1 for _ in pairs)
