"""The table of collectives as text and as an object for programs."""

from typing import Any

import msgspec

from everstep.analyzer.collective.figures import Figure, Group, Row, Table
from everstep.report.parts.ansi import PLAIN, Paint, Style
from everstep.report.parts.layout import table as columns
from everstep.report.parts.layout import text_of
from everstep.report.parts.units import ago, duration, size

MAX_ROWS = 12
MAX_RANKS = 8
UNKNOWN = "unknown"

_HEAD = ("operation", "size", "count", "time", "algbw", "busbw", "all there", "usual", "skew", "comes last")


def render(table: Table, now: float, style: Style = PLAIN) -> str:
    """One block per group; why something is unknown stands once, below."""
    lines = [f"collectives of generation {table.generation}, {ago(table.at, now)}"]
    if table.is_rough:
        lines.append("ranks are on several machines: arrivals are known to some milliseconds")
    whys: dict[str, None] = {}
    for group in table.groups:
        lines += ["", style(_title(group), Paint.BOLD)]
        cells = [_cells(row, whys) for row in group.rows[:MAX_ROWS]]
        lines += columns(_HEAD, cells, style, indent="  ")
        if len(group.rows) > MAX_ROWS:
            lines.append(f"  and {len(group.rows) - MAX_ROWS} more (--json)")
    lines += [""] if whys or table.missing else []
    lines += [f"{UNKNOWN}: {why}" for why in whys]
    lines += [f"nothing known of {_ranks(ranks)}: {why}" for why, ranks in sorted(table.missing.items())]
    return text_of(lines)


def to_object(table: Table) -> dict[str, Any]:
    """Its keys only grow. Each figure has `value` and `is`, "measured" or "unknown", the latter with `why`."""
    found: dict[str, Any] = msgspec.to_builtins(table)
    for group in found["groups"]:
        for row in group["rows"]:
            for name, value in row.items():
                if isinstance(value, dict):
                    row[name] = _figure_object(value)
    found["late"] = [
        dict(zip(("group", "op", "seq", "rank", "skew_s", "at"), late, strict=True)) for late in found["late"]
    ]
    return found


def _figure_object(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("value") is not None:
        return {"is": "measured", "value": value["value"]}
    return {"is": "unknown", "value": None, "why": value.get("why", "")}


def _title(group: Group) -> str:
    title = group.title if group.title and group.title != "undefined" else f"group {group.name}"
    seen = f"{group.num_seen:,} of {group.num_ops:,} operations seen" if group.num_ops is not None else ""
    guess = "" if group.is_declared else " as far as seen"
    return f"{title}: {_ranks(group.ranks)}{guess}, {seen}"


def _ranks(ranks: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_RANKS]))
    more = f" and {len(ranks) - MAX_RANKS} more" if len(ranks) > MAX_RANKS else ""
    return f"rank{'s' * (len(ranks) != 1)} {shown}{more}"


def _cells(row: Row, whys: dict[str, None]) -> tuple[str, ...]:
    def told(figure: Figure, unit: str) -> str:
        if figure.value is None:
            if figure.why:
                whys[figure.why] = None
            return UNKNOWN
        return duration(figure.value) if unit == "s" else f"{size(int(figure.value))}/s"

    return (
        row.op,
        size(row.num_bytes) if row.num_bytes is not None else UNKNOWN,
        f"{row.count:,}",
        told(row.time_s, "s"),
        told(row.algbw, "B/s") if row.num_bytes else "-",
        told(row.busbw, "B/s") if row.num_bytes else "-",
        told(row.transfer_bw, "B/s") if row.num_bytes else "-",
        _usual(row),
        told(row.skew_s, "s"),
        _last(row),
    )


def _usual(row: Row) -> str:
    """The bandwidth as a share of what it usually is once all are there."""
    if row.usual_bw.value is None or row.transfer_bw.value is None:
        return "-"
    return f"{row.transfer_bw.value / row.usual_bw.value:.0%}"


def _last(row: Row) -> str:
    if row.num_late is None:
        return UNKNOWN
    if not row.num_late:
        return "no rank is waited for"
    named = ", ".join(f"{rank} ({number / row.num_late:.0%})" for rank, number in row.last[:3])
    return f"{named} of {row.num_late:,} waits"
