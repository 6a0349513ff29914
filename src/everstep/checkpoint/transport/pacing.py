"""How fast a node may send: one token bucket, shared by all pushes of the node.

Blocking: called by the threads of transfers, never by an event loop.
"""

import threading
import time
from collections.abc import Callable

_BURST_S = 0.1
"""What was not used may be caught up for so long: shorter, and a late thread loses its share; longer, and a burst
gets in the way of the training's own traffic."""

_PIECE_S = 0.05
"""Bytes are asked for in pieces of this duration, so that the other side sees progress at any rate."""

_LEAST_PIECE_BYTES = 512
_NAP_S = 0.1


class Limiter:
    """At most `rate_bytes_s` over all callers together; 0 is no limit."""

    def __init__(self, rate_bytes_s: float = 0.0) -> None:
        if not rate_bytes_s >= 0:
            raise ValueError(f"{rate_bytes_s} bytes a second is not a rate")
        self.rate_bytes_s = rate_bytes_s
        self._paid_until = time.monotonic()
        self._lock = threading.Lock()

    def piece_bytes(self, most: int) -> int:
        """How much to ask for at a time, at most `most`."""
        if not self.rate_bytes_s:
            return most
        return min(most, max(_LEAST_PIECE_BYTES, int(self.rate_bytes_s * _PIECE_S)))

    def take(self, num_bytes: int, is_over: Callable[[], bool]) -> None:
        """Wait until `num_bytes` may be sent, or until `is_over()`."""
        if not self.rate_bytes_s:
            return
        with self._lock:
            earliest = time.monotonic() - _BURST_S
            # Take on the debt before the wait: the next caller waits behind this one, so all get their share.
            self._paid_until = due_at = max(self._paid_until, earliest) + num_bytes / self.rate_bytes_s
        while not is_over():
            left_s = due_at - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _NAP_S))
