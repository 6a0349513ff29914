"""Causes of a job's unevenness, as text and as an object. Pure; printed by `everstep analyze FILE`."""

from typing import Any

from everstep.analyzer.codes import CODES, name_of
from everstep.analyzer.slowness.shares import Shares, Table
from everstep.report.parts.ansi import one_line

_FINE = "no stage, worker or replica takes more than a few percent longer than the others"


def shares_object(shares: Shares, table: Table) -> dict[str, Any]:
    """The documented object; it only ever grows."""
    found = shares.found
    first = found[0] if found else None
    code = first.code if first is not None else "ES-S00"
    return {
        "verdict": first.sentence if first is not None else shares.why_not or _FINE,
        "code": code,
        "name": CODES[code].name,
        "ranks": list(shares.workers.ranks) if shares.workers is not None else [],
        "shares": [{"code": s.code, "share": s.share, "verdict": s.sentence, "ranks": list(s.ranks)} for s in found],
        "num_ranks": len(table.compute_s),
        "notes": list(table.notes),
    }


def render_shares(shares: Shares, table: Table) -> str:
    """Worst first, with what to do about each."""
    lines = [f"{name_of(share.code)} ({share.share:.0%}): {share.sentence}." for share in shares.found]
    if not lines:
        lines = [f"{name_of('ES-S00')}: {shares.why_not or _FINE}."]
    elif not table.places:
        lines.append("  the trace has no stages and replicas (--stages N): all ranks are compared with each other")
    if shares.found:
        lines += ["do", *(f"  {CODES[share.code].you_do}" for share in shares.found)]
    if table.notes:
        lines += ["not used", *(f"  {note}" for note in table.notes[:20])]
    num_steps = len({step for mine in table.compute_s.values() for step in mine})
    lines.append(f"read {num_steps} steps of {len(table.compute_s)} ranks")
    return "\n".join(map(one_line, lines))
