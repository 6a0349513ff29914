"""The lease of this node: how long it may continue without being heard. Pure arithmetic on a clock that is passed in.

The controller gives a node's slot away when it has heard nothing of it for `node_silent_s`; the node's own ranks must
not continue then, even if the node cannot be reached to end them. So the agent counts from its last message that
arrived, and stops its ranks a little earlier than the controller may decide (`doubt`). Both clocks are monotonic and
count only differences. Called by the agent several times a second, and before every command: after a freeze that is the
first thing that happens.

A controller outage costs nothing: the machine where it will be restarted still acknowledges (`wire/contact.py`), and
the new controller waits for `node_silent_s` before it misses any node.
"""

import math
from collections.abc import Callable

LOOK_S = 0.2
"""Between two looks. A beat is sent, and the end is noticed, so much later at most."""

BEATS_PER_LEASE = 6
"""What is said when there is nothing to say. Two or three of them may be late without anything happening."""


class Lease:
    """`ends_s`: how long it lasts after the last thing that was heard."""

    def __init__(self, ends_s: float, clock: Callable[[], float]) -> None:
        self.ends_s = ends_s
        self.beat_s = ends_s / BEATS_PER_LEASE
        self._clock = clock
        self._heard_at: float | None = None  # None: this node has never been welcome, and runs nothing
        self.why_over = ""  # not empty: it is over
        self.silent_s = 0.0  # ... when it was found to be

    def now(self) -> float:
        return self._clock()

    def begin(self, latest: float = math.inf) -> None:
        """Welcome: the controller knows of this node now. It counts as heard `latest` then, if that was before."""
        now = self._clock()
        if self._heard_at is None:
            self._heard_at = now
        self.renew(min(now, latest))

    def renew(self, heard_at: float | None) -> None:
        """Extend the lease. `heard_at`: when the newest message that arrived was sent, on this clock; None: nothing
        new.

        An expired lease stays expired, because the slot may have been reassigned in between; only `assure` takes that
        back. Before the first welcome nothing can expire: this node has no slot."""
        if not self.is_over() and heard_at is not None and self._heard_at is not None:
            self._heard_at = max(heard_at, self._heard_at)

    def assure(self, asked_at: float) -> None:
        """The controller was asked then, on this clock, and has said that it counts on this node."""
        self.why_over, self._heard_at = "", max(asked_at, self._heard_at or asked_at)

    def is_over(self) -> bool:
        """Whether the lease is over: nothing may be started, written or reported in this node's name, unless the
        controller says otherwise."""
        if not self.why_over and self._heard_at is not None:
            silent_s = self._clock() - self._heard_at
            if silent_s > self.ends_s:
                self.silent_s = silent_s
                self.why_over = (
                    f"nothing of this node has reached the controller's machine for {silent_s:.1f} s (it is cut off, "
                    f"or was stopped); after {self.ends_s:.1f} s others may be started in its place"
                )
        return bool(self.why_over)
