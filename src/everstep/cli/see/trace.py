"""Record what one rank does for some seconds, as one trace on one time axis: Python stacks, steps, collectives, waits
for a CPU and, with EVERSTEP_EBPF=on, what the kernel saw. Open the file in https://ui.perfetto.dev.

Run it on the first host of the run, as the run's user or root: a rank of another host is traced by its own node, and
the file comes here. The rank is not stopped. Each track is measured, or says why it is missing. At the end the rank is
asked for its flight record; where it is on this host all ranks are, as by `everstep doctor`.
"""

import argparse
import contextlib
import math
import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from everstep.agent.memory.foreign_board import RankLine, find_line
from everstep.agent.tracing import files, tracks
from everstep.agent.tracing.flights import NAME, flight_track
from everstep.cli.ask import named, post
from everstep.cli.examine.doctor import await_evidence
from everstep.cli.reading import show, show_json
from everstep.cli.see.elsewhere import record_elsewhere
from everstep.cli.waiting import waiting
from everstep.core.faults.tracing import MAX_ASKED_S
from everstep.errors import ConfigError, EverstepError
from everstep.journal.load import load_run
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir, find_run
from everstep.journal.view import RunView
from everstep.model.names import own_machine_name
from everstep.report.now.trace import Trace, Track, render, summary_of
from everstep.report.parts.layout import text_of

MAX_S = MAX_ASKED_S
EVIDENCE_S = 15.0
_MAX_NAMES = 10
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
_NO_PROCESS = "has no process at the moment: it has not started yet, or is being restarted"
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("rank",), metavar="rank", help="the word rank")
    parser.add_argument("rank", type=int, metavar="N", help="which one")
    parser.add_argument("run", nargs="?", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--run-dir", metavar="DIR", help="the run's directory, as given to everstep run")
    parser.add_argument("--for", dest="seconds", default="10s", metavar="TIME", help="10s (default), 500ms, at most 2m")
    parser.add_argument("--out", metavar="FILE", help="default: traces/ in the run's directory")
    parser.add_argument("--json", action="store_true", help="what was recorded, and where, as one object")


def run(given: argparse.Namespace) -> int:
    """Raises ConfigError, JournalError, UnreachableError."""
    seconds = _seconds(given.seconds)
    run_dir = find_run(given.run, given.run_dir)
    if run_dir.controller_pid() is None:
        raise ConfigError(f"the run in {run_dir.path} is over: there is nothing to trace")
    view = load_run(run_dir.journal)
    if not given.out:
        _check_folder(run_dir.path)
    with _line_of(view, given.rank) as line, waiting("tracing", round(seconds), "second") as bar:
        if line is None:
            found, path, data = record_elsewhere(
                run_dir, given.rank, seconds, lambda passed_s: bar.at(int(passed_s), bar.total, "on its host")
            )
            size = len(data)
            if given.out:
                path = written_to(given.out, data)
        else:
            trace = tracks.record(
                view.run,
                line,
                line.pid,
                seconds,
                partial(_collectives, run_dir, line.rank, line.generation),
                lambda passed_s, step: bar.at(int(passed_s), bar.total, f"step {step}" if step >= 0 else ""),
            )
            found, (path, size) = summary_of(trace), _write(run_dir, trace, given.out)
    if given.json:
        show_json({"path": str(path), "bytes": size} | msgspec.to_builtins(found))
    else:
        show(text_of(render(found, str(path), size)))
    return 0


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or ""] if found else math.nan
    if not 0.1 <= seconds <= MAX_S:
        raise ConfigError(f"--for {text!r}: must be a time from 100ms to {MAX_S / 60:g}m, such as 10s")
    return seconds


@contextmanager
def _line_of(view: RunView, rank: int) -> Iterator[RankLine | None]:
    """The line of the rank's process, if that is on this machine; None: it is on another one. Raises ConfigError."""
    generation = view.generation
    world = len(generation.accounts) if generation is not None else 0
    if world and not 0 <= rank < world:
        raise ConfigError(f"no rank {rank}: run {view.run} has ranks 0 to {world - 1}")
    node = view.nodes.get(generation.node_of.get(rank, "")) if generation is not None else None
    if node is None or node.lost is not None:
        raise ConfigError(f"rank {rank} of run {view.run} {_NO_PROCESS}")
    if node.host != own_machine_name(socket.gethostname()):  # a process of that number here would be an unrelated one
        yield None
        return
    try:
        with find_line(node.pid, rank) as line:
            if line is None:
                raise ConfigError(f"rank {rank} of run {view.run} {_NO_PROCESS}")
            yield line
    except PermissionError:
        why = f"the agent of node {node.node} belongs to another user: run this as that user or as root"
        raise ConfigError(f"rank {rank} of run {view.run} cannot be traced from here: {why}") from None
    except (FileNotFoundError, ProcessLookupError):  # of this name, and not this one: a container has names of its own
        yield None


def _collectives(run_dir: RunDir, rank: int, generation: int, begin: float, end: float) -> Track:
    """From the flight record, which all ranks are asked for."""
    try:
        cursor = Cursor(run_dir.journal)
        cursor.read()  # what was before is not ours
        request = named(post(run_dir, "/api/doctor", {}), "request")
        await_evidence(run_dir, cursor, request, EVIDENCE_S)
        path = run_dir.path / "evidence" / request / f"gen-{generation}" / f"rank-{rank}-flight.json"
    except (EverstepError, OSError) as error:
        return Track(name=NAME, is_measured=False, why=str(error)[:200])
    return flight_track(path, begin, end)


def _check_folder(run_dir: Path) -> None:
    """Before there is anything to lose. Raises ConfigError."""
    try:
        with files.opened(run_dir):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot write {run_dir / files.FOLDER}: {error.strerror}; --out FILE says where else"
        ) from error


def _write(run_dir: RunDir, trace: Trace, out: str | None) -> tuple[Path, int]:
    """Raises ConfigError."""
    path = Path(out) if out else run_dir.path / files.FOLDER
    try:
        data = files.encoded(trace)
        return (written_to(out, data) if out else _write_beside(run_dir, trace, data)), len(data)
    except files.TooLargeError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def written_to(out: str, data: bytes) -> Path:
    """Raises ConfigError."""
    path = Path(out)
    try:
        _write_to(path, data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return path


def _write_to(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _write_beside(run_dir: RunDir, trace: Trace, data: bytes) -> Path:
    """Under a name that nothing has yet."""
    name = f"rank-{trace.rank}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(trace.begin))}"
    for number in range(1, _MAX_NAMES):
        with contextlib.suppress(FileExistsError):
            return files.write_new(run_dir.path, f"{name}.json" if number == 1 else f"{name}-{number}.json", data)
    raise ConfigError(f"cannot write {run_dir.path / files.FOLDER / name}.json: it is there already")
