"""Lines and tables of text. Pure; knows widths, no meaning."""

from collections.abc import Iterable, Sequence

from everstep.report.parts.ansi import PLAIN, Paint, Style


def table(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style = PLAIN, indent: str = "") -> list[str]:
    """Columns aligned to the left, two spaces between; the last one is free."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return (indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()

    return [style(line(head), Paint.DIM), *(line(row) for row in rows)]


def field(name: str, text: str, width: int = 9, indent: str = "  ") -> list[str]:
    """`name` in a column of its own before the lines of `text`; a long one takes what it needs of the first line."""
    first, *rest = text.split("\n")
    return [
        f"{indent}{name:<{width - 1}} {first}".rstrip(),
        *(f"{indent}{'':<{width}}{line}".rstrip() for line in rest),
    ]


def fields(name: str, texts: Iterable[str], width: int = 9, indent: str = "  ") -> list[str]:
    """The name once, before the first of several."""
    lines: list[str] = []
    for index, text in enumerate(texts):
        lines += field(name if index == 0 else "", text, width, indent)
    return lines


def text_of(lines: Iterable[str]) -> str:
    return "\n".join(line.rstrip() for line in lines) + "\n"
