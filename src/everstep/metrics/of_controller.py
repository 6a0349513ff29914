"""Figures about the controller and its nodes, which no journal has, as samples. Pure."""

import msgspec

from everstep.metrics.samples import Samples
from everstep.version import __version__

MAX_NODES = 1000
"""How many nodes of a larger fleet, by largest value: 12,500 lines are unreadable, and each costs the scraper."""


MAX_SENSES = 100
"""Of one node; there are about thirty."""


class Ourselves(msgspec.Struct, frozen=True, kw_only=True):
    dropped: dict[str, int] = {}  # messages of peers, by kind
    notices: dict[str, dict[str, int]] = {}  # receiver -> outcome -> number
    silent_s: dict[str, float] = {}  # node -> since anything was heard
    step_ratios: dict[str, float] = {}  # node -> its own time per step / median
    senses: dict[str, dict[str, str]] = {}  # node -> sense -> why it does not work; empty: it does
    append_seconds: float | None = None
    lag_seconds: float | None = None
    is_writable: bool | None = None


def add_controller(samples: Samples, ourselves: Ourselves) -> None:
    samples.add("everstep_build_info", 1.0, version=__version__)
    for kind, number in sorted(ourselves.dropped.items()):
        samples.add("everstep_stale_messages_total", number, kind=kind)
    for receiver, outcomes in sorted(ourselves.notices.items()):
        for outcome, number in sorted(outcomes.items()):
            samples.add("everstep_notices_total", number, receiver=receiver, outcome=outcome)
    samples.add("everstep_journal_append_seconds", ourselves.append_seconds)
    samples.add("everstep_controller_loop_lag_seconds", ourselves.lag_seconds)
    samples.add("everstep_journal_writable", None if ourselves.is_writable is None else float(ourselves.is_writable))
    for node, seconds in _largest(ourselves.silent_s).items():
        samples.add("everstep_heartbeat_age_seconds", seconds, node=node)
    for node, ratio in _largest(ourselves.step_ratios).items():
        samples.add("everstep_node_step_time_ratio", ratio, node=node)
    for node, senses in list(ourselves.senses.items())[:MAX_NODES]:
        for sense, why in list(senses.items())[:MAX_SENSES]:
            if not why.startswith("unsupported"):
                samples.add("everstep_probe_up", float(not why), probe=sense.replace(" ", "-"), node=node)


def _largest(values: dict[str, float]) -> dict[str, float]:
    if len(values) <= MAX_NODES:
        return values
    return dict(sorted(values.items(), key=lambda item: -item[1])[:MAX_NODES])
