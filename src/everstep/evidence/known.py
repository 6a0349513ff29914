"""Asks the signatures about the logs of a folder, all logs together: root before cascade."""

import dataclasses
import re

from everstep.analyzer.observations.known import Known
from everstep.knowledge.causality.finished import is_teardown
from everstep.knowledge.causality.linking import WENT_ON_LINES
from everstep.knowledge.causality.ranking import choose_verdict, rank_findings
from everstep.knowledge.findings import Finding
from everstep.knowledge.lines import accused_in
from everstep.knowledge.live import built_in
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.signature import Action, Role, Severity

MAX_KNOWN = 12
HOST_OOM = "host_oom"
LAST_LINES = 3
"""So near to the end of a log a traceback ended the program, also where no launcher says so."""

_TABLE = re.compile(
    r"Root Cause \(first observed failure\): rank \d+ exitcode : 1 |.{0,80}\bRank \d+ crashed with exit code 1\b"
)
"""A launcher's word on a rank that ended as an exception ends a program."""

_AHEAD = re.compile(
    r"^(?:.{0,60}\d{1,3}%\|[^|]{0,200}\|[^\]]{0,100}\]\s{0,4}|[\w/.-]{1,100}\.(?:cpp|cc|cu|py):\d{1,6}\] )(?=\S)"
)
"""What a quoted line begins with and says nothing: a progress bar that was not ended, the file that logged it."""
_RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*\w*(?:Error|Exception): ")
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
        if cause is None and not told:
            told = [finding for finding in ordered if _is_worth_watching(finding)][:1]
        first = [_known(_with_rank(cause, ordered), is_cause=True)] if cause is not None else []
        has_ended = any(is_consequence(finding) for finding in told)
        if has_ended:
            told = [*told[: MAX_KNOWN - 1], *[finding for finding in ordered if _is_starved(finding)][:1]]
        return (*first, *(_known(_with_rank(f, ordered), has_ended=has_ended) for f in told[:MAX_KNOWN]))


def _is_worth_watching(finding: Finding) -> bool:
    """Whether it is of small weight, and nothing in the log is against it: the best there is where nothing else is."""
    is_small = finding.severity is Severity.INFO and finding.role in (Role.ROOT, Role.EITHER)
    is_said = finding.action is Action.MONITOR and not finding.note
    return is_small and is_said and not (finding.moved_on or finding.is_calm or finding.finished_line)


def _is_starved(finding: Finding) -> bool:
    """Whether a program noted before its end that the host had hardly any memory left."""
    return finding.klass == HOST_OOM and finding.severity is Severity.INFO and not finding.moved_on


def _with_rank(finding: Finding, ordered: list[Finding]) -> Finding:
    """The finding with the rank that another line has for it. A message that holds another rank against its speakers is
    about that rank. Old launchers do not tag lines: then the same error is said again with a tag, or the launcher's
    table names the rank that ended with an exception."""
    accused = accused_in(finding.text)
    if accused is not None:
        alone = len(finding.ranks) < 2 and finding.role is Role.ROOT  # one against one: it may be either
        return dataclasses.replace(finding, ranks=() if alone else (accused,))
    if finding.ranks or finding.from_kernel:
        return finding
    again: tuple[int, ...] = next((f.ranks for f in ordered if f.code == finding.code and len(f.ranks) == 1), ())
    if not again and (finding.is_exception or _RAISED.match(finding.text)):
        tables = {f.ranks for f in ordered if f.source == finding.source and _TABLE.match(f.text)}
        again = tables.pop() if len(tables) == 1 else ()
    return dataclasses.replace(finding, ranks=again)


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
        do=signature.do if signature is not None else "",
        component=finding.component,
        text=_AHEAD.sub("", finding.text)[:300],
        source=finding.source,
        line=finding.line,
        ranks=finding.ranks[:64],
        place=finding.place,
        is_root=finding.role is Role.ROOT,
        is_consequence=is_consequence(finding),
        is_small=_is_worth_watching(finding),
        is_supposed=is_supposed(finding, has_ended=has_ended),
        is_cause=is_cause,
        finished_line=finding.finished_line if is_teardown(finding) else 0,
    )
