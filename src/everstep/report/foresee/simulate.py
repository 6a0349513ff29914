"""The page of `everstep simulate`."""

from collections.abc import Sequence

from everstep.report.foresee.policies import fleet_lines
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import duration, percent, plural
from everstep.simulate.fleet.setup import Setup
from everstep.simulate.outcome import Lever, Outcome, Summary
from everstep.simulate.price import Fleet

_BAR = 40
_MAX_CAUSES = 12

PUBLISHED = {
    "real-time eviction": 0.3252,
    "reattempt": 0.2270,
    "rollback": 0.0920,
    "dual-phase replay": 0.0123,
}
"""ByteRobust, of 19 jobs on 9,600 GPUs and more; the rest is not broken down."""


def simulate_page(
    setup: Setup, summary: Summary, outcomes: Sequence[Outcome], fleet: Sequence[Fleet] = (), waits_per_day: float = 0.0
) -> str:
    """`fleet`: what patience costs, rule by rule, with so many healthy waits a day."""
    lines = [_headline(setup, summary), ""]
    lines += _what(setup, summary)
    lines += ["", "where the time went", *_shares(summary)]
    lines += ["", "what would help most", *_levers(summary)]
    lines += ["", "what it cost, by cause", *_causes(summary)]
    lines += ["", "which step of the flow solved it", *_steps(setup, summary)]
    if fleet:
        what = f"what patience costs, with {waits_per_day:g} healthy waits a day (everstep policies)"
        lines += ["", what, *fleet_lines(fleet)]
    return text_of(lines)


def _headline(setup: Setup, summary: Summary) -> str:
    ettr = summary.ettr
    runs = f"p5 {percent(ettr.p5, 2)}, p95 {percent(ettr.p95, 2)} of {plural(summary.num_runs, 'run')}"
    return f"ETTR {percent(ettr.median, 2)} ({runs}): {setup.num_gpus:,} GPUs for {setup.days:g} days, simulated"


def _what(setup: Setup, summary: Summary) -> list[str]:
    cells = "" if setup.nodes_per_cell == 1 else f", seen as {setup.num_cells} nodes"
    spares = "any number" if setup.num_spares is None else f"{setup.num_spares}"
    saves = "every step in memory, with a copy on another node"
    if not setup.every_step:
        saves = f"on storage, every {duration(setup.save_every_s)} of training"
    seen = (
        f"{summary.num_faults:.0f} faults, {summary.num_incidents:.0f} incidents, {summary.num_starts:.0f} starts, "
        f"{summary.num_evictions:.0f} evictions, {summary.num_resubmits:.1f} times given up and submitted again"
    )
    machines = f"{setup.num_nodes:,} machines{cells}, {setup.num_standby} standbys, {spares} to be had besides"
    lines = field("per run", seen, width=12)
    lines += field("machines", machines, width=12)
    lines += field("snapshots", saves, width=12)
    lines += field("faults", setup.mix.source, width=12)
    lines += field("costs", setup.costs.source, width=12)
    lines += field("policy", f"{setup.policy.name}, node_timeout_s = {setup.policy.node_timeout_s:g}", width=12)
    return lines


def _shares(summary: Summary) -> list[str]:
    parts = sorted(summary.shares.items(), key=lambda item: -item[1])
    lost = max((share for _, share in parts[1:]), default=0.0)
    rows = [
        [part, percent(share, 3), "" if number == 0 else "#" * round(_BAR * share / lost if lost else 0)]
        for number, (part, share) in enumerate(parts)
    ]
    return table(["", "of the time", "of what was lost"], rows, indent="  ")


def _levers(summary: Summary) -> list[str]:
    target = percent(summary.target, 2)
    head = ["if this were halved", "ETTR gains", "per incident", f"for {target} it may take"]
    rows = [
        [lever.part, f"+{100 * lever.gain:.3f}%", duration(lever.mean_s), _allowed(lever)] for lever in summary.levers
    ]
    return table(head, rows, indent="  ")


def _allowed(lever: Lever) -> str:
    return "not by this alone" if lever.allowed_s is None else f"{duration(lever.allowed_s)} per incident"


def _causes(summary: Summary) -> list[str]:
    rows = [
        [name, f"{number:.1f}", percent(share, 3)]
        for name, (number, share) in list(summary.by_cause.items())[:_MAX_CAUSES]
    ]
    return table(["cause", "faults a run", "of the time"], rows, indent="  ")


def _steps(setup: Setup, summary: Summary) -> list[str]:
    """ByteRobust's published shares beside it, where its mix is simulated."""
    has_published = setup.mix.name == "byterobust"
    steps = dict(summary.solved_by)
    if has_published:
        steps = {**steps, **{step: steps.get(step, 0.0) for step in PUBLISHED}}
    rows = [
        [step, percent(share, 2), percent(PUBLISHED[step], 2) if step in PUBLISHED and has_published else ""]
        for step, share in sorted(steps.items(), key=lambda item: -item[1])
    ]
    if not has_published:
        return table(["step", "of the faults"], [row[:2] for row in rows], indent="  ")
    return table(["step", "of the faults", "published"], rows, indent="  ")
