"""The values of a report. Times are seconds since the epoch; None is "not measured", never zero."""

import msgspec

Seconds = dict[str, float]
"""Seconds of all ranks, by the groups of the page's bar (`report.picture.costs.GROUPS`)."""


class RunPart(msgspec.Struct, frozen=True, kw_only=True):
    """One run's part of the report."""

    name: str
    program: str
    status: str
    world_size: int
    begun_at: float
    until: float
    step: int | None
    seconds: tuple[Seconds, ...]  # one per slice of the period
    incidents: tuple["Disturbance", ...]
    drill_rank_s: float = 0.0  # what drills cost, over all ranks; part of `seconds`
    start_rank_s: float = 0.0  # what starting cost, over all ranks; part of `seconds["recovery"]`
    sampled_ranks: int | None = None  # some ranks stand for all


class Disturbance(msgspec.Struct, frozen=True, kw_only=True):
    """One incident of the period that is no drill."""

    id: str
    run: str
    at: float
    code: str
    name: str
    machine: str  # that is blamed; empty: none is
    sentence: str
    outcome: str | None
    lost_s: float | None
    lost_steps: int | None
    rank_s: float  # what it cost, over all ranks


class Class(msgspec.Struct, frozen=True, kw_only=True):
    """Incidents of one code, or for which one machine is blamed."""

    key: str
    name: str
    number: int
    rank_s: float
    lost_s: float | None  # of those of which it is known
    lost_steps: int | None
    codes: tuple[str, ...] = ()
    newest: str = ""  # "i3 of r1a2b"


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    begin: float
    end: float
    seconds: Seconds
    ettr: float | None  # None: nothing ran, or nothing of it is known
    num_incidents: int


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    what: str
    because: str
    rank_s: float  # at most so much would be won


class Unread(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    why: str


class Period(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    since: float
    until: float
    ettr: float | None
    rank_s: float  # wall time of all ranks of all runs
    seconds: Seconds
    slices: tuple[Slice, ...]
    runs: tuple[RunPart, ...]
    classes: tuple[Class, ...]
    offenders: tuple[Class, ...]  # machines that were blamed more than once, worst first
    incidents: tuple[Disturbance, ...]  # newest first
    mtbf_h: float | None  # hours of running per incident
    mtbf_before_h: float | None  # of the first half of the period
    mtbf_after_h: float | None
    advice: tuple[Advice, ...]
    unread: tuple[Unread, ...] = ()
