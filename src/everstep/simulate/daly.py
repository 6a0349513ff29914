"""What theory says of the simplest case: checkpoints at intervals, and failures that come independently.

The exact expectation of Daly (2006, "A higher order estimate of the optimum checkpoint interval", equation 13): in it,
failures may also come while a checkpoint is written and while the job restarts. The simulator is tested against it.
"""

import math


def expected_ettr(*, mtbf_s: float, interval_s: float, save_s: float, restart_s: float) -> float:
    """Useful time over wall time. `interval_s` of work, then `save_s` in which nothing is trained; `restart_s` from a
    failure to the first moment of work. Raises ValueError for what is no interval or no failure rate."""
    if mtbf_s <= 0 or interval_s <= 0 or save_s < 0 or restart_s < 0:
        raise ValueError(f"no regime: mtbf {mtbf_s}, interval {interval_s}, save {save_s}, restart {restart_s}")
    wall_s = mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + save_s) / mtbf_s)
    return interval_s / wall_s


def young_interval_s(*, mtbf_s: float, save_s: float) -> float:
    """The interval that is best to first order."""
    return math.sqrt(2 * save_s * mtbf_s)
