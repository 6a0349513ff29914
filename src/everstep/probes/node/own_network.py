"""The kernel's /sys for this process's own network namespace.

/sys shows the interfaces of the namespace in which it was mounted. For a node in its own network namespace, and for
some containers, that is another one. A detached mount (fsmount(2), Linux 5.2) shows ours, and ends with the process. It
needs CAP_SYS_ADMIN, which the creator of the namespace has.
"""

import ctypes
import os
import socket
from pathlib import Path

_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432  # the same numbers on all 64-bit architectures
_CLOEXEC, _CREATE = 1, 6


def own_sys(sys: Path) -> Path:
    """`sys`, or another mount if `sys` shows other interfaces than ours. The mount lives as long as the process."""
    if sys != Path("/sys") or _shows_ours(sys):
        return sys
    return _mounted() or sys


def _shows_ours(sys: Path) -> bool:
    try:
        shown = {entry.name for entry in (sys / "class" / "net").iterdir() if (entry / "ifindex").exists()}
        return shown == {name for _, name in socket.if_nameindex()}
    except OSError:
        return True  # unknown, and there is no better one


def _mounted() -> Path | None:
    libc = ctypes.CDLL(None, use_errno=True)
    opened = libc.syscall(_FSOPEN, b"sysfs", _CLOEXEC)
    if opened < 0:
        return None
    try:
        if libc.syscall(_FSCONFIG, opened, _CREATE, None, None, 0) < 0:
            return None
        mounted = libc.syscall(_FSMOUNT, opened, _CLOEXEC, 0)
    finally:
        os.close(opened)
    return Path(f"/proc/self/fd/{mounted}") if mounted >= 0 else None
