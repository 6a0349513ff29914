"""Clock offsets between machines, from the arrival times of their reports.

A report carries the time at which it was made. Its apparent delay is the travel time plus the difference of the clocks.
The quickest of many reports travels only briefly, so the smallest delay of the last minute is the difference, to a few
milliseconds. Nodes on one host share a clock. Only the slowness watch compares times of machines this finely.
"""

from collections.abc import Iterable

from everstep.core.state.schema import State

WINDOW_S = 60.0
DOUBT_S = 0.002
"""Error of the difference: the quickest reports of two machines do not take equally long."""


class Clocks:
    def __init__(self) -> None:
        self._least: dict[
            str, list[tuple[float, float]]
        ] = {}  # node -> (begin of the window, smallest delay), at most two

    def note(self, node: str, sent_at: float, now: float) -> None:
        windows = self._least.setdefault(node, [(now, now - sent_at)])
        begin, least = windows[-1]
        if now - begin >= WINDOW_S:
            windows[:] = [windows[-1], (now, now - sent_at)]
        else:
            windows[-1] = (begin, min(least, now - sent_at))

    def forget(self, nodes: Iterable[str]) -> None:
        """Forget all nodes except these."""
        kept = set(nodes)
        self._least = {node: windows for node, windows in self._least.items() if node in kept}

    def ahead_s(self, state: State) -> dict[int, float]:
        """Seconds by which the clock of each rank's machine is ahead. Empty if all ranks are on one host; the nodes of
        a host share one value."""
        hosts = {node: state.members[node].host for node in state.active_nodes if node in state.members}
        if len(set(hosts.values())) < 2:
            return {}
        least: dict[str, float] = {}
        for node, host in hosts.items():
            for _, delay_s in self._least.get(node, ()):
                least[host] = min(least.get(host, delay_s), delay_s)
        first = min(least.values(), default=0.0)
        return {
            rank: first - least[hosts[worker.node]]
            for rank, worker in state.workers.items()
            if worker.node in hosts and hosts[worker.node] in least
        }
