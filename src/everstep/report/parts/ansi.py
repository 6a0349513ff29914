"""Colour for a terminal, or none. Colours are Okabe-Ito (safe for colour-blind); never the only sign of anything.

Calm by default: a healthy run shows almost no colour. Small on purpose: the reading verbs must start quickly.
"""

import enum
import os
import re
from typing import TextIO


class Paint(enum.StrEnum):
    """Foreground colours of the 256-colour table that are nearest to Okabe-Ito."""

    BOLD = "1"
    DIM = "2"
    BLUE = "38;5;25"
    SKY = "38;5;74"
    GREEN = "38;5;36"
    ORANGE = "38;5;178"
    RED = "38;5;166"
    PURPLE = "38;5;175"
    YELLOW = "38;5;227"
    GREY = "38;5;245"


class Style:
    """`style(text, Paint.RED)`: painted when colours are on, unchanged otherwise."""

    def __init__(self, *, colour: bool) -> None:
        self.colour = colour

    def __call__(self, text: str, *paints: Paint) -> str:
        if not self.colour or not paints or not text:
            return text
        return f"\x1b[{';'.join(paints)}m{text}\x1b[0m"


PLAIN = Style(colour=False)


def style_for(stream: TextIO) -> Style:
    """Colours only on a terminal that is not dumb and without NO_COLOR."""
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM", "") == "dumb"
    return Style(colour=not plain and stream.isatty())


_COLOUR = re.compile(r"\x1b\[(?:0|[12]|38;5;\d{1,3})(?:;(?:[12]|38;5;\d{1,3})){0,4}m")
"""What `Style` writes."""


def safe(text: str) -> str:
    """A whole page, safe for a terminal: our colours, and no other control character, whatever wrote the text."""
    if text.isprintable():
        return text
    parts, at = [], 0
    for colour in _COLOUR.finditer(text):
        parts += [printable(text[at : colour.start()]), colour.group()]
        at = colour.end()
    return "".join((*parts, printable(text[at:])))


def safe_json(text: str) -> str:
    """JSON of which every character can be printed; a program reads the same."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\n" else _escaped(c) for c in text)


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def printable(text: str) -> str:
    """Text of the job's own (messages, tracebacks) without control characters that would steer the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """Return the text as `printable` does, and without line ends: a file's name may hold one, and would write lines of
    the report itself."""
    return printable(text).replace("\n", "\\n")
