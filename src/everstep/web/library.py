"""All runs of a directory as rows, newest first. A run that cannot be read is a row that says so.

A journal is read once and kept by size and time. Two hundred are listed within a second: what does not fit into a
part of that is read the next time, and listed as unread until then.
"""

import os
import re
import stat
import time
from pathlib import Path

import msgspec

from everstep.errors import EverstepError
from everstep.goodput.figures import goodput_of
from everstep.journal.history import history_of
from everstep.journal.load import load_run
from everstep.journal.runs import JOURNAL_NAME, LATEST, RunDir
from everstep.report.parts.asked import Asked
from everstep.report.picture.costs import EXACT
from everstep.report.picture.runs import RunRow, run_row, unread_row

BUDGET_S = 0.5
MAX_RUNS = 5000
MOST_BYTES = 64 << 20
"""Limit for a journal that is read for a list; a longer one is listed by name, and read when it is opened."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    key: tuple[int, int, bool]  # size, time, whether a controller has it
    row: RunRow


class Library:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: dict[str, _Kept] = {}
        self.is_behind = False
        """Some were not read for want of time; they are the next time."""

    def find(self, name: str) -> RunDir | None:
        """None: no such run."""
        path = self._folder / name
        if not NAME.fullmatch(name) or not (path / JOURNAL_NAME).is_file():
            return None
        return RunDir(path.resolve())

    def rows(self, budget_s: float = BUDGET_S) -> list[RunRow]:
        until, self.is_behind = time.monotonic() + budget_s, False
        found = [self._row(name, key, until) for name, key in self._names()[:MAX_RUNS]]
        return sorted(found, key=lambda row: (not row.is_live, -(row.last_at or 0.0), row.name))

    def _names(self) -> list[tuple[str, os.stat_result]]:
        """Newest first, so that those are read first. A link to a run that is there by its own name is not doubled."""
        found, seen = [], set()
        with os.scandir(self._folder) as entries:
            listed = sorted(entries, key=lambda entry: (entry.is_symlink(), entry.name))
        for entry in listed:
            if entry.name == LATEST or not NAME.fullmatch(entry.name):
                continue
            try:
                status = (Path(entry.path) / JOURNAL_NAME).stat()
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                found.append((entry.name, status))
        return sorted(found, key=lambda each: -each[1].st_mtime)

    def _row(self, name: str, status: os.stat_result, until: float) -> RunRow:
        if not stat.S_ISREG(status.st_mode):
            return unread_row(name, "its journal is not a regular file", is_damaged=True)
        run_dir = RunDir(self._folder / name)
        pid = run_dir.controller_pid()
        key = status.st_size, status.st_mtime_ns, pid is not None
        kept = self._kept.get(name)
        if kept is not None and kept.key == key:
            return kept.row
        if status.st_size > MOST_BYTES:
            why = f"its journal has {status.st_size >> 20} MiB: open it to read it"
            return unread_row(name, why, is_damaged=False, last_at=status.st_mtime)
        if time.monotonic() > until:
            self.is_behind = True
            why = "not read yet: there are many; it comes when the list is asked for again"
            return unread_row(name, why, is_damaged=False, last_at=status.st_mtime)
        row = self._read(name, run_dir, pid, status.st_mtime)
        self._kept[name] = _Kept(key=key, row=row)
        return row

    def _read(self, name: str, run_dir: RunDir, pid: int | None, at: float) -> RunRow:
        asked = Asked(at=time.time(), controller_pid=pid)
        try:
            view = load_run(run_dir.journal)
            size = view.spec.world_size * len(view.generations) if view.spec is not None else 0
            live = asked.at if asked.has_controller else None
            goodput = goodput_of(history_of(view, live)) if size <= EXACT else None
            return run_row(name, view, asked, goodput)
        except EverstepError as error:
            return unread_row(name, str(error), is_damaged=True, last_at=at)
        except Exception as error:  # a journal edited by hand must not hide the others
            why = f"its journal cannot be understood: {type(error).__name__}: {error}"
            return unread_row(name, why, is_damaged=True, last_at=at)
