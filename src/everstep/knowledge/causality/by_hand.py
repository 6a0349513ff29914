"""Jobs that were ended by hand: whether the hand was the cause, or came when something had failed already.

A user who sees a job stand or fail interrupts it, and a launcher whose rank has failed cancels the rest. So a
cancellation, an interrupt or a signal is only the cause where nothing failed before it, and the scheduler gives no
other reason. Pure; called by `ranking`.
"""

import dataclasses
import re
from collections.abc import Sequence

from everstep.knowledge.findings import Finding
from everstep.knowledge.signature import Action, Role, Severity
from everstep.model.verdict import Blame

_TASK_EXIT = "ES-SC05"
_FOLLOWS = frozenset({"ES-TD11", "ES-TD12", "ES-TD13", _TASK_EXIT, "ES-PY17"})
"""Lines in which a launcher or a scheduler reports how the processes ended that it was asked to end."""
_ON_ITS_OWN = re.compile(r"Exited with exit code (?!1(?:2[89]|3\d|4\d)\b)|: (?:Aborted|Bus error|Segmentation)")
"""A task that ended so, before it was ended by hand, failed: 128 and above is the shell's code for a signal."""


def judge_hands(findings: Sequence[Finding]) -> list[Finding]:
    """The findings; an end by hand made information where it was not the first thing to go wrong."""
    failures = [f for f in findings if _is_failure(f)]
    return [_judged(f, failures) if f.blame is Blame.OPERATOR else f for f in findings]


def _judged(hand: Finding, failures: Sequence[Finding]) -> Finding:
    if hand.severity is Severity.INFO:
        return hand
    why = "training continued after it" if hand.moved_on else ""
    first = next((f for f in failures if f.blame is Blame.SCHEDULER or _stands_before(f, hand)), None)
    if first is not None:
        why = f"{first.code} explains it"
    if not why:
        return hand
    return dataclasses.replace(hand, severity=Severity.INFO, action=Action.IGNORE, note=why)


def _is_failure(finding: Finding) -> bool:
    if finding.blame is Blame.OPERATOR or finding.severity is Severity.INFO:
        return False
    if finding.code in _FOLLOWS:
        return finding.code == _TASK_EXIT and _ON_ITS_OWN.search(finding.text) is not None
    if finding.role is Role.UNKNOWN:
        return finding.family == "traceback"
    return finding.role is not Role.RECOVERY and not finding.moved_on


def _stands_before(failure: Finding, hand: Finding) -> bool:
    if failure.at is not None and hand.at is not None and failure.at != hand.at:
        return failure.at < hand.at
    if failure.source == hand.source:
        return failure.seq < hand.seq
    return failure.is_exception or failure.role is Role.ROOT
