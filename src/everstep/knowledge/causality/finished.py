"""The program's own word that its training is over, and what only tears it down after that.

A job that has said so and does no step any more has not lost its training to what comes then: ranks that leave at
different times break each other's connections, a library aborts while it is unloaded, a process that does not end is
cancelled at its time limit. An exception, a lack of memory or space, and a fault of a machine stay what they are: the
program may still have had something to save. Pure; called by `matcher` and `ranking`.
"""

import dataclasses
import re
from collections.abc import Sequence

from everstep.knowledge.causality.progress import marks
from everstep.knowledge.findings import Finding
from everstep.knowledge.signature import Action, Role, Severity
from everstep.model.verdict import Blame

_LAST_WORDS = (
    (
        rb"(?i:training (?:job |run |loop |process |phase )?(?:is |was |has )?(?:been )?(?:now )?"
        rb"(?:successfully )?(?:complete|finished|done\b|over\b))"
    ),
    rb"(?i:(?:finished|completed|done) (?:the )?(?:model )?training\b)",
    rb"['\"]train_runtime['\"]",
    rb"`Trainer\.fit` stopped",
    rb"\"run_stop\".*\"status\": ?\"success\"",
    rb"exiting program (?:at|after) (?:iteration )?\d",
)
_FIRST_WORDS = (
    rb"(?i:\b(?:start|begin|resum|runn)ing (?:the )?(?:model )?training\b)",
    rb"(?i:\btraining (?:has )?(?:started|begun|starts|begins)\b)",
    rb"Setting OMP_NUM_THREADS environment variable for each process",
    rb"Starting elastic_operator with launch configs",
    rb"\bNCCL version \d",
)
LANDMARKS = _LAST_WORDS + _FIRST_WORDS
"""Where the screen has to stop. Few lines of a log have one of them."""
_SAID = re.compile(b"|".join(_LAST_WORDS))
_BEGINS = re.compile(b"|".join(_FIRST_WORDS))
_NOT_YET = re.compile(
    rb"(?i:(?:\b(?:not|until|till|when|once|if|unless|while|before|after|never|will|would|should|wait\w*|expect\w*|next"
    rb"|eta|estimat\w*|epoch|fold|stage)\b|\d ?%)[^.\]]{0,60}|\w\(\s*[rbf]?[\"'])$"
)
"""What stands before words about an end to come or of a part only, or that are printed source."""
_PART = re.compile(
    rb"(?i:d?[ \"']{0,3}(?:(?:for|of|in|on)?:? ?(?:this |the )?"
    rb"(?:epoch|step|iter|phase|stage|fold|batch|\d+(?:\.\d+)? ?%)"
    rb"|:? ?(?:false|no)\b|with (?:an? |\d+ )?(?:error|failure|exception)|\(?(?:exit )?(?:code|status):? [1-9]))"
)
"""What stands behind them when only a part was done, or when it went wrong."""
_AFTER_IT_IS = re.compile(rb"\[after training is done\]")
_STEPS_AGAIN = 2
"""Different step numbers that prove that it trains again. The last line of a run may repeat its last step."""
_LOOKED_AT_BYTES = 32 << 10
"""So much behind the word, and so much before a later line, shows whether it trains: steps stand close together."""

_CRASHES = frozenset({"process_aborted", "segfault", "bus_error_rank", "process_lost"})
_OF_ENDS = frozenset({"nccl", "pytorch_dist", "gloo", "network", "rdma", "process", "scheduler", "unknown"})
"""Components whose lines are about processes that lose each other, and about what ends them."""
_OF_OTHERS = frozenset({Blame.OPERATOR, Blame.SCHEDULER})


def says_so(message: bytes) -> bool:
    """Whether a program says in this line that its training is over."""
    found = _SAID.search(message)
    if found is None or _PART.match(message, found.end()):
        return False
    return _AFTER_IT_IS.search(message) is not None or _NOT_YET.search(message, 0, found.start()) is None


class Finish:
    """The last such word of one stream, and whether it still holds."""

    __slots__ = ("_offset", "_steps", "line")

    def __init__(self) -> None:
        self.line = 0  # where it was said; 0: not, or training began again
        self._offset = 0
        self._steps: set[float] = set()

    def read(self, message: bytes, line: int, end: int) -> None:
        """A line that the screen stopped at; `end`: where it ends in the data at hand."""
        if says_so(message):
            self.line, self._offset, self._steps = line, end, set()
        elif self.line and _BEGINS.search(message):
            self.line = 0

    def line_before(self, data: bytes, end: int) -> int:
        """The line in which it was said, if no training stands between that and `end`; else 0."""
        begin = self._offset
        if self.line and end > begin:
            self._offset = end
            middle = min(end, begin + _LOOKED_AT_BYTES)
            self._look(data[begin:middle])
            self._look(data[max(middle, end - _LOOKED_AT_BYTES) : end])
        return self.line

    def next_data(self, data: bytes) -> None:
        """All of this was read; offsets begin anew."""
        self.line_before(data, len(data))
        self._offset = 0

    def _look(self, text: bytes) -> None:
        for _, step in marks(text):
            self._steps.add(step)
            if len(self._steps) >= _STEPS_AGAIN:
                self.line = 0
                return


def judge_teardown(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; what only came with the end of a finished program made information."""
    return [_information(f) if f.finished_line and _tears_down(f) else f for f in findings]


def is_teardown(finding: Finding) -> bool:
    """Whether this is what `judge_teardown` made information."""
    return bool(finding.finished_line) and finding.note == _note(finding)


def _tears_down(finding: Finding) -> bool:
    if finding.from_kernel or finding.severity is Severity.INFO or finding.role is Role.RECOVERY:
        return False
    if finding.blame in _OF_OTHERS:
        return True
    if finding.is_exception or finding.blame in (Blame.MACHINE, Blame.STORAGE):
        return False
    return finding.klass in _CRASHES or finding.component in _OF_ENDS


def _information(finding: Finding) -> Finding:
    return dataclasses.replace(finding, severity=Severity.INFO, action=Action.IGNORE, note=_note(finding))


def _note(finding: Finding) -> str:
    return f"the program had said in line {finding.finished_line} that its training was over"
