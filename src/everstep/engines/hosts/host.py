"""Another host, as the first one knows it: connected, silent or away."""

import time

from everstep.engines.hosts.door import Line
from everstep.model.names import MachineName, machine_name
from everstep.wire.joining import Join

GONE_S = 2.0
"""Without a sign of life: nothing is awaited of such a host, and its place is free when its node is lost."""


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

    @property
    def is_heard(self) -> bool:
        return self.is_heard_within(GONE_S)

    def is_heard_within(self, seconds: float) -> bool:
        return self.line is not None and time.monotonic() - self.heard_at < seconds

    def is_same_machine(self, join: Join) -> bool:
        return (self.join.host, self.join.address) == (join.host, join.address)

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
