"""What ties a worker process to its agent.

A worker must never outlive its agent: PR_SET_PDEATHSIG, set relative to the agent itself and checked afterwards. It
leads its own session, so that the agent can end whatever it started along with it.
"""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, signum: int = signal.SIGKILL) -> bool:
    """End with `parent`; False if it is gone already or is not the parent."""
    if _libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) != 0:
        return False
    return os.getppid() == parent


def allow_look_of(agent: int) -> None:
    """Let the agent's own children (py-spy) read this process's stack where Yama forbids it to all but parents. Where
    there is no Yama the call fails, and is not needed."""
    _libc.prctl(_PR_SET_PTRACER, agent, 0, 0, 0)


def take_streams(fds: list[int]) -> None:
    """The first three become 0, 1 and 2 and leave the list. Raises IndexError where they did not come."""
    for number in range(3):
        given = fds.pop(0)
        os.dup2(given, number, inheritable=True)
        os.close(given)


def redirect(path: str, fd: int) -> None:
    """Let `fd` append to the file at `path`, which is created."""
    target = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    os.dup2(target, fd, inheritable=True)
    os.close(target)
