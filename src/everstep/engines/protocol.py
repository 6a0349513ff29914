"""The interface to what provides nodes. One implementation per source: `local` starts them on this machine, `hosts`
takes those that join from other machines, `slurm` reports them to a cluster.

An engine acts, it does not decide: its commands come from `core` through the launcher, and what it observes goes back
as events.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from everstep.errors import EverstepError
from everstep.model.facts import Held


class NoNodeError(EverstepError):
    """The engine cannot give a node; the message says why."""


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """A node is gone, and nothing of it runs any more."""

    node: str
    at: float
    reason: str
    exit_code: int | None = None
    signal: int | None = None
    kept: tuple[Held, ...] = ()  # snapshots of its ranks that the next node in its slot will find


OnLoss = Callable[[Loss], None]


class Engine(Protocol):
    def acquire(self, request: str, *, is_urgent: bool = True) -> None:
        """Give one more node; it answers by joining. The same request again changes nothing. Raises NoNodeError."""

    def release(self, node: str) -> None:
        """Take the node back: its agent may end its workers in order first. Unknown and gone nodes are ignored."""

    def evict(
        self, node: str, why: str = "", *, is_silent: bool = False, is_drill: bool = False, may_spare: bool = False
    ) -> str:
        """End the node now, by force, and report the loss with what outlived it. Unknown and gone nodes are ignored.
        Returns why it is spared: one of which nothing was heard (`may_spare`) that lives and is only late. "": it ends.

        If there is another machine, this one is not used again, and the scheduler gets `why`; unless the machine is not
        blamed: a silent node's machine may be well, and so is that of a drill."""

    def lose(self, node: str) -> None:
        """A drill: the machine is gone, and its memory with it. Reported as a loss of which nothing was kept. Raises
        NoNodeError when there is no such node."""

    def cut(self, node: str, seconds: float) -> None:
        """A drill: its link is down for so long. Raises NoNodeError when there is no such node, or no link to cut."""

    def flap(self, node: str) -> None:
        """A drill: its link goes down and comes back, twice within seconds. Raises NoNodeError as `cut` does."""

    def freeze(self, node: str, seconds: float) -> None:
        """A drill: all of its processes stand still for so long. Raises NoNodeError."""

    def fence(self, node: str) -> None:
        """Make sure, now and by force, that nothing of the node runs on."""

    def watch(self, on_loss: OnLoss) -> None:
        """Report nodes that are lost without having been released."""
