"""The page of `everstep plan standby`."""

from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import percent
from everstep.simulate.standby import Sizing


def standby_page(sizing: Sizing, window_days: float) -> str:
    window = "one day" if window_days == 1 else f"{window_days:g} days"
    head = f"{sizing.num_standby} standbys for {sizing.num_nodes} machines"
    lines = [f"{head}: a machine that fails finds one in {percent(sizing.quantile)} of windows of {window}", ""]
    lines += field("seen", _seen(sizing, window), width=12)
    lines += field("binomial", f"{sizing.binomial}, if each machine fails by itself", width=12)
    known = f"{sizing.clustered}, if they cluster as they did (negative binomial)"
    lines += field("clustered", "not known, or not seen" if sizing.clustered is None else known, width=12)
    lines += field("why", sizing.why, width=12)
    return text_of(lines)


def _seen(sizing: Sizing, window: str) -> str:
    rate = f"{sizing.rate:.3g} faults of one machine in {window}"
    if sizing.num_windows == 0:
        return f"{rate}, as given"
    return f"{rate}: {sizing.mean:.2f} in the fleet, over {sizing.num_windows} windows"
