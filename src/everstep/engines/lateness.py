"""An agent of which nothing is heard: is it lost, or only late?

Its launcher is beside it on the same machine, does little, and hears it over a socket of their own. An agent that
reaches its launcher and not the controller is cut off; one that is stopped may stay so. Everything else that lives and
comes to nothing waits for a CPU, a disk or its own imports, as it does on a starved machine: ending it starts another
one there, which starves the next.
"""

from typing import Literal

from everstep.linux import pressure, proc
from everstep.wire.joining import Late

BEAT_S = 0.4
"""Between two signs of life from an agent to its launcher."""

LATE_S = 1.2
"""Without a sign for so long an agent is late."""

RECENT_S = 2.0
"""An agent that was late until then may have said more to its launcher than has reached the controller."""


def find_late(pid: int, silent_s: float) -> Late | None:
    """This agent if it is late, and neither stopped nor gone."""
    if silent_s < LATE_S:
        return None
    states = [found.state for tid in proc.threads(pid) if (found := proc.stat(pid, tid)) is not None]
    if not states or any(state not in "RDSI" for state in states):
        return None
    state: Literal["R", "D", "S"] = "R" if "R" in states else "D" if "D" in states else "S"
    return Late(pid, round(silent_s, 2), state, pressure.cpu_wait_share())


class Beats:
    """What the agents of this machine say to their launcher: that they are there."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}
        self._was_late: dict[str, tuple[float, float]] = {}  # when that ended, and how long it was
        self.longest_s: dict[str, float] = {}  # silence of each so far

    def expect(self, node: str, now: float) -> None:
        self._heard_at[node] = now

    def hear(self, node: str, now: float) -> None:
        silent_s = now - self._heard_at.get(node, now)
        self.longest_s[node] = max(self.longest_s.get(node, 0.0), silent_s)
        if silent_s > LATE_S:
            self._was_late[node] = now, silent_s
        self._heard_at[node] = now

    def forget(self, node: str) -> None:
        self.longest_s.pop(node, None)
        self._heard_at.pop(node, None)
        self._was_late.pop(node, None)

    def silent_s(self, node: str, now: float) -> float:
        """How long this node has said nothing, or had, until just now. 0: it is not known here."""
        since_s = now - self._heard_at.get(node, now)
        ended_at, lasted_s = self._was_late.get(node, (-RECENT_S, 0.0))
        return max(since_s, lasted_s if now - ended_at < RECENT_S else 0.0)
