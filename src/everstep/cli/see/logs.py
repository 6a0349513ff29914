"""Show what the ranks wrote, per rank and generation; the newest generation unless another is asked for.

everstep logs --rank 2                  the end of both streams
everstep logs --first-error             what the rank that failed first had to say
everstep logs --follow                  as it is written, until the run ends
"""

import argparse
import os
import re
import sys
import time
from pathlib import Path

import msgspec

from everstep.agent.streams.paths import is_other_name
from everstep.cli.reading import Opened, add_run_arguments, open_run, show, show_json, show_raw, style
from everstep.errors import ConfigError
from everstep.linux.regular import regular
from everstep.report.incidents.logs import LogPiece, render_first_error, render_pieces

STREAMS = ("stdout", "stderr")
DEFAULT_TAIL = 50
FIRST_ERROR_TAIL = 20
_BLOCK_BYTES = 64 << 10
_LOOK_BYTES = 4 << 20
MAX_TAIL_BYTES = 64 << 20
_POLL_S = 0.1
_NUMBERED = re.compile(r"(gen|rank)-(\d+)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser)
    parser.add_argument("--rank", type=int, action="append", metavar="R", help="only this rank; may be repeated")
    parser.add_argument("--generation", type=int, metavar="G", help="default: the newest one with logs")
    parser.add_argument("--stream", choices=STREAMS, help="default: both")
    parser.add_argument(
        "--tail",
        type=int,
        default=None,
        metavar="N",
        help=f"last lines of each file, 0 for all; default {DEFAULT_TAIL}",
    )
    parser.add_argument("--first-error", action="store_true", help="of the last incident: what its cause had to say")
    parser.add_argument("--follow", "-f", action="store_true", help="go on as more is written, until the run ends")


def run(given: argparse.Namespace) -> int:
    if given.tail is not None and given.tail < 0:
        raise ConfigError(f"--tail {given.tail}: must not be negative; 0 is everything")
    opened = open_run(given.run, given.run_dir)
    if given.first_error:
        return _first_error(opened, given)
    if given.follow:
        if given.json:
            raise ConfigError("--follow has no --json: the log files themselves are what to follow")
        return _follow(opened, given)
    tail = DEFAULT_TAIL if given.tail is None else given.tail
    generation = _generation(opened, given.generation)
    pieces = _pieces(opened, generation, given.rank, given.stream, tail)
    if given.json:
        show_json({"run": opened.view.run, "logs": [msgspec.to_builtins(piece) for piece in pieces]})
    else:
        show_raw(render_pieces(pieces, style()))
    return 0


def log_root(opened: Opened) -> Path:
    """The log folder; of a run before 0.2, its --log-dir."""
    spec = opened.view.spec
    old = Path(spec.log_dir) if spec is not None and spec.log_dir else opened.run_dir.logs
    return opened.run_dir.logs if opened.run_dir.logs.exists() else old


def _numbered(folder: Path, kind: str) -> list[int]:
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError:
        return []
    found = (_NUMBERED.fullmatch(name) for name in names)
    return sorted(int(match[2]) for match in found if match and match[1] == kind)


def _generation(opened: Opened, wanted: int | None) -> int:
    root = log_root(opened)
    known = _numbered(root, "gen")
    if not known:
        raise ConfigError(f"no logs in {root}: no rank was started yet, or they were removed")
    if wanted is not None and wanted not in known:
        raise ConfigError(f"no logs of generation {wanted} in {root}; there are: {', '.join(map(str, known))}")
    return known[-1] if wanted is None else wanted


def _pieces(opened: Opened, generation: int, ranks: list[int] | None, stream: str | None, tail: int) -> list[LogPiece]:
    folder = log_root(opened) / f"gen-{generation}"
    known = _numbered(folder, "rank")
    missing = [rank for rank in ranks or () if rank not in known]
    if missing:
        raise ConfigError(
            f"no logs of rank {missing[0]} in {folder}; there are: {', '.join(map(str, known)) or 'none'}"
        )
    pieces = []
    for rank in sorted(set(ranks)) if ranks else known:
        for name in (stream,) if stream else STREAMS:
            path = folder / f"rank-{rank}" / f"{name}.log"
            if is_other_name(path) and not stream:
                continue
            lines, left_out_bytes = read_tail(path, tail)
            if lines or stream or ranks:
                piece = LogPiece(
                    generation=generation,
                    rank=rank,
                    stream=name,
                    path=str(path),
                    lines=lines,
                    left_out_bytes=left_out_bytes,
                )
                pieces.append(piece)
    return pieces


def read_tail(path: Path, num_lines: int) -> tuple[list[str], int]:
    """The last lines (0: all) and how many bytes come before them. Reads from the end, and at most MAX_TAIL_BYTES: logs
    can be huge, and of one above its limit the middle is not there (agent/streams/log_limit.py)."""
    try:
        with regular(path) as file:
            begin = file.seek(0, os.SEEK_END)
            blocks: list[bytes] = []
            num_bytes = num_found = 0
            while begin > 0 and num_bytes < MAX_TAIL_BYTES and (num_lines == 0 or num_found <= num_lines):
                size = min(begin, _BLOCK_BYTES)
                file.seek(begin - size)
                block = file.read(size)
                if not block.strip(b"\0"):
                    break  # a hole
                begin, num_bytes, num_found = begin - size, num_bytes + size, num_found + block.count(b"\n")
                blocks.append(block)
            data = b"".join(reversed(blocks))
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    kept = lines[-num_lines:] if num_lines else lines
    left_out = lines[: len(lines) - len(kept)]
    return [line.decode(errors="replace") for line in kept], begin + sum(len(line) + 1 for line in left_out)


def _first_error(opened: Opened, given: argparse.Namespace) -> int:
    incidents = list(opened.view.incidents.values())
    if not incidents:
        show(f"no incident in run {opened.view.run}: no rank failed\n")
        return 0
    incident = incidents[-1]
    ranks = list(incident.verdict.ranks[:1]) if incident.verdict is not None else []
    generation = incident.generation
    folder = log_root(opened) / f"gen-{generation}"
    ranks = [rank for rank in ranks if rank in _numbered(folder, "rank")]
    tail = FIRST_ERROR_TAIL if given.tail is None else given.tail
    pieces = _pieces(opened, generation, ranks, "stderr", tail) if ranks else []
    if given.json:
        verdict = msgspec.to_builtins(incident.verdict)
        logs = [msgspec.to_builtins(piece) for piece in pieces]
        show_json({"run": opened.view.run, "incident": incident.id, "verdict": verdict, "logs": logs})
    else:
        show_raw(render_first_error(incident, pieces, style()))
    return 0


class _Followed:
    """One growing file: whole lines since the last look."""

    def __init__(self, path: Path, prefix: str) -> None:
        self._path = path
        self._prefix = prefix
        self._offset = 0
        self._rest = b""

    def skip_to_tail(self, tail: int) -> None:
        _, self._offset = read_tail(self._path, tail)

    def lines(self, *, is_last: bool) -> list[str]:
        try:
            with regular(self._path) as file:
                file.seek(self._offset)
                data = file.read(_LOOK_BYTES)
        except OSError:
            data = b""
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._rest and (is_last or len(self._rest) > _BLOCK_BYTES):  # a progress bar never ends its line
            whole, self._rest = [*whole, self._rest], b""
        return [f"{self._prefix}{line.decode(errors='replace')}" for line in whole]


def _follow(opened: Opened, given: argparse.Namespace) -> int:
    """Also picks up ranks and generations that come later; ends with the run, showing what was written last."""
    root = log_root(opened)
    files: dict[tuple[int, int, str], _Followed] = {}
    tail = DEFAULT_TAIL if given.tail is None else given.tail
    is_first_look, absent_looks = True, 0
    while True:
        # A controller that is being replaced is away for a moment; the run is over when none comes.
        absent_looks = absent_looks + 1 if opened.run_dir.controller_pid() is None else 0
        is_last = absent_looks * _POLL_S > 2.0 or (is_first_look and absent_looks > 0 and opened.view.is_over)
        for key in _followed_keys(root, given, newest_only=is_first_look):
            if key not in files:
                generation, rank, stream = key
                path = root / f"gen-{generation}" / f"rank-{rank}" / f"{stream}.log"
                files[key] = _Followed(path, f"[gen {generation} rank {rank} {stream}] ")
                if is_first_look:
                    files[key].skip_to_tail(tail)
        for _, file in sorted(files.items()):
            for line in file.lines(is_last=is_last):
                show_raw(line + "\n")
        sys.stdout.flush()
        if is_last:
            return 0
        is_first_look = False
        time.sleep(_POLL_S)


def _followed_keys(root: Path, given: argparse.Namespace, *, newest_only: bool) -> list[tuple[int, int, str]]:
    generations = _numbered(root, "gen")
    if given.generation is not None:
        generations = [given.generation] if given.generation in generations else []
    else:
        generations = generations[-1:] if newest_only else generations[-2:]
    streams = (given.stream,) if given.stream else STREAMS
    return [
        (generation, rank, stream)
        for generation in generations
        for rank in _numbered(root / f"gen-{generation}", "rank")
        if not given.rank or rank in given.rank
        for stream in streams
        if stream == given.stream or not is_other_name(root / f"gen-{generation}" / f"rank-{rank}" / f"{stream}.log")
    ]
