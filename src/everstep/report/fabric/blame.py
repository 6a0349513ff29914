"""The page of `everstep fabric blame`."""

from everstep.fabric.locate.blame import MOST_LATE, NOISE, Fault, Verdict
from everstep.fabric.locate.loads import FullLink
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count, percent


def blame_page(source: str, verdict: Verdict, num_sent: int) -> str:
    number = len(verdict.faults) + len(verdict.slow)
    head = f"{source}: {number} fault{'' if number == 1 else 's'}" if number else f"{source}: no fault found"
    lines = [f"{head} in {count(num_sent)} packets", ""]
    for fault in verdict.faults:
        lines += _fault(fault, f"loses {percent(fault.rate)}")
    for fault in verdict.slow:
        lines += _fault(fault, f"{percent(fault.rate)} of the packets that came were over 10 ms late")
    for full in verdict.full:
        lines += field("full", f"{full.link}: {_rates(full)}{_lost(full)}", width=14)
    if verdict.is_all_late:
        lines += field("not known", f"what is slow: half of the paths have over {percent(MOST_LATE)} late", width=14)
    if verdict.unexplained:
        lines += field("unexplained", f"{count(verdict.unexplained)} lost packets", width=14)
    for host, reports in verdict.impossible.items():
        lines += field("left out", f"{count(reports)} reports of {host}: they count more than was sent", width=14)
    lines += field("limit", f"a link that loses less than {percent(verdict.smallest_rate)} may not be seen", width=14)
    return text_of(lines)


def _fault(fault: Fault, what: str) -> list[str]:
    first, *others = [f"{suspect.kind} {suspect.name}" for suspect in fault.suspects]
    lines = field("fault", f"{first}: {what}, confidence {percent(fault.confidence)}", width=14)
    if fault.may_be_full:
        lines += field("", "or full: its packets are late, and how full it is is not known", width=14)
    if others:
        lines += field("", f"not distinguishable from: {', '.join(others)}", width=14)
    return lines


def _rates(full: FullLink) -> str:
    share = percent(full.bps / full.capacity_bps)
    return f"{share} of {full.capacity_bps / 1e9:.4g} Gbit/s in its fullest second"


def _lost(full: FullLink) -> str:
    """What it loses is its queue's, as far as can be told."""
    if full.rate < NOISE:
        return ""
    return f"; loses {percent(full.rate)}, as full links do: whether its cable does is not known"
