"""What the picture of traffic says. Values only."""

import msgspec


class Share(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    group: str
    bps: float  # predicted, mean over the seconds in which anything is


class Second(msgspec.Struct, frozen=True, kw_only=True):
    at: int  # when it began, since the epoch
    predicted_bps: float | None  # None: not known
    measured_bps: float | None


class LinkTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Means are over the seconds in which both are known; where they never are, over those in which the one is."""

    link: str  # "n0:nic0 > leaf0"
    capacity_bps: float
    predicted_bps: float | None
    measured_bps: float | None
    peak: float | None  # of its capacity, in its fullest second; measured if that is known
    is_hot: bool
    jobs: tuple[Share, ...]  # most first
    seconds: tuple[Second, ...]


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    links: tuple[LinkTraffic, ...]  # fullest first
    unknown: tuple[tuple[str, str, str], ...]  # job, group and operation of which it is not known how they move data


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What `everstep fabric traffic --json` prints and the page of a run asks for."""

    source: str  # of the topology
    sentence: str
    begin: int  # of the seconds, since the epoch
    end: int
    num_links: int
    num_hot: int
    links: tuple[LinkTraffic, ...]  # fullest first; perhaps not all
    unknown: tuple[tuple[str, str, str], ...]  # as above
    missing: tuple[str, ...]  # jobs and ports of which nothing is known, each with its reason
