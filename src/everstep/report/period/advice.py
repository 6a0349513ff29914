"""Advice on what would help most: for each way in which time went, the usual remedy, and at most how much it wins.

It only ranks what was measured; nothing here is promised. Pure.
"""

from collections.abc import Sequence

from everstep.report.parts.commands import command
from everstep.report.parts.units import plural
from everstep.report.period.schema import Advice, Class, Seconds

SMALL = 0.001
"""Share of all time: less is not worth a line."""

MAX_ADVICE = 4

START = "start"
"""Is part of the group "recovery": what no incident is to blame for."""

_BY_GROUP = {
    "redone": (
        "snapshots more often, or in memory: docs/state.md",
        "steps were done twice",
    ),
    "recovery": (
        "shorten the longest phase of recoveries: everstep incident show",
        "ranks waited from faults to the next step",
    ),
    START: (
        "shorten the program's start: imports, data, compilation",
        "ranks were starting and had done no step yet",
    ),
    "checkpoint": (
        "copy snapshots beside training: docs/checkpoints.md",
        "training stood still for snapshots",
    ),
    "idle": (
        "see what runs wait for: nodes, a last checkpoint",
        "ranks had nothing to do",
    ),
    "not measured": (
        "let steps be seen: docs/api.md",
        "what these seconds were is not known",
    ),
}


def advice_of(
    seconds: Seconds, start_rank_s: float, rank_s: float, classes: Sequence[Class], offenders: Sequence[Class]
) -> tuple[Advice, ...]:
    """The most promising first."""
    start_s = min(start_rank_s, seconds["recovery"])
    seconds = {**seconds, START: start_s, "recovery": seconds["recovery"] - start_s}
    found = [Advice(what=what, because=because, rank_s=seconds[name]) for name, (what, because) in _BY_GROUP.items()]
    for machine in offenders[:2]:
        because = f"{plural(machine.number, 'incident')} are blamed on it ({', '.join(machine.codes)})"
        found.append(Advice(what=f"examine {machine.key}, or take it out", because=because, rank_s=machine.rank_s))
    for kind in classes[:2]:
        if kind.key and kind.number > 1:
            because = f"{plural(kind.number, 'incident')} of this class"
            what = f"{command('explain', kind.key)}: {kind.name or 'what it means and what to do'}"
            found.append(Advice(what=what, because=because, rank_s=kind.rank_s))
    worth = [advice for advice in found if rank_s > 0.0 and advice.rank_s / rank_s >= SMALL]
    return tuple(sorted(worth, key=lambda advice: -advice.rank_s)[:MAX_ADVICE])
