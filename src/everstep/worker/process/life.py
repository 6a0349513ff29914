"""Ties of a worker process to its agent.

A worker must never outlive its agent: PR_SET_PDEATHSIG, set relative to the agent itself and checked afterwards. It
leads its own session, so that the agent can end whatever it started along with it.
"""

import os


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
