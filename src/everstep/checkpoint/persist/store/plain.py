"""Regular files of a folder that another user may have filled: read to a limit, renamed without following links.

A persistent tier can be another user's. A link there may lead to any file of ours, a pipe never ends, and a sparse file
claims any size. Called by `storage.FolderStorage`. All raise OSError.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from everstep.linux.regular import MOST_BYTES, read_regular, regular

SMALL_BYTES = 64 << 20
"""Limit for a manifest or a note. A manifest has 35 bytes for each rank."""

_CHUNK = 1 << 20


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """The bytes of a regular file of at most `most` bytes."""
    return read_regular(path, min(most, MOST_BYTES), follow=False)


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a regular file, however long, a piece at a time."""
    with regular(path, follow=False) as file:
        while chunk := file.read(_CHUNK):
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
