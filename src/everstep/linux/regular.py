"""Regular files in a directory that another user may have filled: opened without waiting, read to a limit.

A pipe never opens, a device never ends, a link may lead to either, and a sparse file claims any size. All raise
OSError.
"""

import errno
import os
import stat
from typing import BinaryIO

MOST_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
"""Limit for any file: one that needs more of this machine's memory is not read."""

SMALL_BYTES = 64 << 20

_GROWTH = 1 << 20  # while it is read

_FLAGS = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(path: str | os.PathLike[str], *, follow: bool = True, at: int | None = None) -> int:
    """A descriptor. `follow`: also through a link, by which the last part of a path may be one. `at`: the open
    directory from which the path leads."""
    try:
        fd = os.open(path, _FLAGS if follow else _FLAGS | os.O_NOFOLLOW, dir_fd=at)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow:
            raise OSError(errno.ELOOP, "a link, and links are not followed", os.fspath(path)) from error
        if error.errno == errno.ENXIO:  # a socket
            raise OSError(errno.EINVAL, "not a regular file", os.fspath(path)) from error
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    return fd


def regular(path: str | os.PathLike[str], *, follow: bool = True, at: int | None = None) -> BinaryIO:
    """A file to read bytes from."""
    return os.fdopen(open_regular(path, follow=follow, at=at), "rb")


def read_regular(
    path: str | os.PathLike[str], most: int = SMALL_BYTES, *, follow: bool = True, at: int | None = None
) -> bytes:
    """All of it, if that is at most `most` bytes."""
    with regular(path, follow=follow, at=at) as file:
        found = os.fstat(file.fileno()).st_size
        data = b"" if found > most else file.read(min(most, found + _GROWTH) + 1)  # not `most`: that much is made ready
    if found > most or len(data) > most:
        size = max(found, len(data))
        raise OSError(errno.EFBIG, f"{size:,} bytes; at most {most:,} are read", os.fspath(path))
    return data
