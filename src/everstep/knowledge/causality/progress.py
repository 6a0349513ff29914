"""Continued training: the step numbers that a log shows, and whether enough of them stand after a line.

What stands before later training steps did not end the run. A rank that dies lets the others finish a step or two, so a
few different numbers are required. Only text with an open finding is looked at. Pure; called by `matcher`.
"""

from collections.abc import Iterator
from itertools import islice

import re2

NUM_STEPS = 4
"""Different step numbers after a line that prove that the job continued. Peers of a dead rank show two at most."""
_SEGMENT_BYTES = 16 << 10
_MARKS_PER_SEGMENT = 8
_NUMBER = rb"['\"]?\s{0,3}[:=#]?\s{0,8}(\d{1,12})\b"


def _compiled() -> "re2._Regexp":
    chosen = re2.Options()
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.never_nl = True
    return re2.compile(
        rb"(?i)(?:\b(?:global[_ ]?step|train[_ ]?step|step|iter(?:ation)?|update|num_updates|epoch|samples_count)"
        + _NUMBER
        + rb"|\|\s{0,4}(\d{1,12})/\d{1,12} \[\d)",
        chosen,
    )


_STEP = _compiled()


def marks(data: bytes) -> Iterator[tuple[int, int]]:
    """Offset and number of steps that the text shows: the first few of each segment, which is enough to see a job run,
    and all of the last one, where it may have ended."""
    for begin in range(0, len(data), _SEGMENT_BYTES):
        end = min(len(data), begin + _SEGMENT_BYTES)
        found = _STEP.finditer(data[begin:end])
        for match in found if end == len(data) else islice(found, _MARKS_PER_SEGMENT):
            yield begin + match.start(), int(match[1] or match[2])


class Watch:
    """One open finding of one stream: which different steps were seen after its last line."""

    __slots__ = ("offset", "steps")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.steps: set[int] = set()

    def has_moved_on(self, seen: list[tuple[int, int]]) -> bool:
        for offset, step in seen:
            if offset > self.offset:
                self.steps.add(step)
                if len(self.steps) >= NUM_STEPS:
                    return True
        self.offset = -1
        return False
