"""What the program has looked at before it was parked: files, folders, and whether they were there at all.

A twin has the answers in its memory. If one of them would be another one today (a checkpoint that was written since),
a new start would go another way, and the twin must not be used.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_NOTED = 4096


def _look_at(path: str, *, content: bool) -> tuple[Any, ...] | None:
    """None: nothing is there, or it cannot be seen. Of a folder that was not listed only that it is one."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    is_folder = (found.st_mode & 0o170000) == 0o040000
    if is_folder and not content:
        return ("folder",)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class Reads:
    """Notes, in the order of the first look."""

    def __init__(self, is_fixed: Callable[..., bool]) -> None:
        self._is_fixed = is_fixed
        self._noted: dict[tuple[str, bool], tuple[Any, ...] | None] = {}
        self.is_full = False

    def __len__(self) -> int:
        return len(self._noted)

    def is_known(self, path: object, *, content: bool) -> bool:
        """Whether a read of this path needs no note."""
        if not isinstance(path, str) or not path.startswith("/"):
            return False
        return (path, content) in self._noted or self._is_fixed(path, content=content)

    def note(self, path: object, *, content: bool = True) -> None:
        """Before the program sees what is there. `content`: of a folder, what is in it."""
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if hasattr(path, "__fspath__"):
            path = os.fspath(path)
        if not isinstance(path, str):
            return  # a descriptor
        whole = path if path.startswith("/") else f"{os.getcwd()}/{path}"
        key = (whole, content)
        if key in self._noted or self._is_fixed(whole, content=content):
            return
        if len(self._noted) >= MAX_NOTED:
            self.is_full = True
            return
        self._noted[key] = _look_at(whole, content=content)

    def changed(self) -> str:
        """What a new start would see otherwise; empty if nothing."""
        if self.is_full:
            return f"more than {MAX_NOTED} files were looked at before"
        for (path, content), before in self._noted.items():
            now = _look_at(path, content=content)
            if now != before:
                what = "appeared" if before is None else "is gone" if now is None else "changed"
                return f"{path} {what} since"
        return ""
