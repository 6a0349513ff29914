"""Pages as one HTML file that loads nothing else: an incident, for readers without access to the run. Pure.

Everything that a rank wrote is escaped; the file has no script, and its own policy forbids one.
"""

from collections.abc import Iterable
from html import escape

from everstep.report.handing.markdown import numbers, outcome_of
from everstep.report.parts.ansi import printable
from everstep.report.parts.units import clock, duration, stamp
from everstep.report.picture.schema import IncidentPage

STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #777; --orange: #e69f00; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  font-variant-numeric: tabular-nums; }
h1 { font-size: 1.4rem; line-height: 1.3; margin: .2rem 0; } h2 { font-size: .95rem; margin: 1.6rem 0 .3rem; }
table { border-collapse: collapse; width: 100%; } td, th { text-align: left; padding: .2rem .9rem .2rem 0;
  border-top: 1px solid var(--line); vertical-align: top; font-weight: normal; } th { color: var(--dim); border: 0; }
td.n, th.n { text-align: right; white-space: nowrap; } .dim { color: var(--dim); }
svg text { font: 11px system-ui; fill: var(--dim); }
pre { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid var(--line); padding: .5rem; font-size: 12px; }
td { overflow-wrap: anywhere; } @media print { body { margin: 0; max-width: none; } }
"""

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>{style}</style></head><body>
"""


def text(value: str) -> str:
    return escape(printable(value))


def document(title: str, body: Iterable[str]) -> str:
    return _HEAD.format(title=text(title), style=STYLE) + "\n".join(body) + "\n</body></html>\n"


def table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers_from: int = 99) -> str:
    """Cells are text. From the column `numbers_from` on they stand to the right."""

    def cells(tag: str, row: Iterable[str]) -> str:
        return "".join(
            f"<{tag}{' class=n' if place >= numbers_from else ''}>{text(cell)}</{tag}>"
            for place, cell in enumerate(row)
        )

    heads = cells("th", head)
    lines = [f"<tr>{cells('td', row)}</tr>" for row in rows]
    return "<table>" + (f"<tr>{heads}</tr>" if heads else "") + "".join(lines) + "</table>"


def incident_html(page: IncidentPage, run: str) -> str:
    row = page.row
    body = [
        f"<p class=dim>{text(f'{row.id} of {run}   {stamp(row.at)}   {outcome_of(page)}')}</p>",
        f"<h1>{text(row.sentence)}</h1>",
        f"<p class=dim>{text(f'{row.code} {row.name}   {page.belief}')}</p>",
        table([name for name, _ in numbers(page)], [[value for _, value in numbers(page)]]),
        phases_svg(page),
        "<h2>Do now</h2>",
        f"<p>{text(page.do_now or 'Nothing.')}</p>",
        *(f"<pre>{text(command)}</pre>" for command in page.commands),
        "<h2>What happened</h2>",
        table(
            (), [(clock(m.at), "★" if m.is_key else "", m.says, f"seq {m.seq}" if m.seq else "") for m in page.timeline]
        ),
        "<h2>Evidence, strongest first</h2>",
    ]
    for piece in page.evidence:
        body.append(f"<p><span class=dim>{text(piece.source)} {clock(piece.at)}</span> {text(piece.says)}</p>")
        body += [f"<pre>{text(piece.detail.strip())}</pre>"] if piece.detail.strip() else []
    if page.trace:
        body += ["<h2>Trace of the slow rank</h2>", *(f"<p>{text(line)}</p>" for line in page.trace)]
        body += [f"<p>{text(f'open it in {page.trace_opens}')}</p>"] if page.trace_opens else []
    decided = [("chosen", page.chosen or "none yet"), ("rule", page.rule), ("why", page.why)]
    decided += [("refused", f"{what}: {why}") for what, why in page.refused]
    decided += [("if it comes again", page.then), ("outcome", page.close_why)]
    body += ["<h2>Decision</h2>", table((), [pair for pair in decided if pair[1]])]
    if page.similar:
        body += ["<h2>Similar in this run</h2>"]
        body.append(table((), [(s.id, stamp(s.at), s.why, duration(s.lost_s)) for s in page.similar], 3))
    return document(f"{row.id} of {run}", body)


def phases_svg(page: IncidentPage, width: int = 960) -> str:
    """The phases that were measured, as long as they took."""
    known = [phase for phase in page.phases if phase.length_s is not None]
    whole = sum(phase.length_s or 0.0 for phase in known)
    if whole <= 0.0:
        return ""
    parts, at, free = [], 0.0, 0.0
    for phase in known:
        length = (phase.length_s or 0.0) / whole * width
        says = f"{phase.name} {duration(phase.length_s)}"
        parts.append(f'<rect x="{at:.1f}" width="{max(0.5, length - 1):.1f}" height="14" fill="#E69F00"/>')
        if at >= free and length > 2:
            parts.append(f'<text x="{at:.1f}" y="30">{text(says)}</text>')
            free = at + 6.5 * len(says)
        at += length
    return f'<svg viewBox="0 0 {width} 36" width="100%" role="img">{"".join(parts)}</svg>'
