"""Ranks that disagree on the members of a process group: their collectives never meet. Pure; used by `localise`."""

from collections import Counter, defaultdict

from everstep.analyzer.flights.telling import says
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Collective, ParallelGroup
from everstep.analyzer.observations.words import fold, ranks_text, verb
from everstep.model.verdict import Confidence


def find_mismatch(positions: Positions, waits: dict[int, list[Collective]], at: float) -> Finding | None:
    """The first group in which a rank waits and that its members declare with different ranks."""
    declared: defaultdict[str, dict[int, ParallelGroup]] = defaultdict(dict)
    for other, record in positions.records.items():
        for group in record.groups:
            if group.ranks and group.complete:
                declared[group.name][other] = group
    looked: set[str] = set()
    for rank, entries in waits.items():
        for entry in entries:
            if entry.group not in looked:
                looked.add(entry.group)
                finding = _compare(positions, declared[entry.group], rank, at)
                if finding is not None:
                    return finding
    return None


def _compare(positions: Positions, declared: dict[int, ParallelGroup], rank: int, at: float) -> Finding | None:
    """One name may mean several groups where their ranks do not overlap: only those that overlap are compared."""
    mine = declared.get(rank)
    if mine is None or len({id(group.ranks) for group in declared.values()}) == 1:
        return None  # one tuple, as the reader makes of equal ones: ten thousand need not be compared
    family = {other: group for other, group in declared.items() if set(group.ranks) & set(mine.ranks)}
    count = Counter(group.ranks for group in family.values())
    if len(count) < 2:
        return None
    (usual, most), (_, second) = count.most_common(2)
    clear = most > second
    ranks = tuple(other for other, group in family.items() if group.ranks != usual) if clear else tuple(family)
    return _finding(positions, family, usual if clear else (), ranks, at)


def _finding(
    positions: Positions, family: dict[int, ParallelGroup], usual: tuple[int, ...], ranks: tuple[int, ...], at: float
) -> Finding:
    first = family[ranks[0]]
    others = tuple(other for other in family if other not in ranks)
    listed = "; ".join(f"rank {rank}: {fold(family[rank].ranks)}" for rank in ranks[:8])
    if usual:
        sentence = (
            f"{ranks_text(ranks)} {verb(ranks, 'takes', 'take')} {first.title} for ranks {fold(first.ranks)}, "
            f"{ranks_text(others)} for ranks {fold(usual)}: collectives of different groups never meet."
        )
    else:
        sentence = (
            f"the ranks of {first.title} disagree on who belongs to it ({listed}); no majority says who is right."
        )
    return Finding(
        code="ES-H03",
        sentence=sentence,
        confidence=Confidence.HIGH if usual else Confidence.LOW,
        ranks=ranks,
        waiting=tuple(sorted(set(positions.records) - set(ranks))),
        group=first,
        evidence=tuple(says(at, f"declares {first.title} as ranks {fold(family[r].ranks)}", r) for r in ranks[:16]),
    )
