"""`everstep top`: the picture of a run as lines for a terminal of any width from 40 columns on. Pure.

The same rows as the page (`report.picture.overview`); what does not fit is cut with "…", never wrapped.
"""

from itertools import accumulate
from unicodedata import combining, east_asian_width

import msgspec

from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.json_values import Json
from everstep.report.parts.units import NOT_MEASURED, ago, count, duration, percent, plural, short_stamp
from everstep.report.picture.schema import Lane
from everstep.report.top.ranks import rank_lines

ALL = 1000

_BLOCKS = {
    Lane.PRODUCTIVE: ("█", Paint.BLUE),
    Lane.LOST: ("▒", Paint.PURPLE),
    Lane.RECOVERING: ("▄", Paint.ORANGE),
    Lane.STARTING: ("▂", Paint.SKY),
    Lane.IDLE: ("·", Paint.GREY),
    Lane.UNMEASURED: ("?", Paint.GREY),
}
_IMPORTANCE = (Lane.UNMEASURED, Lane.IDLE, Lane.STARTING, Lane.PRODUCTIVE, Lane.LOST, Lane.RECOVERING)
_HEALTH = {"a": "■", "s": "□", "w": "▲", "x": "✗", "u": "—"}
_WORDS = {"a": "active", "s": "standby", "w": "suspect", "x": "out", "u": "joined"}
_BARS = "▁▂▃▄▅▆▇█"


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of the screen: view, first line and search text as the person chose them, and the terminal's size."""

    view: str = "overview"
    first: int = 0  # line of a list
    find: str = ""
    width: int = 80
    height: int = 24  # 0: as many lines as there are, and no line of keys


def render_top(rows: dict[str, Json], look: Look, style: Style = PLAIN, stale: str = "") -> list[str]:
    """Exactly `height` lines, none wider than `width`."""
    head, width = rows["head"], max(40, look.width)
    height = look.height or ALL
    lines = [_title(head, width, style), _now(head, width, style)]
    if stale:
        lines.append(style(cut(f" {stale}", width), Paint.RED))
    if look.view == "incidents":
        lines += _incidents(rows, look, width, style, height - len(lines) - 1)
    elif look.view == "nodes":
        lines += _nodes(rows, look, width, style, height - len(lines) - 1)
    elif look.view == "ranks":
        lines += _ranks(rows, look, width, style, height - len(lines) - 1)
    else:
        lines += _overview(rows, look, width, style, height - len(lines) - 1)
    if not look.height:
        return lines
    room = max(1, look.height - 1)
    lines = lines[:room] + [""] * (room - len(lines))
    return [
        *lines,
        style(
            cut(_searched(look) + " o overview  i incidents  n nodes  r ranks  ↑↓ move  / find  q quit", width),
            Paint.DIM,
        ),
    ]


def cut(text: str, width: int) -> str:
    """One line of at most `width` characters that steer nothing."""
    text = printable(text).replace("\n", " ").replace("\t", " ")
    if text.isascii():
        return text if len(text) <= width else text[: max(0, width - 1)] + "…"
    wide = list(accumulate(_cells(c) for c in text))
    if not wide or wide[-1] <= width:
        return text
    return text[: sum(w <= width - 1 for w in wide)] + "…"


def _cells(character: str) -> int:
    """Columns of a terminal."""
    return 0 if combining(character) else 2 if east_asian_width(character) in "WF" else 1


def _searched(look: Look) -> str:
    return f" find: {look.find}  Esc: all  " if look.find else ""


def _title(head: Json, width: int, style: Style) -> str:
    status = str(head["status"]).upper().replace("-", " ") + (", CONTROLLER GONE" if head["is_gone"] else "")
    step = "no step yet" if head["step"] is None else f"step {count(head['step'])}"
    parts = [f" {head['run']}  ", status, f"  {step}"]
    if head["step_s"] is not None:
        parts.append(f"  {duration(head['step_s'])}/step (1h {duration(head['median_step_s'])})")
    if head["last_step_at"] is not None and not head["is_over"]:
        parts.append(f"  last {ago(head['last_step_at'], head['as_of'])}")
    whole = cut("".join(parts), width)
    paint = Paint.RED if head["needs_you"] else Paint.ORANGE if head["incident"] else None
    return whole.replace(status, style(status, Paint.BOLD, *([paint] if paint else [])), 1)


def _now(head: Json, width: int, style: Style) -> str:
    return style(cut(f" {head['now']}", width), Paint.BOLD)


def _overview(rows: dict[str, Json], look: Look, width: int, style: Style, room: int) -> list[str]:
    head, goodput = rows["head"], rows["goodput"]
    lines = []
    for name, text in (("what", head["what"]), ("doing", head["doing"]), ("next", head["next"])):
        if text and text != head["now"]:
            lines.append(cut(f" {name:<8}{text}", width))
    lines += ["", _lane(rows, width, style), _marks(rows, width), *_pace(rows, width, style)]
    lines += [*_loss(rows, width, style), ""]
    shares = [f"{name} {percent(share)}" for name, share in goodput["shares"].items() if share]
    sampled = f" ({plural(goodput['sampled_ranks'], 'rank')} of all)" if goodput["sampled_ranks"] else ""
    lines.append(cut(f" goodput {percent(goodput['ettr'])}{sampled}   " + "  ".join(shares[1:]), width))
    lines += [cut(f" {name:<8}{text}", width) for name, text in head["copies"]]
    allowed = NOT_MEASURED if head["restarts_allowed"] is None else str(head["restarts_allowed"])
    lines.append(cut(f" nodes   {_fleet_sum(rows)}   restarts {head['restarts_used']} of {allowed}", width))
    lines += [cut(f" note    {note}", width) for note in head["notes"]]
    return [*lines, "", *_incidents(rows, look, width, style, max(3, room - len(lines) - 1))]


def _segments(rows: dict[str, Json]) -> list[tuple[float, float | None, Lane]]:
    found = [s for key, row in rows.items() if key.startswith("generation:") for s in row["segments"]]
    return sorted((begin, end, Lane(lane)) for begin, end, lane, *_ in sorted(found, key=lambda s: s[0]))


def _span(rows: dict[str, Json]) -> tuple[float, float]:
    head = rows["head"]
    begin = head["started_at"] if head["started_at"] is not None else head["as_of"]
    end = head["finished_at"] if head["finished_at"] is not None else head["as_of"]
    return begin, max(end, begin + 1e-6)


def _lane(rows: dict[str, Json], width: int, style: Style) -> str:
    """A cell shows the worst of what happened in it."""
    begin, end = _span(rows)
    cells, scale = max(10, width - 10), max(10, width - 10) / (end - begin)
    found = [Lane.UNMEASURED] * cells
    for since, until, lane in _segments(rows):
        first = min(cells - 1, max(0, int((since - begin) * scale)))
        last = min(cells - 1, max(first, int(((end if until is None else until) - begin) * scale - 1e-9)))
        for cell in range(first, last + 1):
            if _IMPORTANCE.index(lane) > _IMPORTANCE.index(found[cell]):
                found[cell] = lane
    text, at = "", 0
    while at < cells:
        run = next((k for k in range(at, cells) if found[k] is not found[at]), cells)
        block, paint = _BLOCKS[found[at]]
        text += style(block * (run - at), paint)
        at = run
    return f" phase   {text}"


def _marks(rows: dict[str, Json], width: int) -> str:
    begin, end = _span(rows)
    cells = max(10, width - 10)
    line = [" "] * cells
    for key, row in rows.items():
        if key.startswith("incident:"):
            place = min(cells - 1, max(0, int((row["at"] - begin) / (end - begin) * cells)))
            line[place] = "▲" if row["outcome"] is None else "△"
    return f" incid.  {''.join(line)}".rstrip()


def _pace(rows: dict[str, Json], width: int, style: Style) -> list[str]:
    begin, end = _span(rows)
    cells = max(10, width - 10)
    most: dict[int, float] = {}
    for key, row in rows.items():
        if key.startswith("pace:"):
            for at, median, _ in row["points"]:
                first, last = (int((x - begin) / (end - begin) * cells) for x in (at, at + row["width_s"]))
                for cell in range(max(0, first), min(cells, max(first + 1, last))):
                    most[cell] = max(most.get(cell, 0.0), median)
    if not most:
        return []
    top = max(most.values())
    bars = "".join(_BARS[round(most[k] / top * 7)] if k in most else " " for k in range(cells))
    now = rows["head"]["drift"]
    says = f"         highest median {duration(top)}" + (f"; now {now}" if now else "")
    return [f" step_s  {style(bars.rstrip(), Paint.BLUE)}", cut(says, width)]


def _loss(rows: dict[str, Json], width: int, style: Style) -> list[str]:
    """The loss that counts, without steps that were trained again; a cell that has a NaN shows it."""
    points = [p for key, row in rows.items() if key.startswith("loss:") for p in row["points"] if not p[3]]
    known = [point[1] for point in points if point[1] is not None]
    if not points:
        return []
    seen = _loss_cells(rows, points, max(10, width - 10))
    low, high = min(known, default=0.0), max(known, default=0.0)
    bars = "".join(" " if k not in seen else _bar(seen[k], low, high) for k in range(max(seen) + 1))
    last = "NaN or infinite" if points[-1][1] is None else f"{points[-1][1]:.4g}"
    says = f"         {low:.4g} to {high:.4g}, last {last}" if known else f"         last {last}"
    return [f" loss    {style(bars.rstrip(), Paint.BLUE)}", cut(says, width)]


def _loss_cells(rows: dict[str, Json], points: list[list[float | None]], cells: int) -> dict[int, float | None]:
    """Return the loss that is known of each cell; between two points of one generation, the earlier one. None: NaN or
    infinite."""
    begin, end = _span(rows)
    seen: dict[int, float | None] = {}
    last: tuple[int, float | None, object] | None = None
    for at, loss, _, _, generation in points:
        assert at is not None
        cell = min(cells - 1, max(0, int((at - begin) / (end - begin) * cells)))
        if last is not None and last[2] == generation and last[1] is not None:
            seen |= dict.fromkeys(range(last[0] + 1, cell), last[1])
        if seen.get(cell, 0.0) is not None:
            seen[cell] = loss
        last = cell, loss, generation
    return seen


def _bar(value: float | None, low: float, high: float) -> str:
    return "✗" if value is None else _BARS[round((value - low) / (high - low) * 7) if high > low else 3]


def _fleet_sum(rows: dict[str, Json]) -> str:
    letters = "".join(row["health"] for key, row in rows.items() if key.startswith("fleet:"))
    return (
        "  ".join(f"{_HEALTH[s]} {count(letters.count(s))} {_WORDS[s]}" for s in "awsxu" if s in letters) or "none yet"
    )


def _incidents(rows: dict[str, Json], look: Look, width: int, style: Style, room: int) -> list[str]:
    found = [
        row for key, row in rows.items() if key.startswith("incident:") and _is_asked(look, *map(str, row.values()))
    ]
    found.sort(key=lambda row: -row["at"])
    if not found:
        return [cut(" No incidents. Try: everstep drill kill-rank 0", width)]
    first = min(look.first, max(0, len(found) - 1)) if look.view == "incidents" else 0
    lines = [
        style(cut(f" {'id':<6}{'when (UTC)':<16}{'code':<9}{'lost':>8}{'steps':>7}  outcome    what", width), Paint.DIM)
    ]
    for row in found[first : first + max(1, room - 1)]:
        outcome = row["outcome"] or "open"
        fixed = (
            f" {row['id']:<6}{short_stamp(row['at']):<16}{row['code'] or NOT_MEASURED:<9}{duration(row['lost_s']):>8}"
        )
        lines.append(cut(f"{fixed}{count(row['lost_steps']):>7}  {outcome:<10} {row['sentence']}", width))
    return lines


def _nodes(rows: dict[str, Json], look: Look, width: int, style: Style, room: int) -> list[str]:
    """Those that are not as they should be first."""
    order = {state: place for place, state in enumerate("wxsua")}
    found = [
        (order[state], name, state, row["rack"], row["incidents"].get(name, 0))
        for key, row in rows.items()
        if key.startswith("fleet:")
        for name, state in zip(row["nodes"], row["health"], strict=True)
        if _is_asked(look, name, row["rack"], _WORDS[state])
    ]
    found.sort(key=lambda node: (node[0], -node[4], node[1]))
    lines = [cut(f" {_fleet_sum(rows)}", width)]
    lines.append(style(cut(f"   {'node':<28}{'state':<10}{'rack':<16}{'incidents':>10}", width), Paint.DIM))
    first = min(look.first, max(0, len(found) - 1))
    for _, name, state, rack, number in found[first : first + max(1, room - 2)]:
        text = (
            f" {_HEALTH[state]} {cut(name, 27):<28}{_WORDS[state]:<10}{cut(rack or NOT_MEASURED, 15):<16}{number:>10}"
        )
        lines.append(cut(text, width))
    return lines


def _ranks(rows: dict[str, Json], look: Look, width: int, style: Style, room: int) -> list[str]:
    def is_asked(*texts: str) -> bool:
        return _is_asked(look, *texts)

    return rank_lines(rows.get("ranks"), look.first, room - 1, width, style, cut=cut, is_asked=is_asked)


def _is_asked(look: Look, *texts: str) -> bool:
    return look.find.lower() in " ".join(texts).lower()
