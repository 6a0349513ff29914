"""Which of our children ended, and how. The one place in the agent that waits for processes.

The agent is a child subreaper: twins come to it from their ranks, and so does everything that a dead worker leaves
behind. So it has to wait for any child, and SIGCHLD announces all of them. A pid that we have not reaped cannot be
given to another process, which makes signals by pid safe.

It is a matter of the main thread alone: only that one starts what is watched here, and the kernel gives it what was
left behind. What another thread starts (a vendor's tool of a sense) is that thread's own, which waits for it and takes
its exit status; it comes to us only if the thread ends first.
"""

import asyncio
import os
import signal
from collections.abc import Callable

from everstep.linux import proc
from everstep.linux.children import OWN_THREAD, Ended, take_ended
from everstep.linux.parent import adopt_orphans

_MAX_UNCLAIMED = 256


class Reaper:
    """Reports the end of each watched process to its watcher."""

    def __init__(self) -> None:
        self._watched: dict[int, Callable[[Ended], None]] = {}
        self._unclaimed: dict[int, Ended] = {}

    def start(self) -> None:
        """Become the reaper of this process's descendants."""
        adopt_orphans()
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self.reap)

    def watch(self, pid: int, on_end: Callable[[Ended], None]) -> None:
        """Call `on_end` once, when `pid` has ended; soon, if it has ended already."""
        self._watched[pid] = on_end
        ended = self._unclaimed.pop(pid, None)
        if ended is not None:
            asyncio.get_running_loop().call_soon(self._tell, ended)

    def hand_over(self, pid: int, on_end: Callable[[Ended], None]) -> bool:
        """Change the watcher of `pid`. False if it has ended."""
        if pid not in self._watched:
            return False
        self._watched[pid] = on_end
        return True

    def let_go(self, pid: int) -> bool:
        """Stop watching `pid`; its end is kept for the next watcher. False if it has ended."""
        return self._watched.pop(pid, None) is not None

    def reap(self) -> None:
        """Take everything that has ended so far."""
        for ended in take_ended(OWN_THREAD):
            self._tell(ended)

    def adopted(self) -> list[int]:
        """Children without a watcher: what dead processes left behind. Children of another thread are left to it."""
        return [pid for pid in proc.children(os.getpid(), os.getpid()) if pid not in self._watched]

    def _tell(self, ended: Ended) -> None:
        on_end = self._watched.pop(ended.pid, None)
        if on_end is not None:
            on_end(ended)
            return
        self._unclaimed[ended.pid] = ended
        while len(self._unclaimed) > _MAX_UNCLAIMED:
            del self._unclaimed[next(iter(self._unclaimed))]


def session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def began(pid: int) -> int | None:
    """When a process began, in the kernel's ticks: with its number that is one process and no later one."""
    found = proc.stat(pid)
    return None if found is None else found.began


def kill(pid: int, signum: int) -> bool:
    """Signal a process; False if there is none."""
    try:
        os.kill(pid, signum)
    except OSError:
        return False
    return True


def kill_group(pgid: int, signum: int = signal.SIGKILL) -> bool:
    """Signal a process group; False if there is none."""
    try:
        os.killpg(pgid, signum)
    except OSError:
        return False
    return True
