"""Sizing of standby pools: the published table, closed forms, and the fleet trace where it is at hand."""

import json
import math
import os
import random
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from everstep.cli.main import main
from everstep.simulate.standby import (
    binomial_quantile,
    counts_per_window,
    negative_binomial_quantile,
    size_by_history,
    size_by_rate,
)


@pytest.mark.parametrize(("num_nodes", "num_standby"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
@pytest.mark.parametrize("rate", [0.001165, 0.0012, 0.00124])
def test_the_published_table(num_nodes, num_standby, rate):
    """ByteRobust, Table 5: one rate explains all four rows."""
    assert size_by_rate(num_nodes, rate).num_standby == num_standby


def exact(num_nodes: int, rate: float, quantile: float) -> int:
    total = 0.0
    for k in range(num_nodes + 1):
        total += math.comb(num_nodes, k) * rate**k * (1 - rate) ** (num_nodes - k)
        if total >= quantile:
            return k
    return num_nodes


def test_binomial_is_what_the_definition_says():
    for num_nodes in (1, 2, 7, 40, 300):
        for rate in (0.0, 0.001, 0.03, 0.5, 0.97, 1.0):
            for quantile in (0.5, 0.95, 0.99):
                assert binomial_quantile(num_nodes, rate, quantile) == exact(num_nodes, rate, quantile)
    assert binomial_quantile(100_000, 0.5) == 50_368, "no underflow in the tail"


def test_negative_binomial_matches_drawn_counts():
    dice, mean, variance = random.Random(1), 4.0, 20.0
    shape = mean * mean / (variance - mean)
    drawn = sorted(poisson(dice, dice.gammavariate(shape, mean / shape)) for _ in range(40_000))
    found = negative_binomial_quantile(mean, variance, 0.99)
    assert abs(found - drawn[int(0.99 * len(drawn))]) <= 1


def poisson(dice: random.Random, mean: float) -> int:
    limit, product, k = math.exp(-mean), dice.random(), 0
    while product > limit:
        product *= dice.random()
        k += 1
    return k


def test_clustered_faults_need_more_and_even_ones_do_not():
    even = size_by_history([1, 2] * 50, 400)
    assert even.clustered is None
    assert even.num_standby == even.binomial
    bursts = size_by_history([0, 0, 0, 0, 0, 0, 0, 0, 0, 15] * 10, 400)
    assert bursts.clustered is not None
    assert bursts.num_standby == bursts.clustered > bursts.binomial
    few = size_by_history([0, 15] * 5, 400)
    assert few.clustered is None
    assert "too few" in few.why


def test_what_is_no_history_is_refused():
    for counts, num_nodes in (([], 4), ([1], 0)):
        with pytest.raises(ValueError, match="history"):
            size_by_history(counts, num_nodes)
    with pytest.raises(ValueError, match="no distribution"):
        negative_binomial_quantile(2.0, 2.0)


def test_plan_reads_a_history_and_says_what_is_wrong_with_it(tmp_path, capsys):
    days = [day for day in range(60) for _ in range(9 if day % 15 == 7 else 1)]
    (tmp_path / "faults").write_text("".join(f"{86400 * day + 60}\n" for day in days))
    assert main(["plan", "standby", "--nodes", "400", "--history", str(tmp_path / "faults"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_standby"] == found["clustered"] > found["binomial"]
    (tmp_path / "faults").write_text("2026-01-01T00:00:00Z\nyesterday\n")
    assert main(["plan", "standby", "--nodes", "400", "--history", str(tmp_path / "faults")]) == 2
    assert "faults:2: 'yesterday' is not a time" in capsys.readouterr().err
    assert main(["plan", "standby", "--nodes", "512", "--rate", "0.0012"]) == 0
    assert capsys.readouterr().out.startswith("3 standbys for 512 machines")


class Backtest(msgspec.Struct, frozen=True, kw_only=True):
    """A pool against what really happened. A shortfall is a failed machine for which no standby was left."""

    num_windows: int
    num_held: float  # standbys, mean over the windows
    num_short_windows: int
    num_shortfalls: int

    @property
    def shortfalls_per_held(self) -> float | None:
        return self.num_shortfalls / self.num_held if self.num_held else None


def backtest(counts: Sequence[int], sizes: Sequence[int]) -> Backtest:
    """`sizes[i]` standbys stood ready in window i."""
    short = [max(0, count - held) for count, held in zip(counts, sizes, strict=True)]
    return Backtest(
        num_windows=len(counts),
        num_held=sum(sizes) / len(sizes) if sizes else 0.0,
        num_short_windows=sum(each > 0 for each in short),
        num_shortfalls=sum(short),
    )


def test_it_beats_binomial_sizing_on_a_real_fleet():
    """400 servers over 348 days, each day sized from the days before. EVERSTEP_FLEET_TRACE: its JSON file."""
    path = os.environ.get("EVERSTEP_FLEET_TRACE", "")
    if not path:
        pytest.skip("EVERSTEP_FLEET_TRACE is not set")
    faults = [each for each in json.loads(Path(path).read_text()) if each["event_type"] == "fault_start"]
    counts = counts_per_window([each["event_time"] for each in faults], 1.0)
    sized = [size_by_history(counts[:day], 400) for day in range(60, len(counts))]
    binomial = backtest(counts[60:], [each.binomial for each in sized])
    ours = backtest(counts[60:], [each.num_standby for each in sized])
    print(binomial, ours)
    assert ours.num_shortfalls * 3 < binomial.num_shortfalls
    assert ours.shortfalls_per_held * 6 < binomial.shortfalls_per_held
