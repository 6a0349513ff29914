"""The lines of one log, with what many readers ask of each line prepared for all of them at once. Pure.

Most logs hold nothing for most readers. To ask a text of megabytes for a word costs less than to ask ten of its lines.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

from everstep.analyzer.reading.log_lines import read_rank


class Lines:
    def __init__(self, lines: Iterable[str]) -> None:
        self.lines: Sequence[str] = lines if isinstance(lines, list | tuple) else list(lines)

    @cached_property
    def text(self) -> str:
        return "\n".join(self.lines)

    @cached_property
    def lowered_text(self) -> str:
        return self.text.lower()

    @cached_property
    def lowered(self) -> Sequence[str]:
        """Each line in lower case."""
        lowered = self.lowered_text.split("\n")
        return lowered if len(lowered) == len(self.lines) else [line.lower() for line in self.lines]

    @cached_property
    def ranks(self) -> Sequence[int | None]:
        """The rank that each line names."""
        if "rank" not in self.lowered_text:
            return [None] * len(self.lines)
        lines, lowered = self.lines, self.lowered
        return [read_rank(lines[number], text) if "rank" in text else None for number, text in enumerate(lowered)]

    def has(self, *words: str) -> bool:
        """Whether any of the words stands in any line, as it is written."""
        return any(word in self.text for word in words)

    def says(self, *words: str) -> bool:
        """Whether any of the words, given in lower case, stands in any line, however the line is written."""
        return any(word in self.lowered_text for word in words)

    def numbers_with(self, *words: str) -> list[int]:
        """The numbers of the lines in which any of the words stands, as it is written."""
        return _with_any(self.lines, words)

    def numbers_of(self, *words: str) -> list[int]:
        """Return the numbers of the lines in which any of the words, given in lower case, stands, however the lines are
        written."""
        return _with_any(self.lowered, words)


def _with_any(lines: Sequence[str], words: tuple[str, ...]) -> list[int]:
    first, *others = words
    return [
        number
        for number, line in enumerate(lines)
        if first in line or (others and any(word in line for word in others))
    ]
