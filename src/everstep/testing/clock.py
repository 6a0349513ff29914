"""A clock that moves only on request, with the timers that the brain set."""

import heapq


class FakeClock:
    """Seconds since the start of the scenario, on top of a fixed epoch so that times look like real ones."""

    EPOCH = 1_700_000_000.0

    def __init__(self) -> None:
        self.now = self.EPOCH
        self._timers: list[tuple[float, int, str]] = []
        self._num_set = 0

    @property
    def elapsed_s(self) -> float:
        return self.now - self.EPOCH

    def set_timer(self, key: str, due_at: float) -> None:
        """In the place of an earlier one of this name."""
        self._timers = [each for each in self._timers if each[2] != key]
        heapq.heapify(self._timers)
        self._num_set += 1
        heapq.heappush(self._timers, (due_at, self._num_set, key))

    def next_due(self, until: float) -> str | None:
        """Move to the next timer that is due by `until` and return its key; else move to `until`, return None."""
        if self._timers and self._timers[0][0] <= until:
            due_at, _, key = heapq.heappop(self._timers)
            self.now = max(self.now, due_at)
            return key
        self.now = max(self.now, until)
        return None
