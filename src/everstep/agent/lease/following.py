"""The controller that this agent obeys, where another host may take over: that of the newest epoch that its launcher
has reported. On the controller's own host it obeys only while enough other hosts last heard of that one. Otherwise
another controller may be at work, and this node's lease runs out like that of a node that is cut off."""

import math

from everstep.agent.lease.clock import Lease
from everstep.agent.lease.doubt import LeaseGate
from everstep.wire.link import Link
from everstep.wire.local import Frame

UNREACHED_S = 15.0
"""Time to answer for a question that cannot be delivered, where a successor may come. The ranks stand still
meanwhile."""


class Following:
    def __init__(self, lease: Lease, link: Link, gate: LeaseGate) -> None:
        self._lease, self._link, self._gate = lease, link, gate
        self.epoch = 0
        self._confirmed_at = math.inf  # nothing needs a confirmation

    def take(self, frame: Frame) -> None:
        """`{"controller": {"epoch", "url", "confirmed_at"}}`, each of the last two only where it is known."""
        word = frame.get("controller")
        if not isinstance(word, dict) or not isinstance(word.get("epoch"), int) or word["epoch"] < self.epoch:
            return
        self._gate.unreached_s = UNREACHED_S
        confirmed_at, url = word.get("confirmed_at"), word.get("url")
        if isinstance(confirmed_at, int | float):
            self._confirmed_at = confirmed_at
        if word["epoch"] > self.epoch and self.epoch:
            # Its controller counts from when it begins, which is later than this, and no older one decides any more.
            self._lease.renew(self._lease.now())
            self._confirmed_at = math.inf if confirmed_at is None else self._confirmed_at
            self._link.leave()
        self.epoch = word["epoch"]
        if isinstance(url, str) and url:
            self._link.leave(url)

    def latest(self) -> float:
        """Nothing that was heard counts as heard after that."""
        return self._confirmed_at

    def heard_at(self) -> float | None:
        """When the controller last heard this node, by the link and by the launcher."""
        heard_at = self._link.heard_at()
        return None if heard_at is None else min(heard_at, self._confirmed_at)
