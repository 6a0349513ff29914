"""Values of the picture of traffic."""

import msgspec


class Share(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    group: str
    bps: float  # predicted; mean over the seconds with a prediction


class Second(msgspec.Struct, frozen=True, kw_only=True):
    at: int  # its beginning, in seconds since the epoch
    predicted_bps: float | None  # None: unknown
    measured_bps: float | None


class LinkTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Traffic of one link. Means are over the seconds in which both rates are known; if there are none, over the
    seconds in which that rate is known."""

    link: str  # "n0:nic0 > leaf0"
    capacity_bps: float
    predicted_bps: float | None
    measured_bps: float | None
    peak: float | None  # share of the capacity, in the fullest second; measured if known
    is_hot: bool
    jobs: tuple[Share, ...]  # largest first
    seconds: tuple[Second, ...]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    links: tuple[LinkTraffic, ...]  # fullest first
    unknown: tuple[tuple[str, str, str], ...]  # job, group and operation with unknown data movement


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `everstep fabric traffic --json`, which the page of a run reads too."""

    source: str  # source of the topology
    sentence: str
    begin: int  # of the shown seconds, since the epoch
    end: int
    num_links: int
    num_hot: int
    links: tuple[LinkTraffic, ...]  # fullest first; perhaps not all
    unknown: tuple[tuple[str, str, str], ...]  # as above
    missing: tuple[str, ...]  # jobs and ports without data, each with the reason
