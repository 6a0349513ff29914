"""Map of a hang: a mark per rank and collective shows which ranks wait for which, and ranks at the same place are
grouped. Pure.

Rows follow the job's mesh, so a fault lines up as a row or a column; a rank without data is shown as unknown.
"""

import enum

import msgspec

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.observations.clusters import Cluster
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Case, ParallelGroup
from everstep.analyzer.observations.words import fold
from everstep.model.facts import RankGroup
from everstep.report.now.ranks import render_ranks

MAX_RANKS = 16_384
MAX_GROUPS = 24
MAX_STACKS = 40


class Mark(enum.StrEnum):
    WAITS = "W"  # entered the operation and has not left it
    ABSENT = "x"  # others wait in it, and this rank has not entered
    PAST = ">"  # has finished it
    UNKNOWN = "?"  # no flight record, or an old one


class WaveRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process group at its front: the newest operation that a rank waits in."""

    group: str
    op: str
    seq: int
    place: str
    ranks: tuple[int, ...]
    marks: str  # one per rank
    is_blamed: bool  # it has a suspect of the verdict


class StackGroup(msgspec.Struct, frozen=True, kw_only=True):
    ranks: str  # folded
    num: int
    doing: str
    innermost: str
    place: str
    is_outlier: bool


class RanksPage(msgspec.Struct, frozen=True, kw_only=True):
    sentence: str
    code: str
    suspects: tuple[int, ...]
    order: str  # what the ranks are ordered by
    waves: tuple[WaveRow, ...]
    num_waves: int
    stacks: tuple[StackGroup, ...]
    table: tuple[str, ...]  # as `everstep doctor` prints it
    missing: str  # ranks without any evidence, folded
    num_ranks: int


def ranks_page(case: Case, diagnosis: Diagnosis, declared: tuple[RankGroup, ...]) -> RanksPage:
    verdict = diagnosis.verdict
    positions = Positions([each.flight for each in case.ranks if each.flight is not None], case.world)
    waves = _waves(positions, frozenset(verdict.ranks), declared)
    clusters = diagnosis.clusters
    stacks = [_stack(c, is_outlier=True) for c in clusters.outliers]
    stacks += [_stack(c, is_outlier=False) for c in clusters.healthy]
    seen = {each.rank for each in case.ranks}
    return RanksPage(
        sentence=verdict.sentence,
        code=verdict.code,
        suspects=verdict.ranks,
        order="the job's groups" if declared else "the groups in the flight records",
        waves=tuple(waves[:MAX_GROUPS]),
        num_waves=len(waves),
        stacks=tuple(stacks[:MAX_STACKS]),
        table=tuple(render_ranks(case, clusters)),
        missing=fold(sorted(set(case.world) - seen)),
        num_ranks=len(set(case.world) | seen),
    )


def _waves(positions: Positions, suspects: frozenset[int], declared: tuple[RankGroup, ...]) -> list[WaveRow]:
    """Blamed ones first, then those in which most ranks wait."""
    names = {frozenset(group.ranks): group.title for group in declared}
    found = [row for group in positions.groups.values() if (row := _wave(positions, group, suspects, names))]
    return sorted(found, key=lambda row: (not row.is_blamed, -row.marks.count(Mark.WAITS), row.ranks))


def _wave(
    positions: Positions, group: ParallelGroup, suspects: frozenset[int], names: dict[frozenset[int], str]
) -> WaveRow | None:
    ranks = group.ranks[:MAX_RANKS]
    waits = [c for rank in ranks for c in positions.pending(rank) if c.group == group.name and not c.is_p2p]
    if not waits:
        return None
    front = min(waits, key=lambda collective: collective.seq)
    marks = [_mark(positions, group.name, rank, front.seq) for rank in ranks]
    return WaveRow(
        group=names.get(frozenset(group.ranks), group.title),
        op=front.op,
        seq=front.seq,
        place=front.place,
        ranks=ranks,
        marks="".join(marks),
        is_blamed=bool(suspects.intersection(ranks)) and Mark.ABSENT in marks,
    )


def _mark(positions: Positions, name: str, rank: int, seq: int) -> Mark:
    position = positions.at(name, rank)
    if position is None:
        return Mark.UNKNOWN
    if position.entered < seq:
        return Mark.ABSENT
    return Mark.PAST if position.finished >= seq else Mark.WAITS


def _stack(cluster: Cluster, *, is_outlier: bool) -> StackGroup:
    return StackGroup(
        ranks=fold(cluster.ranks),
        num=len(cluster.ranks),
        doing=str(cluster.activity),
        innermost=cluster.innermost,
        place=cluster.place,
        is_outlier=is_outlier,
    )
