"""The page of `everstep fabric cover`."""

from everstep.fabric.probing.coverage import Coverage
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count

_SHOWN = 20


def cover_page(source: str, found: Coverage, candidates: int, least: int, folder: str) -> str:
    by_host: dict[str, int] = {}
    for host, _, _ in found.flows:
        by_host[host] = by_host.get(host, 0) + 1
    most = max(by_host.values(), default=0)
    lines = [f"{source}: {count(len(found.flows))} of {count(candidates)} flows, at most {most} of a host", ""]
    whole = found.num_links - len(found.thin)
    lines += field(
        "links", f"{count(whole)} of {count(found.num_links)} are crossed by {least} flows at least", width=9
    )
    for one, other in found.thin[:_SHOWN]:
        lines += field("thin", f"{one} > {other}", width=9)
    if len(found.thin) > _SHOWN:
        lines += field("", f"and {count(len(found.thin) - _SHOWN)} more", width=9)
    lines += field("written", f"{folder}: a file for each host", width=9)
    return text_of(lines)
