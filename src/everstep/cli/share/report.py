"""Where the time of a run, or of all runs of a directory, went in a period; and what would help most.

everstep report                       all runs that are known here, the last seven days
everstep report RUN                   one of them, from its start
everstep report DIR --since 30d       all runs in a directory
everstep report --html > week.html    one file with its plots, which needs no access to anything; --md, --json
"""

import argparse
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from everstep.cli.reading import show, show_json, style
from everstep.cli.waiting import waiting
from everstep.errors import ConfigError, EverstepError
from everstep.journal.load import load_run
from everstep.journal.runs import JOURNAL_NAME, LATEST, RunDir, find_run, home
from everstep.report.parts.asked import Asked
from everstep.report.period.gather import edges_of, part_of, period_of
from everstep.report.period.render import render_html, render_markdown, render_text
from everstep.report.period.schema import Period, RunPart, Unread

WEEK_S = 7 * 86400.0
_UNITS = {"m": 60.0, "h": 3600.0, "d": 86400.0, "w": WEEK_S}
_LENGTH = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("which", nargs="?", metavar="RUN|DIR", help="an id, a run's directory, or one with runs in it")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--since", metavar="7d", help="30m, 12h, 7d, 2w; default: a run from its start, else 7d")
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--html", action="store_true", help="one HTML file that asks for nothing else")
    forms.add_argument("--md", action="store_true", help="Markdown")
    forms.add_argument("--json", action="store_true", help="for programs; keys in docs/report.md")


def run(given: argparse.Namespace) -> int:
    period = gather(given.which, given.run_dir, None if given.since is None else length_s(given.since), time.time())
    if given.json:
        show_json(msgspec.to_builtins(period))
    elif given.html:
        show(render_html(period))
    elif given.md:
        show(render_markdown(period))
    else:
        show(render_text(period, style()))
    return 0


def length_s(text: str) -> float:
    """Raises ConfigError."""
    found = _LENGTH.fullmatch(text)
    if found is None or float(found[1]) <= 0.0:
        raise ConfigError(f"--since {text!r}: a number and m, h, d or w, as 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def gather(which: str | None, run_dir: str | None, since_s: float | None, now: float) -> Period:
    """Gather the runs of the period. Raises ConfigError, JournalError."""
    folder = _folder(which, run_dir)
    if folder is None:
        return _of_one(find_run(which, run_dir), since_s, now)
    edges = edges_of(now - (since_s or WEEK_S), now)
    parts: list[RunPart] = []
    unread: list[Unread] = []
    found = [each for each in _run_dirs(folder) if _touched_at(each) >= edges[0]]
    with waiting("reading", len(found), "run") as bar:
        for each in found:
            try:
                part = _part(each, edges, now)
                parts += [] if part is None else [part]
            except EverstepError as error:
                unread.append(Unread(name=each.path.name, why=str(error)))
            except Exception as error:  # a journal edited by hand must not hide the others
                why = f"its journal cannot be understood: {type(error).__name__}: {error}"
                unread.append(Unread(name=each.path.name, why=why))
            bar.step()
    return period_of(str(folder), parts, edges, unread)


def _of_one(found: RunDir, since_s: float | None, now: float) -> Period:
    asked = Asked(at=now, controller_pid=found.controller_pid())
    view = load_run(found.journal)
    until = asked.at if asked.has_controller and not view.is_over else view.finished_at or view.last_at or now
    begun = view.started_at if view.started_at is not None else until
    since = begun if since_s is None else until - since_s
    edges = edges_of(since, max(until, since + 1.0))
    part = part_of(found.path.name, view, asked, edges)
    return period_of(str(found.path), [] if part is None else [part], edges)


def _part(run_dir: RunDir, edges: tuple[float, ...], now: float) -> RunPart | None:
    asked = Asked(at=now, controller_pid=run_dir.controller_pid())
    return part_of(run_dir.path.name, load_run(run_dir.journal), asked, edges)


def _folder(which: str | None, run_dir: str | None) -> Path | None:
    """The directory with runs; None: one run is meant."""
    if run_dir is not None:
        return None
    if which is None:
        folder = home() / "runs"
        if not folder.is_dir():
            raise ConfigError(f"no run yet in {home()}. Try: everstep demo")
        return folder
    path = Path(which).expanduser()
    return path.absolute() if path.is_dir() and not (path / JOURNAL_NAME).exists() else None


def _run_dirs(folder: Path) -> Iterator[RunDir]:
    """A link to a run that is there by its own name is not doubled."""
    seen = set()
    with os.scandir(folder) as entries:
        listed = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
    for entry in listed:
        try:
            path = Path(entry.path).resolve()
        except (OSError, RuntimeError):  # a link to itself
            continue
        if entry.name != LATEST and path not in seen and (path / JOURNAL_NAME).is_file():
            seen.add(path)
            yield RunDir(path)


def _touched_at(run_dir: RunDir) -> float:
    try:
        return run_dir.journal.stat().st_mtime
    except OSError:
        return 0.0
