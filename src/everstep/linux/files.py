"""A file that is there whole or not at all, also when the writer is killed in the middle."""

import contextlib
import errno
import os


def write_whole(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o644, is_synced: bool = False) -> None:
    """Write a draft beside `path` and put it in its place. Raises OSError; the draft is gone then.

    The draft carries this process's number, so that two writers do not meet in it. What is there by its name already
    is taken away, and a link never followed: where others may write, the name can be guessed.
    `is_synced`: it also outlives the machine.
    """
    target = os.fspath(path)
    draft = f"{target}.{os.getpid()}.new"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)  # noqa: PTH108 - pathlib would be one more import in every training process
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            _write_all(fd, data)
            if is_synced:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(draft, target)  # noqa: PTH105
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)  # noqa: PTH108
        raise
    if is_synced:
        sync_directory(os.path.dirname(target) or ".")  # noqa: PTH120


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Put the names in it on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def make_own(folder: str | os.PathLike[str]) -> None:
    """Make a directory and those above that are missing, for this user alone whatever the umask; what is there stays as
    it is. Raises OSError."""
    path = os.fspath(folder)
    above = os.path.dirname(path)  # noqa: PTH120 - pathlib would be one more import in every training process
    if above and above != path and not os.path.isdir(above):  # noqa: PTH112
        make_own(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)  # noqa: PTH102
    if not os.path.isdir(path):  # noqa: PTH112
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
