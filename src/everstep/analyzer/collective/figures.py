"""Table of collectives: groups, rows, windows of time. Values only.

A figure is measured or unknown, and an unknown one has the reason.
"""

import msgspec

VERSION = 1


class Figure(msgspec.Struct, frozen=True, omit_defaults=True):
    value: float | None = None
    why: str = ""  # it is unknown

    @property
    def is_measured(self) -> bool:
        return self.value is not None


class Window(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One look at one row, medians over its operations. Bandwidths in bytes per second; None: unknown."""

    at: float
    count: int
    time_s: float | None = None
    transfer_s: float | None = None
    skew_s: float | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One operation of one size in one group. `time_s`: a stopwatch around the call, mean of the ranks; `transfer_s`:
    the same on the rank that came last, so without waiting for ranks; `skew_s`: from the first arrival to the last."""

    op: str
    num_bytes: int | None
    count: int  # operations in which all members were seen
    time_s: Figure
    transfer_s: Figure
    algbw: Figure  # bytes per second by `time_s`
    busbw: Figure
    transfer_bw: Figure  # bytes per second by `transfer_s`
    skew_s: Figure
    num_late: int | None  # operations for which the last rank was waited for; None: unknown
    last: tuple[tuple[int, int], ...]  # (rank, how often it was the one), most often first
    usual_bw: Figure  # of `transfer_bw` in the windows before the newest one, their median
    usual_spread: float | None  # ... and their median absolute deviation
    mean_s: Figure  # of `time_s` over all that was seen, not of the newest window
    mean_bw: Figure
    history: tuple[Window, ...]  # oldest first


class Group(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    title: str
    ranks: tuple[int, ...]
    is_declared: bool  # else these are the ranks that entered something
    num_ops: int | None  # by the sequence numbers, since it was first looked at; None: unknown
    num_seen: int  # of them, in `rows` below
    rows: tuple[Row, ...]


class Late(msgspec.Struct, frozen=True, array_like=True):
    """An operation that waited for its last rank."""

    group: int  # index into `groups`
    op: str
    seq: int
    rank: int
    skew_s: float
    at: float


class Table(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    generation: int = 0
    at: float = 0.0
    is_rough: bool = False  # ranks are on several machines, whose clocks differ by some milliseconds at most
    groups: tuple[Group, ...] = ()
    late: tuple[Late, ...] = ()  # newest, oldest first
    missing: dict[str, tuple[int, ...]] = {}  # reason -> ranks of which nothing is known
