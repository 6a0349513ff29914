"""Root before cascade: of everything that was found in an incident, which is the cause.

Pure. The order is decided by what a finding can be (its grade) and by when it happened, allowing for clocks that
disagree: a weaker finding must be that much earlier (its handicap) to be believed over a stronger one.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from everstep.knowledge.causality.by_hand import judge_hands
from everstep.knowledge.causality.finished import is_teardown, judge_teardown
from everstep.knowledge.causality.linking import link
from everstep.knowledge.findings import Finding, Occurrence
from everstep.knowledge.signature import GENERIC, Action, Role, Severity
from everstep.model.verdict import Blame

SKEW_S = 2.0
"""How much two clocks may disagree. NTP keeps them within milliseconds; hosts without it drift by seconds."""
EITHER_HANDICAP_S = 30.0
"""What may be cause or consequence yields to a cause that is reported up to so much later: logs are written late."""
UNKNOWN_HANDICAP_S = 60.0
_UNKNOWN_TRACEBACK = 4  # the grade up to which a finding can be a cause
AFTER_WINDOW_S = 120.0
"""Within this time of its known cause a line that can follow from it is a consequence."""
AGAIN_AFTER_S = 60.0
"""Xid 13 or 31 on the same GPU after so long is a second event, not the rest of the first."""

_ENDS = frozenset({"process_aborted", "segfault", "bus_error_rank"})
"""Classes of lines that say how a process ended. Whatever else can be a cause says more."""
_TALK = frozenset({"nccl", "pytorch_dist", "gloo"})
"""Components that report what a process noticed of others. What it noticed of itself explains that more often."""
_CODE_OR_GPU = ("ES-G13", "ES-G31")
_DRIVERS_VERDICT = ("ES-G154R", "ES-G154B", "ES-G154D")
_HARDWARE = frozenset(
    {"gpu", "nvswitch", "nvlink", "pcie", "disk", "host_memory", "cpu", "host", "npu", "gpu_amd", "power", "nic"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The cause, if one is among the findings, and why it is the one."""

    finding: Finding | None
    why: str


def rank_findings(
    findings: Sequence[Finding], *, skew_s: float = SKEW_S, end: str = "", of_process: bool = False
) -> list[Finding]:
    """All findings, cause first. Consequences name what explains them. `end`: the source that is the end's own report,
    if there is one. `of_process`: a process that failed is asked about, also where its training was over before."""
    asked = findings if of_process else judge_teardown(findings)
    settled = judge_hands(link(_apply_recoveries(_apply_after(_apply_repeats(asked))), end=end))
    known = [f.at for f in settled if f.at is not None and _grade(f) <= _UNKNOWN_TRACEBACK]
    first = min(known, default=None)
    ordered = _most_telling(sorted(settled, key=lambda f: _key(f, first, skew_s)), skew_s)
    if not ordered or _grade(ordered[0]) > 3:
        return ordered
    head = _with_drivers_verdict(ordered[0], ordered)
    rest = [_explained(f, head.code) for f in ordered[1:]]
    return [head, *rest]


def choose_verdict(ordered: Sequence[Finding]) -> Choice:
    """What `rank_findings` put first, unless it is only a consequence."""
    if not ordered:
        return Choice(None, "nothing was recognised")
    head = ordered[0]
    grade = _grade(head)
    torn = next((f for f in ordered if is_teardown(f)), None)
    if grade > _UNKNOWN_TRACEBACK and torn is not None:
        return Choice(None, f"the training was over (line {torn.finished_line}); then {torn.code}: {torn.text[:120]}")
    if grade > _UNKNOWN_TRACEBACK:
        return Choice(None, f"only consequences or harmless lines were found, first {head.code} ({head.title})")
    if grade == _UNKNOWN_TRACEBACK:
        return Choice(None, f"an unknown line stands first: {head.text[:120]}")
    others = sum(1 for f in ordered[1:] if f.explained_by == head.code)
    return Choice(head, f"{head.title}; explains {others} other findings" if others else head.title)


def _grade(finding: Finding) -> int:
    """0 hardware that names itself, 1 a named cause, 2 cause or consequence, 3 only how a process ended, 4 unknown
    exception, 5 consequence, 6 other unknown, 7 for information, 8 harmless or recovered."""
    if finding.role is Role.RECOVERY:
        return 8
    if finding.family == "traceback":
        return _UNKNOWN_TRACEBACK
    if finding.role is Role.UNKNOWN:
        return 6
    if finding.role is Role.CASCADE:
        return 7 if finding.severity is Severity.INFO else 5
    if finding.severity is Severity.INFO:
        return 7
    if finding.klass in _ENDS:
        return 3
    if finding.role is Role.EITHER or finding.specificity <= GENERIC:
        return 2
    if finding.blame is Blame.MACHINE and finding.component in _HARDWARE:
        return 0
    return 1


def _key(finding: Finding, first: float | None, skew_s: float) -> tuple[int, float, int, int]:
    grade = _grade(finding)
    if grade > _UNKNOWN_TRACEBACK:
        return grade, 1000.0 * bool(finding.explained_by) - finding.specificity, finding.seq, 0
    doubtful = EITHER_HANDICAP_S if finding.role is Role.EITHER else 2 * skew_s
    talk = grade == 2 and finding.component in _TALK
    handicap = (0.0, skew_s, 1.5 * doubtful if talk else doubtful, 2 * EITHER_HANDICAP_S, UNKNOWN_HANDICAP_S)[grade]
    if first is None:
        return 0, grade + 0.5 * talk, finding.seq, 0
    at = first if finding.at is None else finding.at
    return 0, at + handicap, grade, finding.seq


def _most_telling(ordered: list[Finding], skew_s: float) -> list[Finding]:
    """Of lines of one component about one moment, of which each may be cause or consequence, the one that says most
    comes first: a runtime's general complaint stands before its reason as often as behind it."""
    if not ordered or _grade(ordered[0]) != 2:
        return ordered
    head = ordered[0]
    same = [f for f in ordered if _grade(f) == 2 and f.component == head.component and f.source == head.source]
    rivals = [f for f in same if f.at is None or head.at is None or abs(f.at - head.at) <= skew_s]
    best = max(rivals, key=lambda f: f.specificity)
    return [best, *(f for f in ordered if f is not best)]


def _explained(finding: Finding, by: str) -> Finding:
    if 2 <= _grade(finding) <= 5 or (finding.role is Role.CASCADE):
        return dataclasses.replace(finding, explained_by=finding.explained_by or by)
    return finding


def _apply_repeats(findings: Sequence[Finding]) -> list[Finding]:
    """Xid 13 and 31: the code when several GPUs show it, the machine when one GPU shows it again."""
    by_gpu: dict[tuple[str, str], list[Finding]] = defaultdict(list)
    for finding in findings:
        if finding.code in _CODE_OR_GPU:
            by_gpu[(finding.source, finding.subject)].append(finding)
    if len(by_gpu) != 1:
        return list(findings)
    ((_, subject), group), *_ = by_gpu.items()
    if not _happened_again([o for f in group for o in f.occurrences]):
        return list(findings)
    note = f"the same GPU ({subject or 'unnamed'}) showed it again while no other GPU did"
    return [
        dataclasses.replace(f, blame=Blame.MACHINE, action=Action.DRAIN_AND_RESTART_NODE, note=note)
        if f in group
        else f
        for f in findings
    ]


def _happened_again(occurrences: Sequence[Occurrence]) -> bool:
    """Whether the lines are about two events: another process, or a long time in between."""
    if len({o.pid for o in occurrences if o.pid}) > 1:
        return True
    times = sorted(o.at for o in occurrences if o.at is not None)
    if times:
        return times[-1] - times[0] >= AGAIN_AFTER_S
    spots = [o.spot for o in occurrences if o.spot]
    return len(spots) > len(set(spots))


def _apply_after(findings: Sequence[Finding]) -> list[Finding]:
    """A line that is known to follow from another becomes its consequence when both are there."""
    out = []
    for finding in findings:
        cause = next((f for f in findings if f.code in finding.after and f is not finding and _near(f, finding)), None)
        if cause is not None:
            note = f"follows from {cause.code}"
            finding = dataclasses.replace(
                finding, role=Role.CASCADE, action=Action.FIND_ROOT, explained_by=cause.code, note=note
            )
        out.append(finding)
    return out


def _near(a: Finding, b: Finding) -> bool:
    if a.at is None or b.at is None:
        return True
    return abs(a.at - b.at) <= AFTER_WINDOW_S


def _apply_recoveries(findings: Sequence[Finding]) -> list[Finding]:
    """What was silent and answers again is no cause any more."""
    out = []
    for finding in findings:
        cancelled = next(
            (
                r
                for r in findings
                if finding.code in r.recovers
                and r.source == finding.source
                and r.subject == finding.subject
                and r.last_seq > finding.last_seq
            ),
            None,
        )
        if cancelled is not None:
            finding = dataclasses.replace(
                finding,
                role=Role.RECOVERY,
                severity=Severity.INFO,
                action=Action.IGNORE,
                note=f"recovered: {cancelled.code}",
            )
        out.append(finding)
    return out


def _with_drivers_verdict(head: Finding, ordered: Sequence[Finding]) -> Finding:
    """Xid 154 carries the driver's own opinion on what a GPU needs; for the same GPU it wins over the table."""
    if not head.code.startswith("ES-G") or head.code in _DRIVERS_VERDICT or not head.subject:
        return head
    for other in ordered:
        if other.code in _DRIVERS_VERDICT and other.subject == head.subject and other.action is not head.action:
            note = f"action from {other.code}: {other.title}"
            return dataclasses.replace(head, action=other.action, note=note)
    return head
