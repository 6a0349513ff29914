"""Counts the bytes of quiet ranks' sockets, beside the event loop: one question to the kernel for all of them.

Each rank's `TrafficProbe` makes a sign of life of it. What cannot be counted is unknown, and named when evidence is
collected (`agent.watching.loads`). Called by the monitor at every look; it asks only when it is time.
"""

import asyncio
import time
from collections.abc import Sequence

from everstep.probes.rank.traffic import TrafficError, TrafficProbe, bytes_of

EVERY_S = 0.9
"""So that there are two counts of a rank within the shortest window."""

SHARE = 0.02
"""Share of a CPU, at most: on a node with very many sockets they are counted less often."""

AGAIN_S = 30.0
"""Pause until it is tried again where sockets cannot be counted."""

FRESH_S = 2 * EVERY_S
"""Bytes that moved within this time move now."""


class Sockets:
    def __init__(self) -> None:
        self._due_at = float("-inf")
        self._is_counting = False

    def is_due(self, now: float) -> bool:
        return not self._is_counting and now >= self._due_at

    async def count(self, ranks: Sequence[tuple[tuple[int, ...], TrafficProbe]], at: float) -> None:
        """`ranks`: the processes of each, and its probe."""
        again_s = AGAIN_S
        counted: dict[int, dict[int, int]] = {}
        self._is_counting = True
        try:
            counted, used_s = await asyncio.to_thread(_counted, [pid for pids, _ in ranks for pid in pids])
            again_s = max(EVERY_S, used_s / SHARE)
        except TrafficError:
            pass
        finally:
            self._is_counting, self._due_at = False, at + again_s
        for pids, probe in ranks:
            known = [counted[pid] for pid in pids if pid in counted]
            merged = {inode: value for sockets in known for inode, value in sockets.items()}
            probe.take(merged if known else None, at)


def _counted(pids: Sequence[int]) -> tuple[dict[int, dict[int, int]], float]:
    """The counts, and the CPU seconds that they took. By the clock it takes ten times as long on busy CPUs, and a
    download would be seen to move once in a while only, which looks like a rank that stands still."""
    began = time.thread_time()
    return bytes_of(pids), time.thread_time() - began
