"""The page of `everstep policies`: what patience costs, rule by rule."""

from collections.abc import Mapping, Sequence

from everstep.core.state.policy import Policy
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import NOT_MEASURED, duration, percent
from everstep.simulate.price import RESTART_S, VERDICT_S, Fleet, Price

HEAD = ("rule", "found after", "95% within", "lost to hangs", "healthy hurt", "restarts", "never pass", "steps lost")
_KEYS = ("hang_window_s", "hang_outside_s", "hang_computing_s", "hang_plain_s", "hang_limit_s", "hang_repeats")

_EXPLAINED = f"""\
A hang that is found late holds all machines. A healthy job that is restarted loses what nothing holds, and comes to
the same place again. Each row is the same standstills under another rule; a verdict takes {VERDICT_S:g} s, a restart
{RESTART_S:g} s. Set other times with --set KEY=VALUE here, and in the [policy] section of a run's --config file."""


def policies_page(source: str, policy: Policy, prices: Sequence[Price], failed: Mapping[str, str]) -> str:
    num_hangs, num_healthy = prices[0].num_hangs, prices[0].num_healthy
    lines = [f"what patience costs: {num_hangs} hangs and {num_healthy} healthy waits of {source}", ""]
    lines += [line for key in _KEYS for line in field(key, f"{getattr(policy, key):g}", 20)]
    lines += ["", *(price_lines(prices) or ["  no standstill with a known end is on record"])]
    lines += ["", *_EXPLAINED.splitlines()]
    lines += [f"  {name}: {why}" for name, why in failed.items()]
    return text_of(lines)


def price_lines(prices: Sequence[Price], indent: str = "  ") -> list[str]:
    """Empty where nothing is recorded."""
    if not any(each.num_hangs or each.num_healthy for each in prices):
        return []
    return table(HEAD, [_row(each) for each in prices], indent=indent)


def fleet_lines(fleet: Sequence[Fleet], indent: str = "  ") -> list[str]:
    head = ("rule", "lost to hangs", "lost to mistakes", "waits hurt", "runs given up", "of the time")
    rows = [
        [
            each.rule,
            duration(each.hangs_s),
            duration(each.mistakes_s),
            f"{each.num_hurt:.1f}",
            f"{each.num_ended:.1f}",
            percent(each.share, 3),
        ]
        for each in fleet
    ]
    return table(head, rows, indent=indent) if rows else []


def _row(price: Price) -> list[str]:
    hurt = f"{price.num_hurt} of {price.num_healthy}" if price.num_healthy else NOT_MEASURED
    return [
        price.rule,
        duration(price.found_median_s),
        duration(price.found_p95_s),
        duration(price.lost_to_hangs_s) if price.num_hangs else NOT_MEASURED,
        hurt,
        f"{price.num_restarts}",
        f"{price.num_ended}",
        f"{price.steps_lost:,}",
    ]
