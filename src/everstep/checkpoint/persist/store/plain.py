"""Regular files of a folder that somebody else may have filled: read to a limit, renamed without following links.

A persistent tier can be another user's. A link there may lead to any file of ours, a pipe never ends, and a sparse file
claims any size. Called by `storage.FolderStorage`. All raise OSError.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

MOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
"""Of any file: what needs more of this machine's memory cannot be restored here, and a sparse file claims any size."""

SMALL_BYTES = 64 << 20
"""Of a manifest or a note. A manifest has 35 bytes for each rank."""

_CHUNK = 1 << 20


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file of at most `most` bytes."""
    most = min(most, MOST_BYTES)
    with _opened(path) as fd:
        size = os.fstat(fd).st_size
        if size > most:
            raise OSError(errno.EFBIG, f"has {size:,} bytes; at most {most:,} are read", str(path))
        with os.fdopen(os.dup(fd), "rb") as file:
            data = file.read(most + 1)  # it may have grown since
    if len(data) > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))
    return data


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file, however long, a piece at a time."""
    with _opened(path) as fd:
        while chunk := os.read(fd, _CHUNK):
            yield chunk


def size_of(path: Path) -> int | None:
    """None: no regular file is there."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def rename_file(base: Path, name: str, to: str) -> None:
    """Rename a file below `base`. No folder on the way may be a link, so nothing outside of `base` is renamed."""
    with _folder(base, PurePosixPath(name).parent) as source, _folder(base, PurePosixPath(to).parent) as target:
        os.rename(PurePosixPath(name).name, PurePosixPath(to).name, src_dir_fd=source, dst_dir_fd=target)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        # O_NONBLOCK: opening a pipe that nobody writes would wait for ever.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "is a link, and links are not followed", str(path)) from error
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", str(path))
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _folder(base: Path, below: PurePosixPath) -> Iterator[int]:
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in below.parts:
            if part == "..":
                raise OSError(errno.EINVAL, "leads out of the directory", str(base / below))
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)
