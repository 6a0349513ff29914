"""Record what one rank does for some seconds, as one trace on one time axis: Python stacks, steps, collectives, waits
for a CPU and, with EVERSTEP_EBPF=on, what the kernel saw. Open the file in https://ui.perfetto.dev.

Run it on the host of the rank, as the run's user or root. The rank is not stopped. Each track is measured, or says why
it is missing. At the end all ranks are asked once for their flight records, as `everstep doctor` does.
"""

import argparse
import math
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from everstep.agent.memory.foreign_board import RankLine, find_line
from everstep.cli.reading import show, show_json
from everstep.cli.see import tracing
from everstep.errors import ConfigError
from everstep.journal.load import load_run
from everstep.journal.runs import RunDir, find_run
from everstep.journal.view import RunView
from everstep.report.now.trace import Trace, render, statements, to_object
from everstep.report.parts.layout import text_of

MAX_S = 120.0
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?")
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
    with _line_of(view, given.rank) as line:
        trace = tracing.record(run_dir, view.run, line, seconds)
    path, size = _write(trace, Path(given.out) if given.out else _place(run_dir, trace))
    if given.json:
        said = {"path": str(path), "bytes": size, "rank": trace.rank, "pid": trace.pid, "generation": trace.generation}
        show_json(said | {"begin": trace.begin, "end": trace.end, "tracks": statements(trace)})
    else:
        show(text_of(render(trace, str(path), size)))
    return 0


def _seconds(text: str) -> float:
    found = _DURATION.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS[found[2] or ""] if found else math.nan
    if not 0.1 <= seconds <= MAX_S:
        raise ConfigError(f"--for {text!r}: must be a time from 100ms to {MAX_S / 60:g}m, such as 10s")
    return seconds


@contextmanager
def _line_of(view: RunView, rank: int) -> Iterator[RankLine]:
    """Of the rank's process, which is on this machine. Raises ConfigError with the reason where it is not."""
    world = len(view.generation.accounts) if view.generation is not None else 0
    if world and not 0 <= rank < world:
        raise ConfigError(f"no rank {rank}: run {view.run} has ranks 0 to {world - 1}")
    others = []
    for node in view.nodes.values():
        if node.lost is not None:
            continue
        try:
            with find_line(node.pid, rank) as line:
                if line is not None:
                    yield line
                    return
        except PermissionError:
            others.append(f"the agent of node {node.node} belongs to another user: run this as that user or as root")
        except (FileNotFoundError, ProcessLookupError):
            others.append(f"node {node.node} is on host {node.host}: run this there")
    why = "; ".join(others) or "it has no process at the moment: it has not started yet, or is being restarted"
    raise ConfigError(f"rank {rank} of run {view.run} cannot be traced from here: {why}")


def _place(run_dir: RunDir, trace: Trace) -> Path:
    folder = run_dir.path / "traces"
    folder.mkdir(exist_ok=True, mode=0o700)
    return folder / f"rank-{trace.rank}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(trace.begin))}.json"


def _write(trace: Trace, path: Path) -> tuple[Path, int]:
    """Raises ConfigError."""
    data = msgspec.json.encode(to_object(trace))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    return path, len(data)
