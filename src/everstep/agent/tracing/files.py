"""Where traces go: a directory of the run, which a stranger, or a rank, may have filled.

Nothing is written through a link and no existing file is replaced: root may call `everstep trace` on the run of an
unprivileged user. What root writes then belongs to the run's owner, who can read it and delete the run.
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from everstep.model.text import without_surrogates
from everstep.report.now.trace import MAX_EVENTS, Trace, to_object

FOLDER = "traces"
MAX_BYTES = 256 << 20
MAX_SENT_BYTES = 32 << 20
"""A larger file of another host stays there."""

SENT = re.compile(r"(?:i|slow|t)\d{1,9}-gen-(\d{1,9})-rank-(\d{1,7})\.json", re.ASCII)
"""What an agent was asked for by its controller, which other hosts send to the first one."""

_MAX_TRIES = 8


class TooLargeError(Exception):
    """Even with next to nothing in it."""


def name_of(asked_as: str, generation: int, rank: int) -> str:
    """The file of a trace. `asked_as`: the incident or the request."""
    return f"{asked_as}-gen-{generation}-rank-{rank}.json"


def encoded(trace: Trace, max_bytes: int = MAX_BYTES) -> bytes:
    """The file's content, cut to so many bytes; what was left out is counted in it. Raises TooLargeError."""
    most = MAX_EVENTS
    for _ in range(_MAX_TRIES):
        found = to_object(trace, most)
        try:
            data = msgspec.json.encode(found)
        except UnicodeEncodeError:  # the name of a file
            data = msgspec.json.encode(without_surrogates(found))
        if len(data) <= max_bytes:
            return data
        most = int(len(found["traceEvents"]) * 0.9 * max_bytes / len(data))
    raise TooLargeError(f"the trace does not fit into {max_bytes:,} bytes")


def write_new(run_dir: Path, name: str, data: bytes) -> Path:
    """A file of this name in the run's traces. Raises FileExistsError, and OSError."""
    with opened(run_dir) as folder:
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            with os.fdopen(fd, "wb") as file:
                _give_to_owner(file.fileno(), os.fstat(folder))
                file.write(data)
        except BaseException:
            os.unlink(name, dir_fd=folder)
            raise
    return run_dir / FOLDER / name


def remove(run_dir: Path, *names: str) -> None:
    """Those that are there. Never raises."""
    with suppress(OSError), opened(run_dir) as folder:
        for name in names:
            with suppress(OSError):
                os.unlink(name, dir_fd=folder)


@contextmanager
def opened(run_dir: Path) -> Iterator[int]:
    """The directory, made if it is not there. Raises OSError: also where it is a link or belongs to another user."""
    run = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(FileExistsError):
            os.mkdir(FOLDER, 0o700, dir_fd=run)
        folder = os.open(FOLDER, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=run)
        try:
            owner = os.fstat(run)
            _give_to_owner(folder, owner)
            if os.fstat(folder).st_uid not in (owner.st_uid, os.geteuid()):
                raise PermissionError(1, "belongs to another user than the run", str(run_dir / FOLDER))
            yield folder
        finally:
            os.close(folder)
    finally:
        os.close(run)


def _give_to_owner(fd: int, owner: os.stat_result) -> None:
    """Give to `owner` what root has just made."""
    mine = os.fstat(fd)
    is_made_by_root = mine.st_uid == os.geteuid() == 0 and not stat.S_ISLNK(mine.st_mode)
    if is_made_by_root and owner.st_uid != 0:
        os.fchown(fd, owner.st_uid, owner.st_gid)
