"""`everstep top`, the ranks: how slow each was, and when, a line each. Pure; what does not fit is cut by `top`."""

from collections.abc import Callable

from everstep.report.parts.ansi import Paint, Style
from everstep.report.parts.json_values import Json
from everstep.report.parts.units import NOT_MEASURED, duration, percent

_LEVELS = ((1.5, "█", Paint.RED), (1.2, "▓", Paint.ORANGE), (1.08, "▒", Paint.YELLOW), (0.0, "░", Paint.GREY))
_FIXED = 51
"""Columns beside the map."""


def rank_lines(
    page: Json | None, first: int, room: int, width: int, style: Style, *, cut: Callable[[str, int], str],
    is_asked: Callable[..., bool],
) -> list[str]:  # fmt: skip
    """`page`: of `report.picture.stragglers`, or None if single ranks were not measured."""
    if page is None:
        return [cut(" no step of single ranks was measured (yet): agents report every ten seconds", width)]
    cells = max(5, width - _FIXED)
    found = [line for line in page["lines"] if is_asked(f"rank {line['rank']}", line["node"])]
    lines = [
        cut(f" {page['sentence']}", width),
        style(
            cut(f" {'rank':>6} {'node':<14}{'rounds, newest right':<{cells}}{'now':>7}{'own':>9}{'waits':>9}", width),
            Paint.DIM,
        ),
    ]
    start = min(first, max(0, len(found) - 1))
    for line in found[start : start + max(1, room - 2)]:
        ratio = line["ratio"]
        now = NOT_MEASURED if ratio is None else f"+{percent(ratio - 1.0, 0)}" if ratio >= _LEVELS[2][0] else "usual"
        head = f" {line['rank']:>6} {cut(line['node'] or NOT_MEASURED, 13):<14}"
        tail = f"{now:>7}{duration(line['compute_s']):>9}{duration(line['wait_s']):>9}"
        shown = line["ratios"][-cells:]
        lines.append(head + " " * (cells - len(shown)) + _map(shown, style) + cut(tail, width - len(head) - cells))
    legend = "  ".join(
        f"{glyph} {says}" for (_, glyph, _), says in zip(_LEVELS, ("+50%", "+20%", "+8%", "usual"), strict=True)
    )
    return [*lines, style(cut(f" {legend}  · not measured   ordered by {page['order']}", width), Paint.DIM)]


def _map(ratios: list[float | None], style: Style) -> str:
    """A cell each; neighbours that look alike are painted at once."""
    text, at = "", 0
    while at < len(ratios):
        glyph, paint = _level(ratios[at])
        end = next((k for k in range(at, len(ratios)) if _level(ratios[k])[0] != glyph), len(ratios))
        text += style(glyph * (end - at), paint)
        at = end
    return text


def _level(ratio: float | None) -> tuple[str, Paint]:
    if ratio is None:
        return "·", Paint.GREY
    return next(((glyph, paint) for least, glyph, paint in _LEVELS if ratio >= least), _LEVELS[-1][1:])
