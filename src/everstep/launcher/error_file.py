"""The launcher's own TORCHELASTIC_ERROR_FILE: what a job scheduler reads to know why a job failed.

As torchrun writes it: the report of the rank that failed first, with its exit code; or the launcher's own error. A rank
that left no report (a signal, sys.exit) leaves none here either. Never a reason to fail.
"""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.agent.processes.report_file import SYSTEM_EXIT, read_bytes
from everstep.journal.runs import RunDir
from everstep.journal.view import RunView
from everstep.linux.files import write_whole

VARIABLE = "TORCHELASTIC_ERROR_FILE"

log = logging.getLogger("everstep.launcher")


def write_report_of(view: RunView | None, run_dir: Path, environ: Mapping[str, str]) -> None:
    """After a run that failed: the report of the rank to which the last incident is laid."""
    path = environ.get(VARIABLE)
    incident = next(reversed(view.incidents.values()), None) if view is not None else None
    if not path or view is None or incident is None or incident.verdict is None:
        return
    generation = next((each for each in view.generations if each.number == incident.generation), None)
    for rank in incident.verdict.ranks:
        report = _read(RunDir(run_dir).errors / f"gen-{incident.generation}" / f"rank-{rank}.json")
        if report is not None:
            end = generation.exits.get(rank) if generation is not None else None
            _write(path, _with_code(report, end.code or -(end.signal or 0) if end is not None else 0))
            return


def write_error(kind: str, message: str, environ: Mapping[str, str]) -> None:
    """Write what ended the launcher itself: a setting, a signal."""
    if path := environ.get(VARIABLE):
        extra = {"py_callstack": f"{kind}: {message}", "timestamp": str(int(time.time()))}
        _write(path, {"message": {"message": f"{kind}: {message}", "extraInfo": extra}})


def _read(path: Path) -> dict[str, Any] | None:
    try:
        report = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(report, dict) or "message" not in report:
        return None
    own = report.pop("everstep", None)
    return None if isinstance(own, dict) and own.get("kind") == SYSTEM_EXIT else report


def _with_code(report: dict[str, Any], code: int) -> dict[str, Any]:
    if code and isinstance(report["message"], dict):
        report["message"]["errorCode"] = code
    return report


def _write(path: str, report: dict[str, Any]) -> None:
    """Whole or not at all."""
    try:
        write_whole(path, json.dumps(report).encode())
    except (OSError, ValueError, RecursionError) as error:
        log.warning("%s %s cannot be written: %s", VARIABLE, path, error)
