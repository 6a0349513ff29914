"""The page of `everstep fabric simulate`."""

from everstep.fabric.flows.outcome import Outcome
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import count, duration, percent


def simulation_page(outcome: Outcome) -> str:
    ways = f"{outcome.connections} connection{'s' if outcome.connections > 1 else ''} a pair"
    if outcome.connections > 1:
        ways += ", equal parts" if outcome.is_split else ", shared work"
    head = f"{outcome.pattern} of {count(outcome.num_hosts)} hosts on {outcome.source}: {outcome.routing}, {ways}"
    lines = [head, ""]
    slower = outcome.seconds / outcome.ideal_s if outcome.ideal_s else 1.0
    lines += _row(
        "complete in", f"{_time(outcome.seconds)}, {slower:.2f} times the {_time(outcome.ideal_s)} at line rate"
    )
    share = (
        f"mean {percent(outcome.mean)}, slowest 1 % below {percent(outcome.p01)}, slowest {percent(outcome.slowest)}"
    )
    lines += _row("of line rate", share)
    lines += _row("rails", f"{len(outcome.rails_used)} used")
    if outcome.rails_left_out:
        names = ", ".join(map(str, outcome.rails_left_out))
        lines += _row("left out", f"rail {names}: a host has no NIC with a path there")
    lines += _row(
        "flows", f"{count(outcome.num_flows)}, on {count(outcome.busy_links)} of {count(outcome.num_links)} links"
    )
    for number, link in enumerate(outcome.hot):
        lines += _row(
            "" if number else "hottest", f"{link.label}: {count(link.flows)} flows, {percent(link.load)} full"
        )
    lines += _row("model", outcome.caveat)
    lines += _row("took", duration(outcome.took_s))
    return text_of(lines)


def _row(name: str, text: str) -> list[str]:
    return field(name, text, width=15)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.4g}ms" if seconds < 1 else duration(seconds)
