"""How many standbys a fleet needs so that 99 of 100 windows find a warm machine for every one that fails.

Two models of how many machines fail in one window (the time in which a used standby is replaced). Binomial, as
ByteRobust sizes (SOSP 2025, 6.2): each machine by itself with the same probability. Negative binomial, when the fleet's
own history shows more variance than that: a switch, a batch of machines, a week of bad power make faults come together.
The larger one counts.

Pure: counts in, numbers out. Called by `everstep plan standby`.
"""

import math
from collections.abc import Iterator, Sequence

import msgspec

QUANTILE = 0.99
MIN_WINDOWS = 30
"""With fewer, a variance says nothing: binomial only."""

MIN_EXCESS = 1.2
"""Variance over mean. Below it, what is seen may well be chance: 30 windows of independent faults scatter as much."""


class Sizing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, and what it was made of. Rates are faults of one machine in one window."""

    num_nodes: int
    num_standby: int
    quantile: float
    rate: float
    binomial: int
    clustered: int | None  # None: there is no history that could show it
    num_windows: int  # of history; 0: the rate was given
    mean: float  # faults of the whole fleet in one window
    variance: float | None
    why: str


def binomial_quantile(num_nodes: int, rate: float, quantile: float = QUANTILE) -> int:
    """Smallest k with P(at most k of `num_nodes` fail) >= quantile. Raises ValueError for what is no probability."""
    if not 0 <= rate <= 1 or not 0 <= quantile < 1 or num_nodes < 0:
        raise ValueError(f"no distribution: {num_nodes} nodes, rate {rate}, quantile {quantile}")
    if rate in (0.0, 1.0):
        return round(num_nodes * rate)
    odds = math.log(rate) - math.log1p(-rate)
    return _first_above(_binomial_logs(num_nodes, num_nodes * math.log1p(-rate), odds), quantile, num_nodes)


def negative_binomial_quantile(mean: float, variance: float, quantile: float = QUANTILE) -> int:
    """Return the smallest k with P(at most k) >= quantile, for counts with this mean and a variance above it, by the
    method of moments. Raises ValueError."""
    if not 0 < mean < variance or not 0 <= quantile < 1:
        raise ValueError(f"no distribution: mean {mean}, variance {variance}, quantile {quantile}")
    size = mean * mean / (variance - mean)
    limit = math.ceil(mean + variance / (1 - quantile))  # Cantelli's bound on the quantile is lower
    return _first_above(_negative_binomial_logs(size, size / (size + mean)), quantile, limit)


def size_by_rate(num_nodes: int, rate: float, quantile: float = QUANTILE) -> Sizing:
    """The sizing for an assumed rate: how faults cluster is unknown. Raises ValueError."""
    needed = binomial_quantile(num_nodes, rate, quantile)
    return Sizing(
        num_nodes=num_nodes,
        num_standby=needed,
        quantile=quantile,
        rate=rate,
        binomial=needed,
        clustered=None,
        num_windows=0,
        mean=num_nodes * rate,
        variance=None,
        why="each machine fails by itself at the given rate; real faults cluster, and only a history shows how much",
    )


def size_by_history(counts: Sequence[int], num_nodes: int, quantile: float = QUANTILE) -> Sizing:
    """From the faults of this very fleet per window. Raises ValueError when there is no history."""
    if not counts or num_nodes <= 0:
        raise ValueError("a history of at least one window, of at least one machine, is needed")
    mean = sum(counts) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts) / len(counts)
    rate = min(1.0, mean / num_nodes)
    binomial = binomial_quantile(num_nodes, rate, quantile)
    clustered, why = None, ""
    if len(counts) < MIN_WINDOWS:
        why = f"{len(counts)} windows of history: too few to see whether faults cluster ({MIN_WINDOWS} are needed)"
    elif variance <= MIN_EXCESS * mean:
        why = f"faults come by themselves: their variance is {_times(variance, mean)} their mean"
    else:
        clustered = negative_binomial_quantile(mean, variance, quantile)
        why = f"faults cluster: their variance is {_times(variance, mean)} their mean"
    return Sizing(
        num_nodes=num_nodes,
        num_standby=min(num_nodes, max(binomial, clustered or 0)),
        quantile=quantile,
        rate=rate,
        binomial=binomial,
        clustered=clustered,
        num_windows=len(counts),
        mean=mean,
        variance=variance,
        why=why,
    )


def counts_per_window(times: Sequence[float], window: float) -> list[int]:
    """Faults per window from their times, in the unit of `window`. The first window begins at the first fault; one that
    is not over counts, too: its faults have happened."""
    if not times:
        return []
    first = min(times)
    counts = [0] * (int((max(times) - first) / window) + 1)
    for at in times:
        counts[int((at - first) / window)] += 1
    return counts


def _first_above(logs: Iterator[float], quantile: float, limit: int) -> int:
    total = 0.0
    for k, log in enumerate(logs):
        total += math.exp(log)
        # Beyond its last double a tail sums to less than the quantile: then every machine is the answer.
        if total >= quantile or k == limit:
            return k
    raise AssertionError("the distributions go on for ever, or have a limit")


def _binomial_logs(num_nodes: int, log: float, odds: float) -> Iterator[float]:
    for k in range(num_nodes + 1):
        yield log
        if k < num_nodes:
            log += odds + math.log((num_nodes - k) / (k + 1))


def _negative_binomial_logs(size: float, chance: float) -> Iterator[float]:
    log, fail, k = size * math.log(chance), math.log1p(-chance), 0
    while True:
        yield log
        log += fail + math.log((k + size) / (k + 1))
        k += 1


def _times(variance: float, mean: float) -> str:
    return f"{variance / mean:.1f} times" if mean else "as small as"
