"""bench/standstills.py: from results of benchmarks to what the package prices."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
from standstills import STEPS_AT_RISK, standstill

HANG = {"hang": {"kind": "queue-get", "mode": "plain"}, "certainty": "certain", "loud": False, "trouble": ""}
HEALTHY = {"kind": "garbage", "mode": "state", "waits": [5.1, 4.9, 30.0], "times": 5, "trouble": ""}


def test_what_is_false_or_nothing_is_left_out():
    assert standstill(HANG) == {"what": "queue-get", "certain": True, "at_risk_steps": STEPS_AT_RISK}
    doubtful = {**HANG, "hang": {"kind": "loop-torch", "mode": "state"}, "certainty": "doubtful"}
    assert standstill(doubtful) == {"what": "loop-torch", "saved": True, "computes": True}
    assert standstill(HEALTHY) == {"what": "garbage", "saved": True, "computes": True, "lasted_s": 5.1, "times": 5}


def test_what_did_not_happen_as_it_should_is_no_record():
    assert standstill({**HANG, "loud": True}) is None
    assert standstill({**HEALTHY, "trouble": "ended with 1"}) is None
    assert standstill({**HEALTHY, "waits": []}) is None
