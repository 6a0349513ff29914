"""The page of `everstep fabric traffic`."""

from collections.abc import Sequence

from everstep.fabric.topology.values import FabricError
from everstep.fabric.traffic.pictured import LinkTraffic, Picture
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import clock, percent

_MOST_LINKS = 16
_MOST_JOBS = 3
_NOT_KNOWN = "not known"


def traffic_page(source: str, picture: Picture, missing: Sequence[str], link: str | None) -> str:
    """`link`: that one second by second. Raises FabricError."""
    if link is not None:
        return text_of(_seconds_of(source, picture, link))
    seconds = picture.links[0].seconds if picture.links else ()
    hot = sum(each.is_hot for each in picture.links)
    over = f", {len(seconds)} s to {clock(seconds[-1].at + 1)}" if seconds else ""
    lines = [f"{source}: {hot} hot of {len(picture.links)} links{over}", ""]
    busy = [each for each in picture.links if each.peak]
    rows = [_row(each) for each in busy[: max(_MOST_LINKS, hot)]]
    lines += table(("link", "predicted", "measured", "difference", "fullest second", "jobs"), rows, indent="  ")
    if len(busy) > len(rows):
        lines.append(f"  and {len(busy) - len(rows)} more (--json)")
    unknown = [f"{job} {group} {op}: how it moves its data" for job, group, op in picture.unknown]
    lines += [""] if unknown or missing else []
    for number, text in enumerate([*missing, *unknown]):
        lines += field("" if number else _NOT_KNOWN, text, width=12)
    return text_of(lines)


def _row(each: LinkTraffic) -> tuple[str, ...]:
    share = f"{percent(each.peak)} full" + (", hot" if each.is_hot else "")
    return (
        each.link,
        _rate(each.predicted_bps),
        _rate(each.measured_bps),
        _difference(each.predicted_bps, each.measured_bps),
        share,
        _jobs(each),
    )


def _difference(predicted: float | None, measured: float | None) -> str:
    if predicted is None or measured is None:
        return "-"
    more = measured - predicted
    sign = "+" if more >= 0 else "-"
    ratio = f" ({sign}{percent(abs(more) / predicted, 0)})" if predicted > 0 else ""
    return f"{sign}{_rate(abs(more))}{ratio}"


def _jobs(each: LinkTraffic) -> str:
    named = [f"{share.job} {share.group} {_rate(share.bps)}" for share in each.jobs[:_MOST_JOBS]]
    more = f" and {len(each.jobs) - _MOST_JOBS} more" if len(each.jobs) > _MOST_JOBS else ""
    if each.predicted_bps is None:
        return _NOT_KNOWN
    return ", ".join(named) + more if named else "no known job"


def _rate(bps: float | None) -> str:
    if bps is None:
        return _NOT_KNOWN
    for unit, size in (("Tbit/s", 1e12), ("Gbit/s", 1e9), ("Mbit/s", 1e6)):
        if bps >= size:
            return f"{bps / size:.3g} {unit}"
    return f"{bps / 1e3:.3g} kbit/s"


def _seconds_of(source: str, picture: Picture, link: str) -> list[str]:
    """By its name as the page has it, or by its two nodes."""
    names = {name: each for each in picture.links for name in (_nodes(each.link), each.link)}
    found = names.get(link)
    if found is None:
        raise FabricError(f"{source}: unknown link: {link}: it has {', '.join(sorted(names)[:4])} and others")
    both = [(each.at, each.predicted_bps, each.measured_bps) for each in found.seconds]
    rows = [(clock(at), _rate(one), _rate(other), _difference(one, other)) for at, one, other in both]
    head = f"{source}: {found.link}, {_rate(found.capacity_bps)}; {_jobs(found)}"
    return [head, "", *table(("second", "predicted", "measured", "difference"), rows, indent="  ")]


def _nodes(link: str) -> str:
    """`leaf0 > spine1` of `leaf0:u1 > spine1:d0`."""
    return " > ".join(end.partition(":")[0] for end in link.split(" > "))
