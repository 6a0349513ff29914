"""The decisions of several runs beside each other: the first difference, and tables. Pure. Used by engines.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sameness.decisions import COMPARED, SHOWN, Decided


@dataclass(frozen=True, kw_only=True)
class Difference:
    incident: int  # 1, 2, ...
    what: str
    values: dict[str, str]  # of each run

    def __str__(self) -> str:
        said = "".join(f"\n  {name}: {value or '(nothing)'}" for name, value in self.values.items())
        return f"incident {self.incident}, {self.what}:{said}"


def differences(runs: Mapping[str, Sequence[Decided]]) -> list[Difference]:
    """In the order of the incidents. A run that has fewer differs in those that it lacks."""
    found = []
    for number in range(max(map(len, runs.values()), default=0)):
        there = {name: number < len(one) for name, one in runs.items()}
        if not all(there.values()):
            values = {name: runs[name][number]["code"] if is_there else "" for name, is_there in there.items()}
            found.append(Difference(incident=number + 1, what="is not in all", values=values))
            continue
        for what in COMPARED:
            values = {name: one[number][what] for name, one in runs.items()}
            if len(set(values.values())) > 1:
                found.append(Difference(incident=number + 1, what=what, values=values))
    return found


def table(faults: Sequence[str], runs: Mapping[str, Sequence[Decided]]) -> str:
    """A block for each fault: what all runs decided, or each its own, and what is only shown."""
    blocks = []
    for number in range(max(map(len, runs.values()), default=0)):
        lines = [faults[number] if number < len(faults) else "(an incident without a fault of the scenario)"]
        for what in (*COMPARED, *SHOWN):
            values = {name: one[number][what] if number < len(one) else "(no incident)" for name, one in runs.items()}
            lines += _lines(what, values)
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def _lines(what: str, values: Mapping[str, str]) -> list[str]:
    distinct = set(values.values())
    if distinct == {""}:
        return []
    if len(distinct) == 1:
        return [f"  {what:<11} {distinct.pop()}"]
    mark = "*" if what in SHOWN else "!"
    return [f"{mark} {what if not at else '':<11} {name}: {value}" for at, (name, value) in enumerate(values.items())]


def document(
    faults: Sequence[str], runs: Mapping[str, Sequence[Decided]], normalised: Sequence[str]
) -> dict[str, object]:
    """For programs."""
    return {
        "faults": list(faults),
        "normalised": list(normalised),
        "runs": {name: [each.words for each in one] for name, one in runs.items()},
        "differences": [
            {"incident": each.incident, "what": each.what, "values": each.values} for each in differences(runs)
        ],
    }
