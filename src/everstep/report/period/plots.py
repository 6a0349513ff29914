"""Plots of a report as SVG, inside the file: goodput by cause over the period, and incidents under it. Pure."""

from everstep.report.parts.units import percent, short_stamp
from everstep.report.period.schema import Period, Slice
from everstep.report.picture.costs import GROUPS

COLOURS = {
    "productive": "#0072B2",
    "redone": "#CC79A7",
    "recovery": "#E69F00",
    "checkpoint": "#F0E442",
    "idle": "#999999",
    "not measured": "#dddddd",
}
WIDTH, HEIGHT, FOOT = 960, 120, 34


def goodput_svg(period: Period) -> str:
    """A column per slice; what is missing to the full height is no rank's time. Every column has a title."""
    if period.rank_s <= 0.0:
        return ""
    each = WIDTH / len(period.slices)
    parts = [_column(piece, place * each, each) for place, piece in enumerate(period.slices)]
    first, last = short_stamp(period.since), short_stamp(period.until)
    y = HEIGHT + FOOT - 4
    parts.append(f'<text x="0" y="{y}">{first}</text><text x="{WIDTH}" y="{y}" text-anchor="end">{last}</text>')
    label = "goodput by cause over the period, and the number of incidents under it"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT + FOOT}" width="100%" role="img" aria-label="{label}">'
        f"{''.join(parts)}</svg><p class=dim>{_legend()}</p>"
    )


def _column(piece: Slice, x: float, width: float) -> str:
    whole = sum(piece.seconds.values())
    if whole <= 0.0:
        return f'<text x="{x + width / 2:.1f}" y="{HEIGHT - 4}" text-anchor="middle">—</text>'
    told = f"{short_stamp(piece.begin)}: goodput {percent(piece.ettr)}, {piece.num_incidents} incidents"
    parts, y = [f"<title>{told}</title>"], float(HEIGHT)
    for name in GROUPS:
        height = piece.seconds[name] / whole * HEIGHT
        if height > 0.0:
            y -= height
            place = f'x="{x + 1:.1f}" y="{y:.2f}" width="{width - 2:.1f}" height="{height:.2f}"'
            parts.append(f'<rect {place} fill="{COLOURS[name]}"/>')
    if piece.num_incidents:
        middle, foot = x + width / 2, HEIGHT + 14
        parts.append(f'<text x="{middle:.1f}" y="{foot}" text-anchor="middle">▲ {piece.num_incidents}</text>')
    return f"<g>{''.join(parts)}</g>"


def _legend() -> str:
    marks = (
        f'<svg width="10" height="10"><rect width="10" height="10" fill="{COLOURS[name]}"/></svg> {name}'
        for name in GROUPS
    )
    return "   ".join(marks)
