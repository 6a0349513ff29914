"""Alerts from lines of the kernel log: `knowledge` recognises each line, and separates causes from consequences.

Unknown lines go to the review queue and are never an alert. Not thread-safe; `agent.senses.ears` owns it.
"""

import dataclasses
from collections.abc import Callable, Sequence

from everstep.errors import EverstepError
from everstep.knowledge.causality.ranking import AFTER_WINDOW_S, rank_findings
from everstep.knowledge.engine import Engine
from everstep.knowledge.findings import Finding
from everstep.knowledge.kept import Kept
from everstep.knowledge.loading import Base, load_base
from everstep.knowledge.matcher import Matcher
from everstep.knowledge.review import ReviewQueue
from everstep.knowledge.signature import Action, Role, Severity
from everstep.model.components import KERNEL
from everstep.model.facts import Alert
from everstep.model.verdict import Blame
from everstep.probes.node.bounded import Bounded
from everstep.probes.node.kernel.kernel_lines import SOURCE
from everstep.probes.node.kernel.oom_lines import OUT_OF_MEMORY, oom_alert
from everstep.probes.node.kernel.strangers import strangers_among

REPEATS_S = 24 * 3600.0
"""Time for which Xid 13 and 31 are remembered: if the same GPU fails again, and no other, the machine is the cause."""
_CODE_OR_GPU = frozenset({"ES-G13", "ES-G31"})
_MAX_RECENT = 256
REVIEW_LIMIT_S = 1.0
"""The queue's file may be on the filesystem that hangs according to this very line."""

COMPONENTS = KERNEL | {"neuron", "npu", "storage", "xpu"}
"""Components that the kernel reports on. A line that looks like a Python error comes from a program that writes to the
kernel log."""


class KernelLog:
    """Turns lines into alerts. `rank_of`: the rank of a process on this node. `shared`: the same base, compiled for
    others of this process as well."""

    def __init__(
        self,
        base: Base,
        *,
        rank_of: Callable[[int], int | None] = lambda pid: None,
        queue: ReviewQueue | None = None,
        engine: Engine | None = None,
        shared: Kept[tuple[Base, Engine]] | None = None,
    ) -> None:
        made = None if engine is None else (base, engine)
        self._engine = shared or Kept(lambda: (base, Engine(base.signatures)), made=made)
        self._engine.get()  # load it now, not at the first line, which may report a fault
        self._rank_of = rank_of
        self._queue = queue
        self._bounded: Bounded[int] = Bounded()
        self._recent: list[Finding] = []
        self._num_read = 0

    def take(self, lines: Sequence[bytes], now: float, source: str = SOURCE) -> list[Alert]:
        """Alerts from these lines, cause first."""
        found = self._match(lines, now)
        unknown = [finding for finding in found if finding.role is Role.UNKNOWN]
        self._review(unknown)
        new = [f for f in found if f.role is not Role.UNKNOWN and f.component in COMPONENTS]
        strangers = {finding.seq: who for finding in new if (who := self._stranger(finding))}
        foreign = [finding for finding in new if finding.seq in strangers]
        settled = self._settle([finding for finding in new if finding.seq not in strangers], now)
        made = [self._alert(each, now, source, strangers.get(each.seq, "")) for each in (*settled, *foreign)]
        return [alert for alert in made if alert is not None]

    def _stranger(self, finding: Finding) -> str:
        """The foreign process that a line is about, if a program may be at fault and none of the run's processes is;
        else empty. Such a line does not concern our program, and does not count if the same device fails again."""
        if finding.blame != Blame.USER:
            return ""
        return strangers_among({each.pid for each in finding.occurrences}, self._rank_of)

    def _match(self, lines: Sequence[bytes], now: float) -> list[Finding]:
        """Findings of a batch. Each batch has its own matcher: a matcher folds repeated lines without end."""
        with self._engine.reading() as (base, engine):
            matcher = Matcher(base, now=now, engine=engine)
            matcher.may_prepare = False  # the agent must keep answering
            matcher.feed(SOURCE, b"\n".join(lines) + b"\n")
            findings = matcher.finish()
        if self._engine.is_large:
            self._engine.renew()
        out = []
        for finding in findings:
            self._num_read += 1
            happened = tuple(dataclasses.replace(o, at=now) for o in finding.occurrences)
            seq = self._num_read
            out.append(dataclasses.replace(finding, at=now, occurrences=happened, seq=seq, last_seq=seq))
        return out

    def _settle(self, new: list[Finding], now: float) -> list[Finding]:
        """Judge the new findings together with the recent ones, so that a consequence finds its cause."""
        mine = {finding.seq for finding in new}
        kept = [f for f in self._recent if now - (f.at or 0.0) <= _remembered_s(f)]
        self._recent = [*kept, *new][-_MAX_RECENT:]
        return [finding for finding in rank_findings([*kept, *new]) if finding.seq in mine]

    def _alert(self, finding: Finding, now: float, source: str, stranger: str) -> Alert | None:
        if finding.code in OUT_OF_MEMORY:
            return oom_alert(finding, now, source, self._rank_of)
        severity = severity_of(finding)
        if not severity:
            return None
        whose = f"; it is of {stranger}, no rank of this run" if stranger else ""
        return Alert(
            at=now,
            code=finding.code,
            sentence=f"{finding.title}{f' on {finding.subject}' if finding.subject else ''}{_because(finding)}{whose}",
            component=finding.component,
            blame=finding.blame,
            severity="warning" if stranger else severity,
            action=finding.action,
            role=finding.role,
            source=source,
            line=finding.text,
            device=finding.subject,
            count=finding.count,
        )

    def _review(self, unknown: Sequence[Finding]) -> None:
        if not unknown or self._queue is None:
            return
        queue = self._queue
        try:
            self._bounded.call("review queue", lambda: queue.add(unknown), REVIEW_LIMIT_S)
        except (EverstepError, OSError, TimeoutError):
            self._queue = None  # a disk that is full or hangs must not be tried again at every line


class LazyKernelLog:
    """A `KernelLog` that loads the signatures at its first line: most sources never produce a line."""

    def __init__(self) -> None:
        self._log: KernelLog | None = None

    def take(self, lines: Sequence[bytes], now: float, source: str) -> list[Alert]:
        self._log = self._log or KernelLog(load_base())
        return self._log.take(lines, now, source)


def severity_of(finding: Finding) -> str:
    """ "fault", "error" or "warning"; empty: not reported."""
    if finding.role is Role.RECOVERY:
        return ""
    if finding.severity is Severity.INFO:
        return "warning" if finding.action is Action.MONITOR else ""
    return str(finding.severity)


def _because(finding: Finding) -> str:
    if finding.explained_by:
        return f"; follows from {finding.explained_by}"
    return f"; {finding.note}" if finding.note else ""


def _remembered_s(finding: Finding) -> float:
    return REPEATS_S if finding.code in _CODE_OR_GPU else AFTER_WINDOW_S
