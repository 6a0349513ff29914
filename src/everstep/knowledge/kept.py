"""The compiled signatures of a process that lives for weeks.

RE2 makes the states of its automata as it meets text, and keeps them: new words of a kernel log, or of ranks that die,
take memory that is never freed, up to 80 MiB for each of several automata. So what reading has taken is measured, and
with too much of it the automata are made anew: 0.2 s of CPU, and as small as after the start.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from everstep.linux.heap import Growth

MAX_BYTES = 8 << 20
"""What an agent grows by in weeks. One dump of the out-of-memory killer takes 3.5 MiB, and each that is like it 0.1; a
kernel log of 2,400 lines takes 8. A program that prints random words gets there in a hundred lines, and pays 3 ms of
CPU for each."""

T = TypeVar("T")


class Kept(Generic[T]):
    """`make()`: what holds the automata. From any thread."""

    def __init__(self, make: Callable[[], T], max_bytes: int = MAX_BYTES, made: T | None = None) -> None:
        self._make = make
        self._max_bytes = max_bytes
        self._made = made
        self._growth = Growth()
        self._making = threading.Lock()
        self._renewing = threading.Lock()
        self.num_renewed = 0

    def get(self) -> T:
        """Made with the first call; a concurrent caller waits for the rest of it, and does not do it all again."""
        with self._making:
            if self._made is None:
                self._made = self._make()
            return self._made

    def prepare(self) -> None:
        """Made, in a thread that yields to others: whoever needs it meanwhile makes his own, and waits for nobody."""
        if self._made is None:
            made = self._make()
            with self._making:
                self._made = self._made or made

    @contextmanager
    def reading(self) -> Iterator[T]:
        """For a piece of text; what that takes of memory is counted."""
        made = self.get()
        with self._growth.watched():
            yield made

    @property
    def is_large(self) -> bool:
        return self._growth.num_bytes > self._max_bytes

    def renew(self) -> None:
        """Make it anew, unless that is under way. Current readers keep the old one, which goes with the last of
        them."""
        if not self._renewing.acquire(blocking=False):
            return
        try:
            made = self._make()
            with self._making:
                self._made, self._growth = made, Growth()
                self.num_renewed += 1
        finally:
            self._renewing.release()
