"""The event loop of a controller with thousands of sockets: a turn looks after so many of them, and then after timers.

After a stall of a second all 12,500 have something to say. asyncio reads every one of them before it looks at a timer
again; here they take turns of some milliseconds, which is what the loop is late at most.
"""

import asyncio
import contextlib
import gc
import logging
import resource
import select
import selectors

MOST_AT_ONCE = 256
"""Sockets in a turn, at some 30 microseconds each."""

SPARE_FILES = 512
"""For the API, journal and logs, and connections that are not a peer's yet."""

_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT

log = logging.getLogger("everstep.controller")


class Selector(selectors.EpollSelector):
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """The kernel gives those that were left out first the next time."""
        wait_s = -1.0 if timeout is None else max(0.0, timeout)
        try:
            ready = self._selector.poll(wait_s, MOST_AT_ONCE)  # type: ignore[attr-defined]  # select.epoll
        except InterruptedError:
            return []
        keys, found = self._fd_to_key, []  # type: ignore[attr-defined]
        for fd, events in ready:
            key = keys.get(fd)
            if key is not None:
                met = (events & ~_READ and selectors.EVENT_WRITE) | (events & ~_WRITE and selectors.EVENT_READ)
                found.append((key, met & key.events))
        return found


def new_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(Selector())


def allow_files(num_nodes: int) -> None:
    """A link is an open file. Raises this process's limit as far as it may; says when that is not enough."""
    wanted = 2 * num_nodes + SPARE_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if most > soft:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed < num_nodes + SPARE_FILES:
        log.warning(
            "%d nodes need as many open files and %d more; this process may open %d: raise `ulimit -Hn`",
            num_nodes, SPARE_FILES, allowed,
        )  # fmt: skip


def spare_collector() -> None:
    """Keep Python's cycle collector from pausing the controller.

    It visits every live object: with 100,000 ranks that takes a fifth of a second, in which no peer is heard. What
    exists now is exempt; later objects are visited when there are many. The state consists of values, which form no
    cycles."""
    gc.freeze()
    gc.set_threshold(20_000, 50, 1_000)
