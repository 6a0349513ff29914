"""A log file of one rank, or of all ranks with a prefix per line: last step, losses, timeouts, last words.

Reads the beginning and the end of a large file and leaves the middle out: what matters in a hang is at the end.
"""

from collections import defaultdict
from typing import BinaryIO

import msgspec

from everstep.analyzer.numbers.series import Point
from everstep.analyzer.reading.log_lines import read_point, read_rank, read_step, read_timeout

HEAD_BYTES = 256 << 10
TAIL_BYTES = 2 << 20
WHOLE_BYTES = HEAD_BYTES + TAIL_BYTES
"""A log of at most this much is read whole."""

MAX_POINTS = 5_000
LAST_LINES = 5


class LogFacts(msgspec.Struct, kw_only=True):
    """What the lines of one rank said."""

    last_step: int | None = None
    waits_at: tuple[str, int] | None = None
    points: list[Point] = msgspec.field(default_factory=list)
    last_lines: list[str] = msgspec.field(default_factory=list)

    def add(self, line: str) -> None:
        point, step, timeout = read_point(line), read_step(line), read_timeout(line)
        if point is not None and len(self.points) < MAX_POINTS:
            self.points.append(point)
        if step is not None:
            self.last_step = step
        if timeout is not None and timeout.seq is not None:
            self.waits_at = timeout.op, timeout.seq
        self.last_lines = [*self.last_lines[1 - LAST_LINES :], line[:300]]


def read_lines(file: BinaryIO, size: int) -> list[str]:
    """All lines, or those of the head and the tail. What a progress bar wrote over itself is one line, as in an
    editor."""
    if size <= WHOLE_BYTES:
        data = file.read(WHOLE_BYTES)
    else:
        head = file.read(HEAD_BYTES)
        file.seek(size - TAIL_BYTES)
        # Cut lines at both sides of the hole are dropped.
        data = head.rpartition(b"\n")[0] + b"\n" + file.read(TAIL_BYTES).partition(b"\n")[2]
    return lines_of(data)


def lines_of(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n")
    return lines if lines[-1] else lines[:-1]


def written_over(lines: list[str]) -> list[str]:
    """Each text that stood in a line for a time, as a line of its own."""
    return [part for line in lines for part in line.split("\r")]


def facts_by_rank(lines: list[str], rank: int | None) -> dict[int | None, LogFacts]:
    """Lines by the rank that they name, else by the file's; None is "rank unknown"."""
    facts: defaultdict[int | None, LogFacts] = defaultdict(LogFacts)
    for line in lines:
        if line.strip():
            named = read_rank(line) if rank is None else None
            facts[rank if named is None else named].add(line)
    return dict(facts)
