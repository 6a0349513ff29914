"""Chooses the seconds to show: the newest ones for which most sources have data. A source with a clock that is ahead
does not move them."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

_PATIENCE_S = 10.0
"""Jobs report every ten seconds, ports every second."""
_MOST_NAMED = 8


class Teller(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    at: float  # of its last report, seconds since the epoch


def newest(tellers: Sequence[Teller], num_seconds: int) -> tuple[range, list[str]] | None:
    """The seconds to show, and a message for each source with later ones. None: no source gives a time."""
    usable = [each for each in tellers if math.isfinite(each.at) and 0 < each.at < _LAST]
    if not usable:
        return None
    ends = sorted({each.at for each in usable}, reverse=True)
    span = num_seconds + _PATIENCE_S
    end = next((at for at in ends if 2 * sum(at - span <= each.at <= at for each in usable) >= len(usable)), ends[0])
    ahead = sorted((each for each in usable if each.at > end), key=lambda each: -each.at)
    said = [f"{each.name}: its clock is ahead of the others', at {_utc(each.at)}" for each in ahead]
    more = [f"{len(said) - _MOST_NAMED} more with a clock that is ahead"] if len(said) > _MOST_NAMED else []
    return range(math.floor(end) - num_seconds, math.floor(end)), said[:_MOST_NAMED] + more


_LAST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M:%S} UTC"
