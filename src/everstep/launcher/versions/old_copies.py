"""Removes copies of code that will not be rolled back to: of runs that are over, all but the newest.

A run directory stays for as long as its user wants; its copy of the code is needed only while the run can still be
started again. Called beside the start of another run. Never raises for what it finds.
"""

import contextlib
import os
import shutil
import stat
from pathlib import Path

from everstep.errors import JournalError
from everstep.journal.format import LineError, decode_record
from everstep.journal.runs import RunDir
from everstep.linux.regular import regular
from everstep.model.actions import Finish
from everstep.model.record import Record

KEPT = 20
"""How many ended runs keep their copy, to show what ran."""

_TAIL_BYTES = 256 << 10


def remove_old_copies(runs: Path, kept: int = KEPT) -> int:
    """How many were removed. `runs`: the directory of a home's runs; those that lie elsewhere are left alone."""
    found = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(runs):
            with contextlib.suppress(OSError):
                code = Path(entry.path) / "code"
                if entry.is_dir(follow_symlinks=False) and stat.S_ISDIR((at := code.lstat()).st_mode):
                    found.append((at.st_mtime_ns, code))
    removed = 0
    for _, code in sorted(found, reverse=True)[kept:]:
        if is_over(RunDir(code.parent)):
            shutil.rmtree(code, ignore_errors=True)
            removed += 1
    return removed


def is_over(run_dir: RunDir) -> bool:
    """It ended, and is never continued: the last record says so. False when that is not known."""
    try:
        with regular(run_dir.journal) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES)
        if run_dir.controller_pid() is not None or not tail.endswith(b"\n"):
            return False
        last = decode_record(tail[:-1].rsplit(b"\n", 1)[-1])
    except (OSError, LineError, JournalError):
        return False
    return isinstance(last, Record) and any(isinstance(action, Finish) for action in last.actions)
