"""Another host, as the first one knows it: connected, silent or away."""

import time

from everstep.engines.hosts.door import Line
from everstep.model.names import MachineName, machine_name
from everstep.wire.joining import PING_S, Join, Late

GONE_S = 2.0
"""Without a sign of life: nothing is awaited of such a host, and its place is free when its node is lost."""


STARVED_S = 3 * PING_S
"""A host that is heard less often has no CPU to speak with."""


class Host:
    """Another host, connected or away."""

    def __init__(self, join: Join, number: int) -> None:
        self.join = join
        self.number = number
        self.line: Line | None = None
        self.node = ""  # that runs there, as far as is known
        self.nodes: set[str] = set()  # all that ever did
        self.started_at = 0.0
        self.not_before = 0.0  # no other node is started there until then
        self.is_of_job = False  # it has proven to be of the scheduler's job; `join` only says so
        self.is_done, self.leaves = False, ""
        self.given_up = ""  # why it gets no node any more
        self.heard_at = time.monotonic()
        self.late: Late | None = None  # its node's agent, as it said last

    @property
    def is_heard(self) -> bool:
        return self.is_heard_within(GONE_S)

    def is_heard_within(self, seconds: float) -> bool:
        return self.line is not None and time.monotonic() - self.heard_at < seconds

    def is_same_machine(self, join: Join) -> bool:
        return (self.join.host, self.join.address) == (join.host, join.address)

    def why_spared(self, lease_s: float) -> str:
        """Why its node, of which nothing is heard, is not lost: the machine is heard, and says that the node's agent is
        late, or is so late itself that it could not say it."""
        heard_s = time.monotonic() - self.heard_at
        if self.line is None or heard_s > lease_s:
            return ""
        if self.late is not None:
            return f"{self.late.says} (its host was heard {heard_s:.1f} s ago)"
        return f"its host was heard {heard_s:.1f} s ago, and is late itself" if heard_s > STARVED_S else ""

    @property
    def is_ending(self) -> bool:
        """It has not said goodbye, and may: nothing is awaited of one that is silent."""
        return self.is_heard and not self.is_done

    @property
    def machine(self) -> MachineName:
        """Its name, which `admission` has checked."""
        return machine_name(self.join.host)

    @property
    def name(self) -> str:
        return f"{self.join.host} ({self.join.address})"
