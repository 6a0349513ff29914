"""Ties of a process to those it comes from and to those it leaves behind: signals at the parent's death, reaping."""

import ctypes
import os
import signal
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61
WARDEN = "everstep-warden"
"""Name of the process that outlives an agent (agent/ranks/warden.py). It ends by itself."""
HOLDER = "everstep-holder"
"""Name of a process above an agent, which keeps its twins (agent/processes/holding.py)."""

_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> bool:
    """Get `signum` when `parent` dies, however it dies; False if it is gone already or is not the parent, so that the
    signal would never come."""
    if _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0) != 0:
        return False
    return os.getppid() == parent


def live_with_named(argv: Sequence[str]) -> bool:
    """Call `die_with_parent`, with SIGTERM, for the process that `--parent` names among these arguments. Return its
    result; True if no process is named."""
    words = [word for argument in argv for word in argument.split("=", 1)]
    after = words[words.index("--parent") + 1 :] if "--parent" in words else []
    return not after or not after[0].isdigit() or die_with_parent(int(after[0]), signal.SIGTERM)


def call_this(name: str) -> None:
    """Set the name of this thread that /proc/PID/comm shows; at most 15 characters."""
    _libc.prctl(_PR_SET_NAME, name.encode(), 0, 0, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent has died, and so the one that reaps them."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def allow_look_of(pid: int) -> None:
    """Let a process and its children (py-spy) read this process's stack where Yama forbids it to all but parents. Where
    there is no Yama the call fails, and is not needed."""
    _libc.prctl(_PR_SET_PTRACER, pid, 0, 0, 0)
