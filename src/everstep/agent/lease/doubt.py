"""A node that was not heard for longer than its lease, and that can ask: does it still have its slot?

It need not be lost. It may not have run for seconds (starved, stopped by hand, suspended), perhaps unnoticed, or the
whole job stood still. Only the controller knows, so it is asked, on record. Until it has answered the ranks stand
still, nothing is reported and no command carried out: whatever was decided meanwhile, nothing of this node happens
beside it. Without an answer the ranks are ended. Called by `agent.main`; the answer is `core.faults.membership`'s.
"""

import asyncio
import logging
import math
import signal
import time
from collections.abc import Callable
from typing import Protocol

from everstep.agent.lease.clock import Lease
from everstep.agent.ranks.workers import Group, Worker
from everstep.errors import LeaseOverError
from everstep.model.actions import Finish, SettleDoubt
from everstep.model.events import Event, NodeInDoubt
from everstep.probes.process import usage
from everstep.wire.link import Link
from everstep.wire.messages import Command

UNREACHED_S = 1.0
"""Nothing of the question arrives: the node is cut off, and there is nothing to wait for."""

UNANSWERED_S = 30.0
"""How long to wait for the answer: the controller may be starved, or restarting. Ranks that stand still do no harm."""

ASK_AGAIN_S = 1.0
"""Pause between questions. An answer counts from when its question was asked, so an old one may have expired."""

_TICK_S = 0.02
_STOPPED = "Tt"

_log = logging.getLogger(__name__)


class HasRanks(Protocol):
    def ranks(self) -> Group | None:
        """The newest ones of this node."""


class LeaseGate:
    """`carry_out` takes a command when there is no doubt."""

    def __init__(
        self,
        node: str,
        lease: Lease,
        link: Link,
        *,
        host: HasRanks,
        carry_out: Callable[[Command], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._node = node
        self._lease = lease
        self._link = link
        self._host = host
        self._carry_out = carry_out
        self._clock = clock
        self._held: list[Event | Command] = []  # in the order in which they came
        self._stopped: set[Worker] = set()
        self._asked: dict[int, float] = {}  # number of a question: when
        self._num_asked = 0
        self.unreached_s = UNREACHED_S
        self._answer: SettleDoubt | None = None

    def report(self, event: Event) -> None:
        """Report to the controller, now or when the doubt is settled."""
        if self._lease.is_over():  # after a freeze, this may come before the first look at the lease
            self._stop_ranks()
            self._held.append(event)
        else:
            self._link.report(event)

    def command(self, command: Command) -> None:
        """From the controller. The end of the run is the end in any case."""
        if isinstance(command.action, SettleDoubt):
            self._answer = command.action
        elif self._lease.is_over() and not isinstance(command.action, Finish):
            self._stop_ranks()
            self._held.append(command)
        else:
            self._carry_out(command)

    async def settle(self) -> None:
        """Settle an expired lease. Returns when the node may continue. Raises LeaseOverError."""
        _log.warning("%s; the ranks stand still until the controller says what is so", self._lease.why_over)
        self._answer, self._asked = None, {}
        began, waited_s, since_s, is_reached = self._clock(), 0.0, math.inf, False
        while not self._is_assured():
            self._stop_ranks()
            if since_s >= ASK_AGAIN_S:
                self._ask(began)
                since_s = 0.0
            # Once is enough: while something newer is under way, nothing is known of what arrived before.
            is_reached = is_reached or (self._link.heard_at() or -math.inf) >= began
            if waited_s > (UNANSWERED_S if is_reached else self.unreached_s):
                arrived = "no answer came" if is_reached else "nothing arrived there"
                raise LeaseOverError(f"{self._lease.why_over}; the controller was asked and {arrived}")
            before = self._clock()
            await asyncio.sleep(_TICK_S)
            # Of a time in which this process did not run, an answer may lie unread.
            elapsed_s = min(self._clock() - before, 5 * _TICK_S)
            waited_s, since_s = waited_s + elapsed_s, since_s + elapsed_s
        _log.warning("the controller counts on this node (answered after %.2f s): it continues", self._clock() - began)
        self._go_on()

    def end_ranks(self) -> None:
        """Kill the ranks at once, without a frame to them: they must not do another step. Closing cleans up after
        them."""
        group = self._host.ranks()
        if group is not None:
            group.kill()

    def _ask(self, began: float) -> None:
        self._num_asked += 1
        self._asked[self._num_asked] = now = self._clock()
        silent_s = self._lease.silent_s
        _log.info("asked %.2f s after it woke, number %d", now - began, self._num_asked)
        self._link.report(
            NodeInDoubt(at=time.time(), node=self._node, number=self._num_asked, silent_s=round(silent_s, 3))
        )

    def _is_assured(self) -> bool:
        """Raises LeaseOverError when the answer is no."""
        answer, self._answer = self._answer, None
        asked_at = self._asked.get(answer.number) if answer is not None else None
        if answer is None or asked_at is None:
            return False
        if not answer.may_go_on:
            raise LeaseOverError(f"the controller does not count on this node any more: {answer.why}")
        self._lease.assure(asked_at)
        return not self._lease.is_over()

    def _stop_ranks(self) -> None:
        """Stop the ranks. Ranks already stopped by someone else are left to them."""
        group = self._host.ranks()
        for worker in group.workers.values() if group is not None else ():
            found = usage(worker.pid) if worker.is_alive and worker not in self._stopped else None
            if found is not None and found.state not in _STOPPED:
                worker.send_signal(signal.SIGSTOP)
                self._stopped.add(worker)

    def _go_on(self) -> None:
        for worker in self._stopped:
            worker.send_signal(signal.SIGCONT)
        self._stopped.clear()
        held, self._held = self._held, []
        for each in held:
            if isinstance(each, Command):
                self._carry_out(each)
            else:
                self._link.report(each)
