"""Which of the interpreter's audit events is the program's first effect: something that a second run would do again.

A twin must be parked before it. What a library does while it is imported (caches, a look at the machine) does not
count; threads and forks always do: after them a process cannot be forked.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from types import FrameType

PHYSICAL = frozenset({"os.fork", "os.forkpty"})
READS = frozenset({"open", "os.listdir", "os.scandir"})
WATCHED = (
    PHYSICAL
    | READS
    | frozenset(
        {
            "fcntl.flock", "fcntl.lockf", "os.chmod", "os.chown", "os.exec", "os.kill", "os.link", "os.mkdir",
            "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system",
            "os.truncate", "os.utime", "pty.spawn", "socket.bind", "socket.connect", "socket.sendmsg",
            "socket.sendto", "sqlite3.connect", "subprocess.Popen", "time.sleep",
        }
    )
)  # fmt: skip

_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_IMPORTER = "<frozen importlib"
_NOWHERE = ("/dev/", "/proc/", "/sys/")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def library_roots() -> tuple[str, ...]:
    """Folders whose files are the interpreter's or of installed packages, each with a trailing separator."""
    stdlib = os.path.dirname(os.path.abspath(os.__file__))
    packages = [entry for entry in sys.path if os.path.basename(entry) in {"site-packages", "dist-packages"}]
    ours = os.path.dirname(os.path.dirname(os.path.dirname(_OURS)))
    roots = {os.path.realpath(each) for each in (stdlib, ours, *packages)} | {stdlib, ours, *packages}
    return tuple(sorted(root.rstrip(os.sep) + os.sep for root in roots))


def folders_above(roots: tuple[str, ...]) -> frozenset[str]:
    """The folders that contain the roots. Resolving the path of a library's file looks at each of them."""
    found = set()
    for root in roots:
        while (root := os.path.dirname(root)) not in found:
            found.add(root)
    return frozenset(found)


def is_writing(flags: object) -> bool:
    """Whether the flags of an `open` event include writing."""
    return isinstance(flags, int) and bool(flags & _WRITES)


def is_nowhere(path: str) -> bool:
    """Devices and the kernel's own files: nothing that lasts is read or written there."""
    return path.startswith(_NOWHERE)


def caller() -> FrameType | None:
    """The innermost frame that is not of this room."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    return frame


def is_by_importer(frame: FrameType | None) -> bool:
    """The import system itself: it looks for modules and keeps compiled ones."""
    return frame is not None and frame.f_code.co_filename.startswith(_IMPORTER)


def is_in_library_import(frame: FrameType | None, roots: tuple[str, ...]) -> bool:
    """Whether a library is being imported at this moment, seen from `frame` outwards."""
    inner = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_IMPORTER):
            return not inner or inner.startswith(roots)
        inner = name
        frame = frame.f_back
    return False


def place_of(frame: FrameType | None, roots: tuple[str, ...]) -> str:
    """ "train.py:12": where the program itself stands; empty if it does not."""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(("<", *roots)):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""
