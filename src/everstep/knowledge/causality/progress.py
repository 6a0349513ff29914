"""Continued training: the step numbers that a log shows, and whether enough of them stand after a line.

What stands before later training steps did not end the run. A rank that dies lets the others finish a step or two, so a
few different numbers are required. Only text with an open finding is looked at. Pure; called by `matcher`.
"""

from collections.abc import Iterator
from itertools import islice

import re2

NUM_STEPS = 4
"""Different step numbers after a line that prove that the job continued. Peers of a dead rank show two at most."""
NUM_STEPS_OF_PROBE = 1
"""The same after a line that programs print while they try something out: it is one that ended nothing."""
_SEGMENT_BYTES = 16 << 10
_MARKS_PER_SEGMENT = 8
_NUMBER = rb"['\"]?\s{0,3}[:=#]?\s{0,8}(\d{1,12}(?:\.\d{1,6})?)\b"


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


def marks(data: bytes) -> Iterator[tuple[int, float]]:
    """Offset and number of steps that the text shows, or of parts of an epoch: the first few of each segment, which is
    enough to see a job run, and all of the last one, where it may have ended."""
    for begin in range(0, len(data), _SEGMENT_BYTES):
        end = min(len(data), begin + _SEGMENT_BYTES)
        found = _STEP.finditer(data[begin:end])
        for match in found if end == len(data) else islice(found, _MARKS_PER_SEGMENT):
            yield begin + match.start(), float(match[1] or match[2])


class Watch:
    """One open finding of one stream: which different steps were seen after its last line."""

    __slots__ = ("needed", "offset", "steps")

    def __init__(self, offset: int, *, is_probe: bool = False) -> None:
        self.offset = offset
        self.needed = NUM_STEPS_OF_PROBE if is_probe else NUM_STEPS
        self.steps: set[float] = set()

    def has_moved_on(self, seen: list[tuple[int, float]]) -> bool:
        for offset, step in seen:
            if offset > self.offset:
                self.steps.add(step)
                if len(self.steps) >= self.needed:
                    return True
        self.offset = -1
        return False
