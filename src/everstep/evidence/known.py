"""Asks the signatures about the logs of a folder, all logs together: root before cascade."""

import re

from everstep.analyzer.observations.known import Known
from everstep.knowledge.causality.finished import is_teardown
from everstep.knowledge.causality.linking import WENT_ON_LINES
from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.live import built_in
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Role, Severity

MAX_KNOWN = 12
LAST_LINES = 3
"""So near to the end of a log a traceback ended the program, also where no launcher says so."""

_NUMBER = re.compile(r":\s*[-+]?[\d.,]+(?:[eE][-+]?\d+)?\s*%?$")
"""`MeanSquaredError: 0.12` is a result."""


class KnownLines:
    """Feed it logs, ask once at the end."""

    def __init__(self, now: float) -> None:
        self._now = now
        self._matcher: Matcher | None = None

    def add(self, path: str, rank: int | None, lines: list[str]) -> None:
        if self._matcher is None:
            base, engine = built_in()
            self._matcher = Matcher(base, now=self._now, engine=engine)
        self._matcher.feed(path, ("\n".join(lines) + "\n").encode("utf-8", "replace"))
        self._matcher.close(path)

    def found(self) -> tuple[Known, ...]:
        """The cause first, if there is one; nothing that is only information but what tore a finished program down."""
        if self._matcher is None:
            return ()
        ordered = rank_findings(self._matcher.finish())
        cause = choose_verdict(ordered).finding
        by_code: dict[str, Finding] = {}
        for finding in ordered:  # of several with one code the first, and the first that says its rank
            known = by_code.get(finding.code)
            if _says_something(finding) and (known is None or (finding.ranks and not known.ranks)):
                by_code[finding.code] = finding
        told = [f for f in by_code.values() if cause is None or f.code != cause.code]
        first = [_known(cause, is_cause=True)] if cause is not None else []
        has_ended = any(is_consequence(finding) for finding in told)
        return (*first, *(_known(finding, has_ended=has_ended) for finding in told[:MAX_KNOWN]))


def _says_something(finding: Finding) -> bool:
    if is_teardown(finding):
        return True
    return finding.severity is not Severity.INFO and finding.role is not Role.RECOVERY


def is_consequence(finding: Finding) -> bool:
    """Whether it only follows from something, and the log ends with it: no training, and not much else, after it."""
    if finding.role is not Role.CASCADE or finding.severity is Severity.INFO:
        return False
    return _stands_last(finding)


def is_supposed(finding: Finding, *, has_ended: bool) -> bool:
    """Whether it is an exception that no signature knows, and that ended the program.

    `has_ended`: a launcher reports an end. Else it must be the last that the log holds: programs go on after exceptions
    that they caught.
    """
    if finding.family != "traceback" or finding.severity is Severity.INFO or finding.is_handled:
        return False
    if not finding.is_exception and (finding.lines_after or _NUMBER.search(finding.text)):
        return False
    return (has_ended or finding.lines_after <= LAST_LINES) and _stands_last(finding)


def _stands_last(finding: Finding) -> bool:
    return not (finding.moved_on or finding.is_calm or finding.finished_line) and finding.lines_after <= WENT_ON_LINES


def _known(finding: Finding, *, is_cause: bool = False, has_ended: bool = False) -> Known:
    signature = built_in()[0].find(finding.code)
    return Known(
        code=finding.code,
        name=finding.klass,
        title=finding.title,
        blame=finding.blame,
        action=str(finding.action),
        confirm=signature.confirm if signature is not None else "",
        text=finding.text[:300],
        source=finding.source,
        line=finding.line,
        ranks=finding.ranks[:64],
        place=finding.place,
        is_root=finding.role is Role.ROOT,
        is_consequence=is_consequence(finding),
        is_supposed=is_supposed(finding, has_ended=has_ended),
        is_cause=is_cause,
        finished_line=finding.finished_line if is_teardown(finding) else 0,
    )
