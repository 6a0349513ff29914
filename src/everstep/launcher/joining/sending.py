"""The transfer to the first host of what ranks of this host wrote: logs as they grow; reports, evidence and traces of
them as a whole.

Bounded: a log that grows faster than the link takes it is continued near its end, and what was skipped stays on this
host only. What did not arrive is sent again after a reconnect.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from everstep.agent.streams.paths import is_other_name
from everstep.agent.tracing import files as traces
from everstep.linux.regular import regular
from everstep.wire.joining import PIECE_BYTES, Piece

BACKLOG_BYTES = 1 << 20
"""Limit for one log. With more that is not sent yet, only its end is sent."""

LOOK_BYTES = 4 << 20
"""Limit for one look, over all files."""

MAX_WHOLE_BYTES = 32 << 20
"""A file of evidence that is larger stays here."""

MAX_NODE_LOG_BYTES = 4 << 20
MAX_NAMES = 4096
"""In one directory: a rank can write there, and make as many as it likes."""

_LOGS = ("stdout.log", "stderr.log")
_NODE_LOGS = ("agent.log", "persist.log")


class Sending:
    """The files of one run directory."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._sent: dict[str, int] = {}  # log -> bytes up to which it was sent
        self._whole: dict[str, tuple[int, int]] = {}  # other file -> what it was when it was sent

    def start_over(self, has: dict[str, int]) -> None:
        """A new connection; the other side has files up to here."""
        self._sent = {path: min(upto, has.get(path, 0)) for path, upto in self._sent.items()}
        self._whole = {path: found for path, found in self._whole.items() if path in has}

    def pieces(self) -> Iterator[Piece]:
        """Yield what is new. Raises nothing: what cannot be read is not sent."""
        left = LOOK_BYTES
        for path, is_log in self._files():
            if left <= 0:
                return
            with contextlib.suppress(OSError):
                for piece in self._of_log(path) if is_log else self._of_whole(path):
                    left -= len(piece.data)
                    yield piece

    def _files(self) -> Iterator[tuple[str, bool]]:
        """The files to send, small ones first."""
        for folder in _folders(self._run_dir / "errors"):
            yield from ((f"errors/{folder}/{name}", False) for name in _names(self._run_dir / "errors" / folder))
        for incident in _folders(self._run_dir / "evidence"):
            for folder in _folders(self._run_dir / "evidence" / incident):
                where = f"evidence/{incident}/{folder}"
                yield from ((f"{where}/{name}", False) for name in _names(self._run_dir / where))
        yield from (
            (f"{traces.FOLDER}/{name}", False)
            for name in _names(self._run_dir / traces.FOLDER)
            if traces.SENT.fullmatch(name)  # not what a user recorded here for themselves
        )
        for node in _folders(self._run_dir / "nodes"):
            yield from ((f"nodes/{node}/{name}", True) for name in _NODE_LOGS)
        for generation in _folders(self._run_dir / "logs"):
            for rank in _folders(self._run_dir / "logs" / generation):
                yield from ((f"logs/{generation}/{rank}/{name}", True) for name in _LOGS)

    def _of_log(self, path: str) -> Iterator[Piece]:
        file = self._run_dir / path
        if is_other_name(file):
            if path not in self._sent:
                self._sent[path] = 0
                yield Piece(path=path, at=0, data=b"", is_whole=True)
            return
        size, sent = file.stat().st_size, self._sent.get(path, 0)
        if path.startswith("nodes/") and sent > MAX_NODE_LOG_BYTES:
            return
        if size - sent > BACKLOG_BYTES:
            sent = size - PIECE_BYTES
        if sent >= size:
            return
        with _opened(file) as opened:
            opened.seek(sent)
            while sent < size and (data := opened.read(min(PIECE_BYTES, size - sent))):
                self._sent[path] = sent + len(data)
                yield Piece(path=path, at=sent, data=data)
                sent += len(data)

    def _of_whole(self, path: str) -> Iterator[Piece]:
        with _opened(self._run_dir / path) as opened:
            found = os.fstat(opened.fileno())
            if self._whole.get(path) == (found.st_mtime_ns, found.st_size) or found.st_size > MAX_WHOLE_BYTES:
                return
            self._whole[path] = (found.st_mtime_ns, found.st_size)
            at = 0
            while True:
                data = opened.read(PIECE_BYTES)
                is_last = at + len(data) >= found.st_size or not data
                yield Piece(path=path, at=at, data=data, is_whole=is_last)
                if is_last:
                    return
                at += len(data)


def _opened(path: Path) -> BinaryIO:
    """A regular file, under its own name: ranks write there, and a pipe would hold this host up until it is given up.
    Raises OSError."""
    return regular(path, follow=False)


def _folders(path: Path) -> list[str]:
    return _listed(path, lambda entry: entry.is_dir(follow_symlinks=False))


def _names(path: Path) -> list[str]:
    return _listed(path, lambda entry: entry.name.endswith(".json"))


def _listed(path: Path, is_wanted: Callable[["os.DirEntry[str]"], bool]) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return sorted(entry.name for entry in islice(entries, MAX_NAMES) if is_wanted(entry))
    except OSError:
        return []
