"""The page of `everstep fabric blame`."""

from everstep.fabric.locate.blame import MOST_LATE, NOISE, QUEUE_LOSS, Fault, Verdict
from everstep.fabric.locate.limits import Unjudged
from everstep.fabric.locate.loads import FullLink
from everstep.fabric.locate.wire import LEAST
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count, percent

_MOST_UNJUDGED = 16
_MOST_FULL = 3
_MORE = 1.2
"""Times what the ports of one way count: the rate of the cable is that of its other way."""


def blame_page(source: str, verdict: Verdict, num_sent: int) -> str:
    number = len(verdict.faults) + len(verdict.slow)
    head = f"{source}: {number} fault{'' if number == 1 else 's'}" if number else f"{source}: no fault found"
    lines = [f"{head} in {count(num_sent)} packets{_not_judged(len(verdict.unjudged))}", ""]
    for fault in verdict.faults:
        lines += _fault(fault, f"loses {percent(fault.rate)}")
        if fault.counted:
            lost = f"{count(fault.bad)} of {count(fault.counted)} packets"
            text = f"{lost} that left one of its ports did not come to the other; no queue loses there"
            way = "; probes see more losses the other way" if fault.rate > _MORE * fault.bad / fault.counted else ""
            lines += field("", f"by the ports' counters: {text}{way}", width=14)
    for fault in verdict.slow:
        lines += _fault(fault, f"{percent(fault.rate)} of the packets that came were over 10 ms late")
    for full in verdict.full:
        lines += field("full", f"{full.link}: {_rates(full)}{_lost(full)}", width=14)
    for each in verdict.unjudged[:_MOST_UNJUDGED]:
        lines += field("not judged", f"{each.link}: {_why(each)}", width=14)
        lines += field("", _wanted(each), width=14)
    if len(verdict.unjudged) > _MOST_UNJUDGED:
        more = len(verdict.unjudged) - _MOST_UNJUDGED
        lines += field("not judged", f"{count(more)} links more: --json has all", width=14)
    if verdict.is_all_late:
        lines += field("not known", f"what is slow: half of the paths have over {percent(MOST_LATE)} late", width=14)
    if verdict.unexplained:
        lines += field("unexplained", f"{count(verdict.unexplained)} lost packets", width=14)
    for host, reports in verdict.impossible.items():
        lines += field("left out", f"{count(reports)} reports of {host}: they count more than was sent", width=14)
    if verdict.smallest_rate < 1.0 or not verdict.unjudged:
        which = "another link" if verdict.unjudged else "a link"
        limit = percent(verdict.smallest_rate)
        lines += field("limit", f"{which} that loses less than {limit} may not be seen", width=14)
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
    """Whether its loss is its queue's, as far as is known."""
    if full.cable_rate is not None and full.cable_most is not None:
        lost = f"loses {percent(full.rate)} in its queue; " if full.rate >= NOISE and full.cable_rate < LEAST else ""
        if full.cable_rate >= LEAST and full.cable_rate > full.cable_most / 2:
            return f"; its cable loses {percent(full.cable_rate)}, by its ports' counters"
        return f"; {lost}by its ports' counters its cable loses less than {percent(full.cable_most)}"
    if full.rate < NOISE:
        return ""
    return f"; loses {percent(full.rate)}, as full links do: whether its cable does is not known"


def _not_judged(number: int) -> str:
    return f"; {count(number)} link{' is' if number == 1 else 's are'} not judged" if number else ""


def _why(link: Unjudged) -> str:
    if link.why == "no probes":
        return "no probe crossed it while the hosts at both ends ran"
    whose = "it was full" if link.why == "full" else f"{_listed(link.full)} {_was(link.full)} full"
    share = f"{count(link.packets_beside)} of {count(link.packets + link.packets_beside)} packets"
    seen = percent(link.smallest_rate) if link.packets else f"{percent(QUEUE_LOSS)}, as a full queue may,"
    return f"{whose} while {share} crossed it; a loss below {seen} is not seen"


def _listed(names: tuple[str, ...]) -> str:
    more = len(names) - _MOST_FULL
    return ", ".join(names[:_MOST_FULL]) + (f" and {more} more" if more > 0 else "")


def _was(names: tuple[str, ...]) -> str:
    return "was" if len(names) == 1 else "were"


def _wanted(link: Unjudged) -> str:
    """Describe what it would take to judge this link."""
    packets = f"{count(link.packets_wanted)} packets" + (" more" if link.packets else "")
    if link.why == "no probes":
        return f"wanted: {packets}, of a flow that crosses it (`everstep fabric cover`)"
    damage = "" if link.counts_damage else ", or what its receiving port counts as damaged"
    return f"wanted: {packets} while nothing on their path is full{damage}"
