"""One rank's record against the others': then a verdict on them is a guess, however clear that rank's record is.

A member that claims to have finished what at least two of the accused report that they still wait in is wrong or lies:
such an operation cannot finish before all have entered it. A rank that only one record knows of may not exist. Pure.
Called by `combine`.
"""

from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import STRICT, Positions
from everstep.analyzer.observations.records import Case

_MOST_LOOKED_AT = 64
"""Of the named: two who say so are enough."""


def is_alone(finding: Finding, case: Case, positions: Positions) -> bool:
    """Whether nothing but the record of one rank that is not named, and is contradicted, says so."""
    if _is_invented(finding, case, positions):
        return True
    if finding.code != "ES-H02" or finding.group is None or len(finding.ranks) < 2:
        return False
    name, members = finding.group.name, finding.group.ranks
    waited_in = [
        entry.seq
        for rank in finding.ranks[:_MOST_LOOKED_AT]
        for entry in positions.pending(rank)
        if entry.group == name and entry.op in STRICT
    ]
    if len(waited_in) < 2:
        return False
    second = sorted(waited_in)[1]  # two of them wait in this one or an earlier one
    past = [rank for rank in members if (at := positions.at(name, rank)) is not None and at.completed_strict >= second]
    return len(past) == 1 and past[0] not in finding.ranks


def _is_invented(finding: Finding, case: Case, positions: Positions) -> bool:
    """A rank without any evidence of its own, of which one record only knows, and others know the world without it."""
    known = {*case.world, *(evidence.rank for evidence in case.ranks)}
    worlds = [record.world for record in positions.records.values() if record.world]
    return any(len(worlds) > 1 and sum(rank in world for world in worlds) == 1 for rank in {*finding.ranks} - known)
