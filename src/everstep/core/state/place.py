"""What a run remembers of the places at which it stood still. Used by `run.patience` and `run.standstill`."""

import msgspec


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """What the run has learnt of one place at which the job stood still."""

    times: int = 0  # that a restart was made because of it; a certain one counts only without progress in between
    step: int | None = None  # at which it stood the last time
    longest_s: float = 0.0  # that it took and ended by itself
