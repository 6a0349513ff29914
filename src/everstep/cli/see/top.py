"""A run, live in the terminal: the picture that the page has, in 80 columns, over any ssh.

Keys: o overview, i incidents, n nodes, r ranks, arrows or j and k move, / find, q quit. Without a terminal it prints
the picture once. A run that is over is shown as it ended.
"""

import argparse
import contextlib
import os
import re
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Iterator

import msgspec

from everstep.cli.reading import show, show_json, style
from everstep.errors import EverstepError, JournalError
from everstep.journal.beside import paces
from everstep.journal.runs import find_run
from everstep.report.parts.ansi import safe
from everstep.report.parts.json_values import Json
from everstep.report.picture.stragglers import stragglers_page
from everstep.report.top.page import Look, render_top
from everstep.web.recorded import Recorded

_ENTER = "\x1b[?1049h\x1b[?25l"  # a screen of its own, no cursor
_LEAVE = "\x1b[?25h\x1b[?1049l"
_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|[\s\S]")
_VIEWS = {"o": "overview", "i": "incidents", "n": "nodes", "r": "ranks"}
_MOVES = {"j": 1, "k": -1, "\x1b[B": 1, "\x1b[A": -1, "\x1b[6~": 10, "\x1b[5~": -10, " ": 10}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN", help="id, directory or journal file; default: the latest")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks; default: 1")
    parser.add_argument("--once", action="store_true", help="print it once, as without a terminal")
    parser.add_argument("--view", choices=sorted(_VIEWS.values()), default="overview", help="what it begins with")
    parser.add_argument("--json", action="store_true", help="the rows, once (docs/page.md)")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError, JournalError."""
    source = Recorded(find_run(given.run, given.run_dir))
    rows = source.look_rows()
    if given.json:
        show_json(rows)
        return 0
    if given.once or not (sys.stdin.isatty() and sys.stdout.isatty()):
        lines = render_top(_shown(source, rows, given.view), _look_of(Look(view=given.view), once=True), style())
        show("\n".join(line.rstrip() for line in lines).rstrip() + "\n")
        return 0
    with _own_screen():
        _watch(source, rows, max(0.2, given.every), given.view)
    return 0


class _Screen:
    """State of the screen: what the user has chosen so far, key by key."""

    def __init__(self, view: str) -> None:
        self.look = Look(view=view)
        self.is_typing = False
        self.is_over = False

    def take(self, key: str) -> None:
        if self.is_typing:
            self.look, self.is_typing = _typed(self.look, key)
        elif key in ("q", "\x04"):
            self.is_over = True
        elif key == "/":
            self.look = msgspec.structs.replace(self.look, find="", first=0, view=_listed(self.look))
            self.is_typing = True
        else:
            self.look = _chosen(self.look, key)


def _watch(source: Recorded, rows: dict[str, Json], every_s: float, view: str) -> None:
    screen, stale, looked_at = _Screen(view), "", time.monotonic()
    while not screen.is_over:
        screen.look = _look_of(screen.look)
        _draw(render_top(_shown(source, rows, screen.look.view), screen.look, style(), stale))
        for key in _keys(max(0.0, looked_at + every_s - time.monotonic())):
            screen.take(key)
        if time.monotonic() >= looked_at + every_s:
            try:
                rows, stale = source.look_rows(), ""
            except EverstepError as error:
                stale = f"the journal cannot be read: {error}"
            looked_at = time.monotonic()


def _shown(source: Recorded, rows: dict[str, Json], view: str) -> dict[str, Json]:
    """With which rank was how slow, where that is asked, was measured, and can be read."""
    if view == "ranks":
        with contextlib.suppress(JournalError):
            if (found := paces.load(source.run_dir)) is not None:
                return rows | {"ranks": msgspec.to_builtins(stragglers_page(found))}
    return rows


def _listed(look: Look) -> str:
    return "incidents" if look.view == "overview" else look.view


def _chosen(look: Look, key: str) -> Look:
    if key in _VIEWS:
        return msgspec.structs.replace(look, view=_VIEWS[key], first=0)
    if key == "\x1b":
        return msgspec.structs.replace(look, find="", first=0)
    return msgspec.structs.replace(look, first=max(0, look.first + _MOVES.get(key, 0)))


def _typed(look: Look, key: str) -> tuple[Look, bool]:
    """(look, whether typing continues)."""
    if key in ("\r", "\n", "\x1b"):
        return look if key in ("\r", "\n") else msgspec.structs.replace(look, find=""), False
    if key in ("\x7f", "\b"):
        return msgspec.structs.replace(look, find=look.find[:-1]), True
    if len(key) == 1 and key.isprintable():
        return msgspec.structs.replace(look, find=look.find + key, first=0), True
    return look, True


def _look_of(look: Look, *, once: bool = False) -> Look:
    size = shutil.get_terminal_size((80, 24))
    return msgspec.structs.replace(look, width=size.columns, height=0 if once else max(6, size.lines))


def _draw(lines: list[str]) -> None:
    """The whole screen in one write: nothing flickers, and a slow line gets one picture at a time."""
    content = "\r\n".join(safe(line) + "\x1b[K" for line in lines)
    sys.stdout.write("\x1b[H" + content + "\x1b[J")
    sys.stdout.flush()


def _keys(limit_s: float) -> list[str]:
    """Those that were pressed within that time, however many came at once."""
    fd = sys.stdin.fileno()
    if not select.select([fd], [], [], limit_s)[0]:
        return []
    return _KEY.findall(os.read(fd, 4096).decode(errors="replace")) or ["q"]  # nothing to read: the terminal is gone


@contextlib.contextmanager
def _own_screen() -> Iterator[None]:
    """The terminal as it was, whatever happens."""
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    ended = signal.signal(signal.SIGTERM, _end)
    sys.stdout.write(_ENTER)
    try:
        tty.setcbreak(fd)
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        signal.signal(signal.SIGTERM, ended)


def _end(number: int, _: object) -> None:
    raise SystemExit(128 + number)
