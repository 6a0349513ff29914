"""An incident as Markdown, for a ticket or a chat; and as one HTML file that needs nothing else. Pure.

Whatever a rank wrote stays text: in Markdown inside code spans and fences, in HTML escaped.
"""

import re

from everstep.report.parts.ansi import printable
from everstep.report.parts.units import NOT_MEASURED, clock, count, duration, stamp
from everstep.report.picture.schema import IncidentPage, Moment, Piece

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|!~&])")
_CALLS = re.compile(r"(?<=:)(?=//)|(?<=@)|(?i:(?<=www)(?=\.))")
"""Where a zero-width space keeps an address from being a link, and a name from being a mention."""


def plain(text: str) -> str:
    """A rank's words in a line of Markdown: no markup, no link, no mention of a user, no second line."""
    line = printable(text).replace("\n", " ").replace("\t", " ")
    return _CALLS.sub("\u200b", _MARKS.sub(r"\\\1", line))


def fenced(text: str) -> str:
    """A rank's lines as they are. The fence is longer than any in them."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}\n{printable(text).strip()}\n{fence}"


def numbers(page: IncidentPage) -> list[tuple[str, str]]:
    """The four numbers, and what they cost."""
    row = page.row
    cost = NOT_MEASURED if page.cost_gpu_h is None else f"{page.cost_gpu_h:.3g} rank-hours"
    return [
        ("lost", duration(row.lost_s)),
        ("steps done again", count(row.lost_steps)),
        ("detected in", duration(row.detect_s)),
        ("training again after", duration(page.recovered_s)),
        ("cost", cost),
    ]


def outcome_of(page: IncidentPage) -> str:
    row = page.row
    if row.outcome is None:
        return "open"
    return row.outcome.replace("-", " ") + (f" (drill {row.drill})" if row.drill else "")


def incident_markdown(page: IncidentPage, run: str) -> str:
    row = page.row
    lines = [f"## {plain(row.id)} of {plain(run)}: {plain(row.sentence)}", ""]
    lines += [plain(f"{row.code} {row.name}, {page.belief}. {stamp(row.at)}. {outcome_of(page)}."), ""]
    names, values = zip(*numbers(page), strict=True)
    lines += ["| " + " | ".join(names) + " |", "|" + "---|" * len(names), "| " + " | ".join(values) + " |", ""]
    lines += ["**What happened**", "", *(_moment(moment) for moment in page.timeline), ""]
    lines += ["**Evidence, strongest first**", ""]
    for piece in page.evidence:
        lines += _piece(piece)
    if page.trace:
        lines += ["", "**Trace of the slow rank**", "", *(f"- {plain(line)}" for line in page.trace)]
        lines += [f"- open it in {page.trace_opens}"] if page.trace_opens else []
    lines += [
        "",
        "**Decision**",
        "",
        f"- {plain(page.chosen) or 'none yet'}" + (f" (rule {plain(page.rule)})" if page.rule else ""),
    ]
    lines += [f"- because {plain(page.why)}"] if page.why else []
    lines += [f"- refused: {plain(what)}: {plain(why)}" for what, why in page.refused]
    lines += ["", "**Do now**", "", plain(page.do_now) or "Nothing.", ""]
    lines += [f"    {printable(command)}" for command in page.commands]
    return "\n".join(lines) + "\n"


def _moment(moment: Moment) -> str:
    says = plain(moment.says)
    seq = f" (seq {moment.seq})" if moment.seq is not None else ""
    return f"- {clock(moment.at)} " + (f"**{says}**" if moment.is_key else says) + seq


def _piece(piece: Piece) -> list[str]:
    lines = [
        f"1. {plain(piece.source)}, {clock(piece.at)}: {plain(piece.says)}"
        + (f" (seq {piece.seqs})" if piece.seqs else "")
    ]
    return [*lines, "", fenced(piece.detail), ""] if piece.detail.strip() else lines
