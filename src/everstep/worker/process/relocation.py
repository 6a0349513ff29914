"""Lets imports that would be looked up in the user's folder be looked up in the copy of a version of the code.

Set once per process, before the user's program begins. Nothing of it is in the way of a run without updates.
"""

import os
import sys

_moved: tuple[str, str] | None = None


def set_up(moved: object) -> None:
    """`moved`: [folder of the user's, folder of the copy], or nothing."""
    global _moved
    if not isinstance(moved, list | tuple) or len(moved) != 2:
        return
    _moved = str(moved[0]).rstrip(os.sep), str(moved[1])
    sys.path[:] = [of(entry) for entry in sys.path]
    sys.path_importer_cache.clear()


def of(path: str) -> str:
    """Where to look for what the user has at `path`."""
    if _moved is None:
        return path
    root, copy = _moved
    whole = os.path.realpath(path) if path else path
    for name in (path, whole):
        if name and (name == root or name.startswith(root + os.sep)):
            return copy + name[len(root) :]
    return path
