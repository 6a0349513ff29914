"""Show a run's collectives, per group and operation: how often, how long, how many bytes per second, by how much the
ranks come apart and who comes last; now, and beside the same row's own history. Works for any program, without a flag.

DIR may also be a directory of flight records, as `everstep doctor` leaves them. An unknown figure has a reason.
"""

import argparse
import time
from pathlib import Path

from everstep.analyzer.collective.figures import Table
from everstep.cli.reading import show, show_json, style
from everstep.errors import ConfigError
from everstep.journal.beside import collectives
from everstep.journal.runs import JOURNAL_NAME, RunDir, find_run
from everstep.report.now.collectives import render, to_object

_POLL_S = 0.5
NOTHING = (
    "nothing is known of its collectives (yet): agents report every ten seconds which collectives ranks have entered. "
    "They do not with watch_slowness = false in the policy"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", nargs="?", metavar="RUN|DIR", help="id or directory of a run, or of flight records")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--live", action="store_true", help="again whenever there is something new, until the run ends")
    parser.add_argument("--json", action="store_true", help="one object; with --live one for each table")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError, JournalError."""
    records = Path(given.run) if given.run and not given.run_dir else None
    if records is not None and records.is_dir() and not (records / JOURNAL_NAME).exists():
        if given.live:
            raise ConfigError(f"--live needs a run; {records} is a directory of files")
        _print(_of_records(records), given.json)
        return 0
    found = find_run(given.run, given.run_dir)
    if given.live:
        return _live(found, given.json)
    table = collectives.load(found.path)
    if table is None:
        raise ConfigError(f"run in {found.path}: {NOTHING}")
    _print(table, given.json)
    return 0


def _print(table: Table, is_json: bool) -> None:
    if is_json:
        show_json(to_object(table))
    else:
        show(render(table, time.time(), style()))


def _live(found: RunDir, is_json: bool) -> int:
    shown = None
    while True:
        is_over = found.controller_pid() is None
        table = collectives.load(found.path)
        if table is not None and (table.generation, table.at) != shown:
            shown = (table.generation, table.at)
            _print(table, is_json)
        if is_over:
            return 0
        time.sleep(_POLL_S)


def _of_records(place: Path) -> Table:
    """Raises ConfigError."""
    from everstep.analyzer.collective.records import fold_records
    from everstep.evidence.apart import read_apart

    case = read_apart(place, time.time(), with_case=True).folder.case
    records = [each.flight for each in case.ranks if each.flight is not None]
    if not records:
        raise ConfigError(f"{place} has neither a run nor flight records of ranks")
    return fold_records(records, case.at)
