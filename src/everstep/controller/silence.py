"""Nodes that have been silent for too long. This module reports them; core decides what follows.

Silence is counted on a clock that only runs while this controller listens: a controller that was stopped, starved or
could not take more inputs has not heard any node, through its own fault. Nor does it count while the node's agent waits
for a CPU of this very machine (`waited_s`) or, for a while, for its disk (`is_blocked`). Two things are reported: that
a node is silent, so that the engine ends it, and, when that is not confirmed in time, that it is lost: by then it has
ended its ranks itself (`agent/lease/clock.py`). A node that is spared, because it lives and is only late, is reported
again when it has been silent for another SPARE_S.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from everstep.controller.starved import Starved
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Role, State

LOOK_S = 0.2

SPARE_S = 10.0

_LATE_S = 1.0
"""Beats come more often than that."""

FENCE_S = 1.0
"""How long the engine may take to end a silent node before the node counts as lost all the same. An engine that reaches
the machine needs milliseconds. With `node_silent_s` and a look it is what a decision takes at most."""

BLOCKED_S = 60.0
"""An agent in uninterruptible sleep (a page from a slow disk, a child that it starts) is excused for so long."""

IDLE_SILENT_S = 10.0
"""For a node of another host that runs no rank: evicting it hurries nothing, and a starved agent is not a lost one."""


def patience(state: State, policy: Policy, node: str) -> float:
    """How long a node may be silent. On another host it is not visible from here that its agent only waits for a CPU,
    so a node that is not needed yet gets longer; once it has a slot, the policy's limit applies."""
    member = state.members.get(node)
    is_idle = state.generation < 0 or (member is not None and member.role is Role.STANDBY)
    is_elsewhere = state.spec is not None and state.spec.on_hosts
    return max(policy.node_silent_s, IDLE_SILENT_S) if is_idle and is_elsewhere else policy.node_silent_s


class Listener(Protocol):
    """The part of the controller that this module needs."""

    def silent_limit_s(self, node: str) -> float:
        """How long this node may say nothing."""

    def is_behind(self) -> bool:
        """Whether inputs wait that were not even read."""

    def on_silent(self, node: str, silent_s: float) -> None:
        """Called once: nothing was heard for so long."""

    def on_lost(self, node: str, silent_s: float) -> None:
        """Called once, when the node was not ended in time."""


class Silence:
    def __init__(self, listener: Listener, starved: Starved, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._listener = listener
        self._starved = starved
        self._clock = clock
        self._looked_at = clock()
        self._now = 0.0  # seconds of listening
        # node: when, in those, and how long it had waited for a CPU by then
        self._heard: dict[str, tuple[float, float]] = {}
        self._blocked: dict[str, float] = {}  # node: for how long it could not send, since it was heard
        self._stale: set[str] = set()  # heard since the last look
        # silent nodes reported to be ended: when, and how long the engine had waited for a CPU by then
        self._told: dict[str, tuple[float, float]] = {}
        self._spared: dict[str, float] = {}  # until when

    def expect(self, node: str) -> None:
        """From now on it is missed."""
        self._heard[node] = self._now, self._starved.waited_s(node)
        self._told.pop(node, None)
        self._spared.pop(node, None)

    def heard(self, node: str) -> None:
        """Note that a node sent something. Nodes that are not expected are ignored, and a node whose end is decided is
        not spared."""
        if node in self._heard and node not in self._told:
            self._heard[node] = self._now, self._heard[node][1]
            self._spared.pop(node, None)
            self._stale.add(node)

    def spare(self, node: str) -> None:
        """It was reported to be silent and is not ended: it is left alone for SPARE_S."""
        if self._told.pop(node, None) is not None:
            self._spared[node] = self._now + SPARE_S

    def forget(self, node: str) -> None:
        self._heard.pop(node, None)
        self._blocked.pop(node, None)
        self._told.pop(node, None)
        self._spared.pop(node, None)

    @property
    def silent_s(self) -> dict[str, float]:
        """Per expected node: seconds of listening since it was heard."""
        return {node: self._now - at for node, (at, _) in self._heard.items()}

    def look(self) -> None:
        now = self._clock()
        elapsed, self._looked_at = now - self._looked_at, now
        if self._listener.is_behind():
            return
        passed = min(elapsed, 2 * LOOK_S)
        self._now += passed
        for node in self._stale & self._heard.keys():
            self._heard[node] = self._heard[node][0], self._starved.waited_s(node)
            self._blocked.pop(node, None)
        self._stale.clear()
        self._excuse(passed)
        missing = [each for each in map(self._silent, self._heard) if each[1] > self._listener.silent_limit_s(each[0])]
        for node, silent_s in missing:
            if self._now < self._spared.get(node, 0.0):
                continue
            if node not in self._told:
                self._told[node] = self._now, self._starved.engine_waited_s()
                self._listener.on_silent(node, silent_s)
            elif self._unanswered_s(node) > FENCE_S:
                self.forget(node)
                self._listener.on_lost(node, silent_s)

    def _unanswered_s(self, node: str) -> float:
        """Since it was reported, which may have been late: for how long the engine could have ended it."""
        told_at, waited_s = self._told[node]
        unanswered_s = self._now - told_at
        if unanswered_s > FENCE_S:
            unanswered_s -= max(0.0, self._starved.engine_waited_s() - waited_s)
        return unanswered_s

    def _excuse(self, passed: float) -> None:
        """Stop a node's clock while its agent has been silent for longer than usual and is blocked in the kernel."""
        for node, (at, waited_s) in self._heard.items():
            excused_s = self._blocked.get(node, 0.0)
            if self._now - at > _LATE_S and excused_s < BLOCKED_S and self._starved.is_blocked(node):
                self._blocked[node] = excused_s + passed
                self._heard[node] = at + passed, waited_s

    def _silent(self, node: str) -> tuple[str, float]:
        """How long it has said nothing although it could. For those that are late only, the kernel is asked."""
        at, waited_s = self._heard[node]
        silent_s = self._now - at
        if silent_s > self._listener.silent_limit_s(node):
            silent_s -= max(0.0, self._starved.waited_s(node) - waited_s)
        return node, silent_s

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()
