"""A directory that is this user's alone: made so, or refused, before anything is written into it.

The contents of a run directory are believed (journal, code to roll back to), obeyed (token) and appended to (logs). So
no other user may have put them there, or be able to. Called by `runs.make_run_dir`. Raises ConfigError, OSError.
"""

import contextlib
import os
import re
import stat
import tempfile
from pathlib import Path

from everstep.errors import ConfigError

FOLDERS = ("code", "errors", "evidence", "logs", "nodes", "variables")
"""Below a run directory; each closed by itself where the directory stays open to readers."""

_CHOOSE = "Nothing was changed. Choose another with --run-dir"
_MODE = 0o700


def make_private(path: Path, *, is_run: bool) -> None:
    """`is_run`: a run is there already."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir(mode=_MODE)
    except FileExistsError:
        _adopt(path, is_run=is_run)


def _adopt(path: Path, *, is_run: bool) -> None:
    link, found = path.lstat(), path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"run directory {path}: not a directory. {_CHOOSE}")
    if not os.access(path, os.W_OK | os.X_OK):
        return  # the caller says so
    me = _owner_of_what_is_made_in(path)
    for one, what in ((link, "is a link that belongs"), (found, "belongs")):
        if one.st_uid not in (me, 0 if stat.S_ISLNK(one.st_mode) else me):
            why = f"{what} to user {one.st_uid}, who could change what is in it"
            raise ConfigError(f"run directory {path}: {why}. {_CHOOSE}")
    entries = list(os.scandir(path))
    for entry in entries:
        _check_entry(path, entry, me, is_run=is_run)
    if found.st_mode & 0o077 and (is_run or not entries):
        path.chmod(_MODE)
    elif found.st_mode & stat.S_IWOTH:
        raise ConfigError(f"run directory {path}: every user may write into it, and it is not empty. {_CHOOSE}")
    elif found.st_mode & 0o077:  # it holds other files, and their readers must keep access
        for name in FOLDERS:
            with contextlib.suppress(FileExistsError):
                (path / name).mkdir(mode=_MODE)


def _check_entry(path: Path, entry: "os.DirEntry[str]", me: int, *, is_run: bool) -> None:
    is_ours = _is_ours(entry.name) or entry.name in FOLDERS
    if (is_run or is_ours) and entry.stat(follow_symlinks=False).st_uid != me:
        raise ConfigError(f"run directory {path}: {entry.name} in it belongs to another user. {_CHOOSE}")
    if entry.is_symlink() and entry.name in FOLDERS:
        raise ConfigError(f"run directory {path}: {entry.name} in it is a link. {_CHOOSE}, or remove the link")
    if entry.is_symlink() and is_ours:
        Path(entry.path).unlink()  # and nothing is written to where it leads


def _owner_of_what_is_made_in(path: Path) -> int:
    """Who we are there: a file server may know us under another number, and root under none."""
    with tempfile.TemporaryFile(dir=path) as file:
        return os.fstat(file.fileno()).st_uid


def _is_ours(name: str) -> bool:
    """Files that are written by name, and drafts of them."""
    plain = re.sub(r"(\.\d+)?\.new$", "", name).removesuffix(".1")
    return plain.startswith(("journal.", "controller.", "launcher.", "tls-")) or plain in (
        "spec.json", "secret", "token", "token-read", "progress.json",
    )  # fmt: skip
