"""How late this machine is with everything: what bounds on time are stretched by, so that others' load breaks none.

Where nobody else wants the processors it is next to nothing, and the bounds are as strict as they are written.
"""

import math
import threading
import time

LOOK_S = 0.05


class Lateness:
    """While it is entered, a thread sleeps again and again; `seconds` is what it slept too long, in all."""

    def __enter__(self) -> "Lateness":
        self._late_s = 0.0
        self._due_at = time.monotonic() + LOOK_S
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._sleep, name="lateness", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._late_s, self._due_at = self.seconds, math.inf

    @property
    def seconds(self) -> float:
        late_s, due_at = self._late_s, self._due_at
        return late_s + max(0.0, time.monotonic() - due_at)

    def _sleep(self) -> None:
        while not self._is_over.wait(max(0.0, self._due_at - time.monotonic())):
            now = time.monotonic()
            self._late_s, self._due_at = self._late_s + now - self._due_at, now + LOOK_S
