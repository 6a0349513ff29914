"""bench/slow_ranks.py: what its table shows of runs that went wrong before the fault."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from slow_ranks import Told, _line, _report


def test_an_eviction_from_the_healthy_time_is_shown():
    """It was subtracted from those of the fault, and stood nowhere."""
    told = Told(kind="sleep", rank=1, mode="plain", innocents=[], ranks=[1], evicted_early=1)
    assert "evicted before the fault: 1" in _line(told)
    heads, _, row = (line.split("  ") for line in _report([told], ["sleep"]).splitlines()[:3])
    assert heads[-1].strip() == "evicted while healthy"
    assert row[-1].strip() == "1"
