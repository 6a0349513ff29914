"""Losses and gradient norms from the log files of ranks that do not report them themselves.

Reads what was added since the last look, at most `MAX_BYTES` per file: of a rank that writes faster only the newest is
looked at. It knows nothing of formats: `analyzer.reading.log_lines` does. Called by `observing`, twice a second.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from everstep.analyzer.reading.log_lines import read_point
from everstep.linux.regular import regular
from everstep.model.facts import NumberPoint

MAX_BYTES = 64 << 10
MAX_POINTS = 64
"""The newest points to keep per look and file; no job trains a hundred steps in half a second and logs each of them."""


class LogTail:
    """New complete lines of one file. A file that is not there yet has none; one that was cut is read anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._rest = b""
        self.num_skipped_bytes = 0

    def lines(self) -> Iterator[str]:
        data = self._new_bytes()
        if not data:
            return
        whole, end, rest = (self._rest + data).replace(b"\r", b"\n").rpartition(b"\n")
        self._rest = rest[-MAX_BYTES:]
        if end:
            for line in whole.split(b"\n"):
                yield line.decode(errors="replace")

    def _new_bytes(self) -> bytes:
        try:
            size = os.stat(self._path).st_size  # noqa: PTH116 - twice a second for each rank
            if size == self._at:
                return b""
            if size < self._at:
                self._at, self._rest = 0, b""
            if size - self._at > MAX_BYTES:
                self.num_skipped_bytes += size - MAX_BYTES - self._at
                self._at, self._rest = size - MAX_BYTES, b""
            with regular(self._path) as file:
                file.seek(self._at)
                data = file.read(MAX_BYTES)
        except OSError:
            return b""
        self._at += len(data)
        return data


class LogPoints:
    """The points of one rank: from its output and its errors (progress bars and loggers write there)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._tails = [LogTail(path) for path in dict.fromkeys(paths)]

    def new(self) -> tuple[NumberPoint, ...]:
        return tuple(point for tail in self._tails for point in _newest(tail.lines()))


def _newest(lines: Iterable[str]) -> list[NumberPoint]:
    """Read from the end, so that a flood costs no more than what is taken of it."""
    points: list[NumberPoint] = []
    for line in reversed(list(lines)):
        point = read_point(line)
        if point is not None:
            points.append(point)
            if len(points) == MAX_POINTS:
                break
    return points[::-1]
