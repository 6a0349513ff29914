"""The page of `everstep fabric plan`."""

from collections.abc import Mapping

from everstep.fabric.plan.clos import Plan
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import count, percent


def plan_page(plan: Plan, prices: Mapping[str, float]) -> str:
    wanted = plan.wanted
    tiers = "one leaf per rail" if plan.num_tiers == 1 else f"{plan.num_tiers} tiers"
    head = f"{count(wanted.chips)} chips in {count(plan.num_hosts)} hosts, {wanted.rails} rails: {tiers} of "
    lines = [f"{head}{wanted.radix}-port switches at {wanted.bps / 1e9:g} Gbit/s", ""]
    rows = [("leaf", count(plan.num_leaves), _leaf_ports(plan))]
    if plan.num_tiers > 1:
        rows.append(("spine", count(plan.num_spines), _spine_ports(plan)))
    if plan.num_tiers > 2:
        rows.append(("core", count(plan.num_cores), f"{plan.num_pods * plan.core_parallel} down"))
    rows.append(("all", count(plan.num_switches), ""))
    lines += [*table(("tier", "switches", "ports used of each"), rows, indent="  "), ""]
    for name, text in _facts(plan, prices):
        lines += field(name, text, width=18)
    return text_of(lines)


def _leaf_ports(plan: Plan) -> str:
    return f"{min(plan.down, plan.num_hosts)} down" + (f", {plan.up} up" if plan.up else "")


def _spine_ports(plan: Plan) -> str:
    leaves = plan.groups_per_pod * (plan.wanted.rails if plan.shares_spines else 1)
    return f"{leaves * plan.parallel} down" + (f", {plan.wanted.radix // 2} up" if plan.cores else "")


def _facts(plan: Plan, prices: Mapping[str, float]) -> list[tuple[str, str]]:
    wanted = plan.wanted
    planes = "all rails share the spines" if plan.shares_spines else f"each of {wanted.rails} rails has its own spines"
    facts = [
        ("cables", f"{count(plan.host_cables)} to hosts, {count(plan.switch_cables)} between switches"),
        ("bisection", f"{plan.bisection_bps / 1e12:,.1f} Tbit/s each way, {plan.oversubscription:.3g}:1 at the leaves"),
        ("groups", f"{count(plan.num_groups)} of up to {plan.down} hosts on the same leaves"),
    ]
    if plan.num_tiers > 1:
        facts.append(("planes", planes))
    if plan.num_pods > 1:
        facts.append(("pods", f"{plan.num_pods} of {plan.groups_per_pod} groups"))
    rows = plan_rows(plan)
    hosts = min(plan.down, plan.num_hosts)
    chips = hosts * (wanted.chips_per_host or wanted.rails)
    leaf = f"{hosts} hosts lose {percent(1 / wanted.rails)} of their bandwidth. A library that needs every rail loses "
    facts.append(("one leaf fails", f"{leaf}{chips} chips"))
    if rows["spine_share"] is not None:
        facts.append(("one spine fails", f"its leaves keep {percent(1 - float(rows['spine_share']))} of their uplinks"))
    cost = cost_of(plan, prices)
    facts.append(("cost", "not known: needs --price for switch, cable and nic" if cost is None else f"{cost:,.0f}"))
    return facts


def plan_rows(plan: Plan) -> dict[str, float | None]:
    """Return the figures that follow from the plan's counts; for `--json` too."""
    return {
        "num_switches": plan.num_switches,
        "num_leaves": plan.num_leaves,
        "num_spines": plan.num_spines,
        "num_cores": plan.num_cores,
        "host_cables": plan.host_cables,
        "switch_cables": plan.switch_cables,
        "bisection_bps": plan.bisection_bps,
        "oversubscription": plan.oversubscription,
        "spine_share": plan.parallel / plan.up if plan.up else None,
    }


def cost_of(plan: Plan, prices: Mapping[str, float]) -> float | None:
    """None unless all prices are known: a sum without one of them would look like a cost."""
    if not {"switch", "cable", "nic"} <= prices.keys():
        return None
    cables = plan.host_cables + plan.switch_cables
    return plan.num_switches * prices["switch"] + cables * prices["cable"] + plan.host_cables * prices["nic"]
