"""A log file of one rank, or of all ranks with a prefix per line: last step, losses, timeouts, last words.

Reads the beginning and the end of a large file and leaves the middle out: what matters in a hang is at the end.
"""

from collections import defaultdict
from itertools import islice
from typing import BinaryIO

import msgspec

from everstep.analyzer.numbers.series import Point
from everstep.analyzer.observations.claims import Claims
from everstep.analyzer.reading import pasted_stacks
from everstep.analyzer.reading.lines import Lines
from everstep.analyzer.reading.log_lines import read_point, read_step, read_timeout
from everstep.analyzer.reading.tool_text import ToolText

HEAD_BYTES = 256 << 10
TAIL_BYTES = 2 << 20
WHOLE_BYTES = HEAD_BYTES + TAIL_BYTES
"""A log of at most this much is read whole."""

MAX_POINTS = 5_000
LAST_LINES = 5


class LogFacts(msgspec.Struct, kw_only=True):
    """Facts from the log lines of one rank."""

    last_step: int | None = None
    waits_at: tuple[str, int] | None = None
    points: list[Point] = msgspec.field(default_factory=list)
    last_lines: list[str] = msgspec.field(default_factory=list)


class LogRead(msgspec.Struct, frozen=True, kw_only=True):
    """All that a log says but what the signatures know."""

    claims: Claims
    stacks: pasted_stacks.Found
    facts: tuple[tuple[int | None, LogFacts], ...]  # by rank; None: unknown


def read_log(lines: list[str], rank: int | None) -> LogRead:
    """`rank`: of the file, if its name says so."""
    log = Lines(written_over(lines))
    return LogRead(
        claims=ToolText(rank).read(log),
        stacks=pasted_stacks.find(log, rank),
        facts=tuple(facts_by_rank(log, rank).items()),
    )


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
    if not any("\r" in line for line in lines):
        return lines
    return [part for line in lines for part in line.split("\r")]


def facts_by_rank(log: Lines, rank: int | None) -> dict[int | None, LogFacts]:
    """Lines by the rank that they name, else by the file's; None is "rank unknown"."""
    numbers: defaultdict[int | None, list[int]] = defaultdict(list)
    spoken = log.ranks if rank is None else [rank] * len(log.lines)
    for number, (line, named) in enumerate(zip(log.lines, spoken, strict=True)):
        if line and not line.isspace():
            numbers[named].append(number)
    return {named: _facts(log, which) for named, which in numbers.items()}


def _facts(log: Lines, numbers: list[int]) -> LogFacts:
    """Return the facts from the lines of one rank. Facts that are wanted only once, and last, are looked for from the
    end."""
    lines, lowered = log.lines, log.lowered
    points = (
        point
        for number in numbers
        if ("loss" in (low := lowered[number]) or "grad" in low or "gnorm" in low)
        and (point := read_point(lines[number], low)) is not None
    )
    steps = (read_step(lines[number], lowered[number]) for number in reversed(numbers))
    facts = LogFacts(
        points=list(islice(points, MAX_POINTS)),
        last_step=next((step for step in steps if step is not None), None),
        last_lines=[lines[number][:300] for number in numbers[-LAST_LINES:]],
    )
    if log.has("imeout", "imed out"):
        timeouts = (read_timeout(lines[number]) for number in reversed(numbers))
        named = next((found for found in timeouts if found is not None and found.seq is not None), None)
        facts.waits_at = None if named is None or named.seq is None else (named.op, named.seq)
    return facts
