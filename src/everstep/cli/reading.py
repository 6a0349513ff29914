"""Shared code of the reading commands: which run, its folded journal, the time of asking, and how to print."""

import argparse
import sys
import time
from typing import Any

import msgspec

from everstep.errors import ConfigError
from everstep.goodput.figures import Goodput, goodput_of
from everstep.journal.beside.succession import known
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.journal.runs import RunDir, find_run
from everstep.journal.view import IncidentView, RunView
from everstep.report.parts.ansi import Style, safe, safe_json, style_for
from everstep.report.parts.asked import Asked


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    run_dir: RunDir
    view: RunView
    asked: Asked

    @property
    def goodput(self) -> Goodput:
        is_live = self.asked.has_controller and not self.view.is_over
        return goodput_of(history_of(self.view, self.asked.at if is_live else None))


def add_run_arguments(parser: argparse.ArgumentParser, *, positional: bool = True) -> None:
    if positional:
        parser.add_argument("run", nargs="?", metavar="RUN", help="id, directory or journal file; default: the latest")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--json", action="store_true", help="for programs; keys in docs/reading-a-run.md")


def open_run(run: str | None, run_dir: str | None) -> Opened:
    """Raises ConfigError, JournalError."""
    found = find_run(run, run_dir)
    # Asked before the journal is read: a controller that ends in between has written its last record by then.
    now, pid, succession = time.time(), found.controller_pid(), known(found.path)
    if pid is None and succession is not None and succession.is_elsewhere(now):
        pid = 0  # on another host
    asked = Asked(at=now, controller_pid=pid, controller=succession.text(now) if succession is not None else "")
    return Opened(run_dir=found, view=load_run(found.journal), asked=asked)


def find_incident(view: RunView, name: str) -> IncidentView:
    """By id, or the last one for "last". Raises ConfigError."""
    if name == "last" and view.incidents:
        return list(view.incidents.values())[-1]
    incident = view.incidents.get(name)
    if incident is None:
        known = f"there are: {', '.join(view.incidents)}" if view.incidents else "none exist"
        raise ConfigError(f"no incident {name!r} in run {view.run}; {known}")
    return incident


def show(text: str) -> None:
    """A page. What a job wrote into its journal does not steer the terminal."""
    sys.stdout.write(safe(text))


def show_raw(text: str) -> None:
    """Print what ranks wrote: byte by byte into a file or a pipe, onto a terminal like any page."""
    sys.stdout.write(safe(text) if sys.stdout.isatty() else text)


def show_json(value: Any) -> None:  # noqa: ANN401  (whatever JSON can hold)
    sys.stdout.write(safe_json(msgspec.json.format(msgspec.json.encode(value), indent=2).decode()) + "\n")


def style() -> Style:
    return style_for(sys.stdout)
