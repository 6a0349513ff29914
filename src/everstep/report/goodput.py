"""`everstep goodput`: where the seconds went, as bars. Figures to text; pure. Definitions are named with figures."""

import math

from everstep.goodput.buckets import GLOSSARY, Bucket
from everstep.goodput.figures import Goodput
from everstep.journal.view import RunView
from everstep.report.parts.ansi import PLAIN, Paint, Style
from everstep.report.parts.asked import Asked
from everstep.report.parts.layout import table, text_of
from everstep.report.parts.units import NOT_MEASURED, duration, percent, stamp

BAR_WIDTH = 46
_EIGHTHS = " ▏▎▍▌▋▊▉"
_PAINTS = {
    Bucket.PRODUCTIVE: Paint.BLUE,
    Bucket.REDONE: Paint.PURPLE,
    Bucket.CHECKPOINT_STALL: Paint.YELLOW,
    Bucket.IDLE: Paint.GREY,
    Bucket.NOT_MEASURED: Paint.GREY,
}


def render_goodput(view: RunView, goodput: Goodput, asked: Asked, style: Style = PLAIN) -> str:
    ettr = f"goodput {percent(goodput.ettr, 2)}"
    head = f"{view.run}   wall {duration(goodput.wall_s)} x {goodput.num_ranks} ranks   {style(ettr, Paint.BOLD)}"
    window = ""
    if goodput.window_s < goodput.wall_s:
        window = f"   last {duration(goodput.window_s)} {percent(goodput.window_ettr, 2)}"
    lines = [
        head + window,
        style("ETTR = productive / (wall x ranks); rows are means over ranks and add up to 100", Paint.DIM),
    ]
    if asked.is_gone(view):
        lines.append(f"up to {stamp(view.last_at)}, when the controller's records end")
    lines += [_row(goodput, bucket, style) for bucket in Bucket]
    lines += ["", _invalid(goodput)]
    if goodput.incidents:
        lines += ["", *_by_incident(goodput, style)]
    return text_of(lines)


def render_glossary() -> str:
    return text_of(f"{bucket.replace('_', ' '):<17} {GLOSSARY[bucket]}" for bucket in Bucket)


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """Eighths of a character; anything above nothing is visible."""
    eighths = round(share * width * 8)
    if eighths == 0 and share > 0.0:
        eighths = 1
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _row(goodput: Goodput, bucket: Bucket, style: Style) -> str:
    share = goodput.share(bucket)
    if share is None:
        return f" {bucket.replace('_', ' '):<17}{NOT_MEASURED:>9}"
    mean_s = goodput.seconds[bucket] / goodput.num_ranks
    drawn = style(bar(share), _PAINTS.get(bucket, Paint.ORANGE))
    return f" {bucket.replace('_', ' '):<17}{duration(mean_s):>9}  {drawn}{' ' if share > 0 else ''}{100 * share:.2f}"


def _invalid(goodput: Goodput) -> str:
    invalid = goodput.invalid
    formula = (
        f"{invalid.num_interruptions} x (detect {duration(invalid.detect_s)} + schedule {duration(invalid.schedule_s)}"
        f" + initialise {duration(invalid.initialise_s)} + recompute {duration(invalid.recompute_s)})"
        f" + checkpoint {duration(invalid.checkpoint_s)}"
    )
    return f"invalid time (Baige) {duration(invalid.invalid_s)} = {formula}"


def _by_incident(goodput: Goodput, style: Style) -> list[str]:
    ranks = max(1, goodput.num_ranks)
    shown = (Bucket.DETECT, Bucket.DIAGNOSE, Bucket.SCHEDULE, Bucket.INITIALISE, Bucket.RESTORE, Bucket.REDONE)
    rows = []
    for incident, cost in goodput.incidents.items():
        cells = [duration(cost.get(bucket, 0.0) / ranks) for bucket in shown]
        rows.append((incident, *cells, duration(math.fsum(cost.values()) / ranks)))
    return table(("by incident", *(str(bucket) for bucket in shown), "sum"), rows, style, indent=" ")
