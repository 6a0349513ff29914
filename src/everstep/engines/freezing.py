"""Stops every process of a node, as if its machine stood still, and continues them later. For drills.

A node is its agent and all descendants; whatever escapes its parents is adopted by the agent, which is a subreaper. The
agent is stopped first, so that it does not notice that the others are.
"""

import contextlib
import os
import signal

from everstep.linux import proc


def freeze(agent: int) -> int:
    """How many processes were stopped. What is forked meanwhile is stopped too."""
    stopped: set[int] = set()
    while left := [pid for pid in (agent, *descendants(agent)) if pid not in stopped]:
        for pid in left:
            _send(pid, signal.SIGSTOP)
        stopped.update(left)
    return len(stopped)


def thaw(agent: int) -> None:
    """All of them; the agent last, so that it finds them as they would be after a real freeze: running."""
    for pid in (*descendants(agent), agent):
        _send(pid, signal.SIGCONT)


def descendants(root: int) -> list[int]:
    children = proc.children_by_parent()
    found: list[int] = []
    waiting = [root]
    while waiting:
        mine = children.get(waiting.pop(), [])
        found += mine
        waiting += mine
    return found


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
