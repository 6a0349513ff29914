"""Collectives that ranks entered in their process groups, as agents report them. Values only."""

import msgspec

Kind = tuple[str, str, int]
"""Name of the group, operation, bytes of the whole buffer (-1: not known)."""

Op = tuple[int, int, float, float]
"""Index into `kinds`, sequence number in the group, when the rank entered it (wall clock, seconds), how long the call
took (-1: not known)."""


class RankOps(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's newest collectives since the look before, oldest first. Their order is the rank's own."""

    rank: int
    kinds: tuple[Kind, ...] = ()
    ops: tuple[Op, ...] = ()
    num_entered: int = 0  # since the look before, with those that the recorder has dropped
    groups: dict[str, tuple[int, ...]] = {}  # group name -> ranks, as far as declared
    titles: dict[str, str] = {}  # group name -> what it was called, "mesh_tp"
    is_queued: bool = False  # "entered" is when the host queued it for a device
    begun: tuple[int, ...] = ()  # ... but for these of `ops`: their kernels began then
    missing: str = ""  # why there is nothing
