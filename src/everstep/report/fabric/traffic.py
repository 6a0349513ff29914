"""The page of `everstep fabric traffic`, and what a browser's page says of the same."""

from collections.abc import Sequence

from everstep.fabric.topology.values import FabricError
from everstep.fabric.traffic.pictured import LinkTraffic, Picture, Told
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import clock, percent, plural

_MOST_LINKS = 16
_MOST_JOBS = 3
_NOT_KNOWN = "not known"


def told_of(source: str, picture: Picture, missing: Sequence[str], seconds: range, most: int | None = None) -> Told:
    """`most`: so many links, and all hot ones up to twice as many."""
    hot = sum(each.is_hot for each in picture.links)
    kept = picture.links if most is None else picture.links[: max(most, min(hot, 2 * most))]
    return Told(
        source=source,
        sentence=_sentence(picture, hot),
        begin=seconds.start,
        end=seconds.stop,
        num_links=len(picture.links),
        num_hot=hot,
        links=kept,
        unknown=picture.unknown,
        missing=tuple(missing),
    )


def _sentence(picture: Picture, num_hot: int) -> str:
    """A link of which nothing is known is not one that is not hot."""
    num, known = len(picture.links), sum(each.peak is not None for each in picture.links)
    rest = f"; of {plural(num - known, 'link')} nothing is known" if num > known else ""
    if not num_hot:
        return (f"no link is hot of the {known} that are known" if known else "nothing is known of any link") + rest
    first = picture.links[0]
    jobs = list(dict.fromkeys(share.job for share in first.jobs))
    more = f" and {len(jobs) - _MOST_JOBS} more" if len(jobs) > _MOST_JOBS else ""
    how = "" if first.measured_bps is not None else " by prediction"
    on_it = f", with {', '.join(jobs[:_MOST_JOBS])}{more} on it" if jobs else ""
    return (
        f"{num_hot} of {plural(num, 'link')} hot: {first.link} is {percent(first.peak)} full at most{how}{on_it}{rest}"
    )


def traffic_page(source: str, picture: Picture, missing: Sequence[str], link: str | None) -> str:
    """`link`: that one second by second. Raises FabricError."""
    if link is not None:
        return text_of(_seconds_of(source, picture, link))
    seconds = picture.links[0].seconds if picture.links else ()
    hot = sum(each.is_hot for each in picture.links)
    over = f", {len(seconds)} s to {clock(seconds[-1].at + 1)}" if seconds else ""
    silent = sum(each.peak is None for each in picture.links)
    rest = f"; of {plural(silent, 'link')} nothing is known" if silent else ""
    lines = [f"{source}: {hot} hot of {len(picture.links)} links{over}{rest}", ""]
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
    share = f"{percent(each.peak)} full" + (", predicted" if each.measured_bps is None else "")
    share += ", hot" if each.is_hot else ""
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
