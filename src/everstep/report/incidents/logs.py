"""`everstep logs`: pieces of log files with a head saying whose they are; and the first error of an incident. Pure."""

import msgspec

from everstep.journal.view import IncidentView
from everstep.report.incidents.incident import code_text, who
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.units import clock


class LogPiece(msgspec.Struct, frozen=True, kw_only=True):
    generation: int
    rank: int
    stream: str  # "stdout" | "stderr"
    path: str
    lines: list[str]
    left_out_bytes: int = 0  # before the first line

    @property
    def name(self) -> str:
        return f"gen {self.generation} rank {self.rank} {self.stream}"


def render_pieces(pieces: list[LogPiece], style: Style = PLAIN) -> str:
    """One alone is given as it is, like `cat`; several with a head each, like `tail`."""
    out = []
    for piece in pieces:
        if len(pieces) > 1:
            out.append(style(f"==> {piece.name} <==", Paint.DIM))
        if piece.left_out_bytes and len(pieces) > 1:
            out.append(style(f"... {piece.left_out_bytes:,} bytes before, in {piece.path}", Paint.DIM))
        out += piece.lines
    return "\n".join([*out, ""]) if out else ""


def render_first_error(incident: IncidentView, pieces: list[LogPiece], style: Style = PLAIN) -> str:
    """The cause, with its own words: the report it left, or else the end of what it wrote."""
    verdict = incident.verdict
    if verdict is None:
        return f"{incident.id}  nothing concluded yet\n"
    lines = [f"{incident.id}  {clock(verdict.at)}  {who(incident)}   {code_text(incident)}"]
    lines.append(style(printable(verdict.sentence), Paint.BOLD))
    detail = next((e.detail for e in verdict.evidence if e.detail), "")
    lines += printable(detail).rstrip().splitlines()
    for piece in pieces:
        lines.append(style(f"==> end of {piece.name} ({piece.path}) <==", Paint.DIM))
        lines += piece.lines or ["(nothing was written)"]
    return "\n".join(line.rstrip() for line in lines) + "\n"
