"""A report as text for a terminal, as Markdown, and as one HTML file that asks for nothing else. Pure.

What a rank wrote stays text in all of them.
"""

from everstep.report.goodput import bar
from everstep.report.handing.html import document, table, text
from everstep.report.handing.markdown import plain
from everstep.report.parts import layout
from everstep.report.parts.ansi import PLAIN, Paint, Style
from everstep.report.period.plots import goodput_svg
from everstep.report.period.schema import Period
from everstep.report.period.sections import Section, facts, headline, sections

TITLE = "Everstep report"


def render_text(period: Period, style: Style = PLAIN) -> str:
    lines = [style(headline(period), Paint.BOLD), *(style(fact, Paint.DIM) for fact in facts(period))]
    for section in sections(period):
        lines += ["", style(section.title, Paint.BOLD)]
        if not section.rows:
            lines.append(f" {section.empty}")
            continue
        cut = [tuple(_cut(cell) for cell in row) for row in section.rows]
        rows = [(*row, bar(_share(row[-1]), 30)) for row in cut] if _has_bars(section) else cut
        head = (*section.head, "") if _has_bars(section) else section.head
        lines += layout.table(head, rows, style, indent=" ")
    return layout.text_of(lines)


def render_markdown(period: Period) -> str:
    lines = [f"# {TITLE}: {plain(headline(period))}", "", *(f"{plain(fact)}  " for fact in facts(period)), ""]
    for section in sections(period):
        lines += [f"## {section.title}", ""]
        if not section.rows:
            lines += [section.empty, ""]
            continue
        marks = ["---:" if place >= section.right else "---" for place in range(len(section.head))]
        lines += [_cells(section.head), "| " + " | ".join(marks) + " |"]
        lines += [*(_cells([plain(cell) for cell in row]) for row in section.rows), ""]
    return "\n".join(lines)


def render_html(period: Period) -> str:
    body = [f"<h1>{text(headline(period))}</h1>", *(f"<p class=dim>{text(fact)}</p>" for fact in facts(period))]
    body.append(goodput_svg(period))
    for section in sections(period):
        body.append(f"<h2>{text(section.title)}</h2>")
        if section.rows:
            body.append(table(section.head, section.rows, section.right))
        else:
            body.append(f"<p>{text(section.empty)}</p>")
    return document(TITLE, body)


def _cut(cell: str, most: int = 64) -> str:
    """In a terminal; the other forms have room for all of it."""
    return cell if len(cell) <= most else f"{cell[: most - 1]}…"


def _cells(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def _has_bars(section: Section) -> bool:
    return section.head[-1] == "share"


def _share(cell: str) -> float:
    return float(cell.rstrip("%")) / 100.0
