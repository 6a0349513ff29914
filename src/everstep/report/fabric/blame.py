"""The page of `everstep fabric blame`."""

from everstep.fabric.locate.blame import Verdict
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count, percent


def blame_page(source: str, verdict: Verdict, num_sent: int) -> str:
    number = len(verdict.faults)
    head = f"{source}: {number} fault{'' if number == 1 else 's'}" if number else f"{source}: no fault found"
    lines = [f"{head} in {count(num_sent)} packets", ""]
    for fault in verdict.faults:
        first, *others = [f"{suspect.kind} {suspect.name}" for suspect in fault.suspects]
        rate = f"loses {percent(fault.rate)}, confidence {percent(fault.confidence)}"
        lines += field("fault", f"{first}: {rate}", width=14)
        if others:
            lines += field("", f"not distinguishable from: {', '.join(others)}", width=14)
    if verdict.unexplained:
        lines += field("unexplained", f"{count(verdict.unexplained)} lost packets", width=14)
    for host, reports in verdict.impossible.items():
        lines += field("left out", f"{count(reports)} reports of {host}: they count more than was sent", width=14)
    lines += field("limit", f"a link that loses less than {percent(verdict.smallest_rate)} may not be seen", width=14)
    return text_of(lines)
