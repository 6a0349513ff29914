"""Which lines can explain how a run ended, and which only stand in the same log.

A line explains an end when it is linked to it: it is its exception, it came in the last seconds before it, it is about
the same resource, and no training steps stand in between. Everything else is information: words about a read-only file
system at the start of a job have nothing to do with a KeyError an hour later. Pure; called by `ranking`.
"""

import dataclasses
import re
from collections.abc import Sequence

from everstep.knowledge.findings import Finding
from everstep.knowledge.signature import Action, Role, Severity
from everstep.model.verdict import Blame

LAST_S = 5.0
"""A line this close before an exception, by their time stamps, may be its reason."""
END_S = 60.0
"""The same for a process that was killed or crashed: what broke it may take a while to do so."""
END_LINES = 40
"""Where there are no stamps, lines this close before a crash."""
WENT_ON_LINES = 100
"""A program that writes so many more lines without failing had got over it."""

_DOMAINS = {
    "device": (
        *("gpu", "cuda", "gpu_amd", "npu", "neuron", "tpu", "xpu"),
        *("nvlink", "nvswitch", "pcie", "power", "thermal"),
    ),
    "network": ("nccl", "pytorch_dist", "gloo", "nic", "rdma", "network"),
    "storage": ("fs", "disk", "storage"),
    "memory": ("host_memory", "host_shm"),
    "program": ("python", "training"),
}
_DOMAIN_OF = {component: domain for domain, components in _DOMAINS.items() for component in components}
_EXPLAINED_BY = {
    "device": ("device",),
    "network": ("network", "device", "memory", "host"),
    "storage": ("storage", "network"),
    "memory": ("memory", "storage"),
    "host": ("device", "network", "storage", "memory", "host"),
    "program": (),
}
"""What an exception of a domain can be a consequence of. One of the program's own needs no other reason."""
_CAN_BE_CAUGHT = frozenset({"python", "training", "unknown", "network", "storage", "fs", "host_memory"})
"""What a program can get over by itself. A device or a collective that failed stays so, whatever its handler does."""
_WORDS = (
    (
        "network",
        re.compile(r"connect|timed? ?out|timeout|socket|network|nccl|\bpeer|\bstore\b|remote|rendezvous", re.I),
    ),
    ("device", re.compile(r"cuda|\bgpu|\bdevice|cublas|cudnn|\bhip|\bnpu\b|driver", re.I)),
    ("storage", re.compile(r"\bfile|\bdisk|directory|\bi/o\b|\bs3\b|bucket|download|checkpoint|\[Errno", re.I)),
    ("memory", re.compile(r"memory|\bshm|mmap|\bkilled|worker", re.I)),
    ("host", re.compile(r"process|\bdied|crash|\bsignal|subprocess|actor|\bexit", re.I)),
)
_OWN = re.compile(
    r"^(?:\w+\.)*(?:TypeError|KeyError|IndexError|AttributeError|NameError|UnboundLocalError|ValueError|AssertionError"
    r"|ZeroDivisionError|NotImplementedError|RecursionError|StopIteration|LookupError|ArithmeticError|OverflowError"
    r"|FloatingPointError|Unicode\w+Error|SyntaxError|IndentationError|TabError|ModuleNotFoundError|ImportError)\b"
)
"""Exceptions that Python raises about the program, whatever their text is about."""
_CRASHES = frozenset({"process_aborted", "segfault", "bus_error_rank", "process_lost"})


def is_of_program(exception: str) -> bool:
    """Whether Python raises this about the program: `exception` is the last line of a traceback."""
    return _OWN.match(exception) is not None


def link(findings: Sequence[Finding], *, end: str = "") -> list[Finding]:
    """The findings, those that nothing links to the end made information, with the reason in their note. `end`: the
    source that holds the exception that ended it, if that is known."""
    findings = _without_earlier_exceptions(findings, end)
    live = [f for f in findings if not _is_over(f)]
    ends = [f for f in live if f.is_exception and _names_a_cause(f)]
    victims = [f for f in live if f.role is Role.CASCADE and f.severity is not Severity.INFO]
    crashes = [f for f in live if f.klass in _CRASHES]
    return [_judged(f, ends, victims, crashes) for f in findings]


def _without_earlier_exceptions(findings: Sequence[Finding], end: str) -> list[Finding]:
    """A traceback that was printed and survived says nothing about another one that ended the process later."""
    last = {_speaker(f): f for f in sorted(findings, key=lambda f: f.last_seq) if f.is_exception and _names_a_cause(f)}
    out = []
    for finding in findings:
        if finding.is_exception and _names_a_cause(finding):
            final = last[_speaker(finding)]
            if finding.is_handled and finding.component in _CAN_BE_CAUGHT:
                finding = _information(finding, f"the program caught it; what it did then failed: {final.text[:80]}")
            elif end and end not in finding.sources:
                finding = _information(finding, "the process reported another exception as its end")
            elif not end and final is not finding and not _is_chained(finding, final) and _outlived(finding, final):
                finding = _information(finding, f"the process continued to {final.code}: {final.text[:80]}")
        out.append(finding)
    return out


def _speaker(finding: Finding) -> tuple[str, tuple[int, ...]]:
    return finding.source, finding.ranks


def _is_chained(earlier: Finding, final: Finding) -> bool:
    """Whether the second says that the first caused it, or holds it."""
    return final.is_chained or earlier.last_line == final.line or "Caught " in final.text


def _outlived(earlier: Finding, final: Finding) -> bool:
    """Whether it is certain that one and the same process printed both: a rank's tag says so, or a long time."""
    if _domains_of(final) == {"host"}:
        return False  # a launcher's word on a process that ended
    if len(final.ranks) == 1:
        return True
    return earlier.at is not None and final.at is not None and final.at - earlier.at > END_S


def _judged(finding: Finding, ends: list[Finding], victims: list[Finding], crashes: list[Finding]) -> Finding:
    if not _names_a_cause(finding):
        return finding
    if _is_over(finding):
        return _information(finding, "training continued after it")
    if finding.klass in _CRASHES and not ends and finding.lines_after > 10 * WENT_ON_LINES:
        return _information(finding, f"the log continues for {finding.lines_after} lines")
    if finding.is_exception or finding.from_kernel or finding.klass in _CRASHES:
        return finding
    if ends:
        if any(_explains(finding, end) for end in ends):
            return finding
        return _information(finding, f"nothing links it to the end ({ends[-1].code}: {ends[-1].text[:80]})")
    is_linked = any(_domain(finding) in _EXPLAINED_BY[_domain(victim)] for victim in victims)
    if not crashes and not is_linked and finding.lines_after > WENT_ON_LINES:
        return _information(finding, f"the log continues for {finding.lines_after} lines, and nothing failed")
    if not crashes or is_linked or any(_is_near(finding, crash) for crash in crashes):
        return finding
    return _information(finding, f"stands long before the end ({crashes[-1].code})")


def _is_over(finding: Finding) -> bool:
    """Steps stand after it, and it is not one that the kernel calls fatal."""
    return finding.moved_on and not (finding.from_kernel and finding.severity is Severity.FAULT)


def _names_a_cause(finding: Finding) -> bool:
    """An end by hand explains nothing but itself: `by_hand` looks at it."""
    if finding.blame is Blame.OPERATOR:
        return False
    if finding.role is Role.UNKNOWN:
        return finding.family == "traceback"
    return finding.role in (Role.ROOT, Role.EITHER) and finding.severity is not Severity.INFO


def _explains(finding: Finding, end: Finding) -> bool:
    domains = _domains_of(end)
    if domains == {"program"}:
        return False
    if finding.at is not None and end.at is not None:
        if finding.seq < end.seq and 0.0 <= end.at - finding.at <= LAST_S and finding.source == end.source:
            return True
        if abs(end.at - finding.at) > END_S * 30:
            return False
    return any(_domain(finding) in _EXPLAINED_BY[domain] for domain in domains)


def _domain(finding: Finding) -> str:
    return _DOMAIN_OF.get(finding.component, "host")


def _domains_of(end: Finding) -> set[str]:
    """What an exception is about: its signature's component; of one without an entry, what its words say."""
    if _OWN.match(end.text) and _DOMAIN_OF.get(end.component) in (None, "program"):
        return {"program"}
    is_known = end.component not in ("python", "unknown")
    spoken = {domain for domain, words in _WORDS if words.search(end.text)}
    return {_domain(end)} if is_known else spoken or {"program"}


def _is_near(finding: Finding, crash: Finding) -> bool:
    if finding.seq > crash.seq:
        return True
    if finding.at is not None and crash.at is not None:
        return crash.at - finding.at <= END_S
    return finding.source != crash.source or crash.last_line - finding.last_line <= END_LINES


def _information(finding: Finding, note: str) -> Finding:
    return dataclasses.replace(finding, severity=Severity.INFO, action=Action.IGNORE, note=note)
