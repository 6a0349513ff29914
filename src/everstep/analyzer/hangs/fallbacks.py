"""Findings from weaker evidence, for the case that flight records are missing or prove nothing. Pure; for `combine`."""

import re
from collections.abc import Mapping

from everstep.analyzer.hangs.metrics import odd_ones_out
from everstep.analyzer.observations.claims import Claims
from everstep.analyzer.observations.clusters import Activity, Cluster, Clusters
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Hold, RankEvidence
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.model.verdict import Confidence, Evidence

_VICTIM = (Activity.COLLECTIVE,)
_MAX_LISTED = 8


def stopped(at: float, by_rank: Mapping[int, RankEvidence], ranks: tuple[int, ...]) -> list[Finding]:
    """Process state T is seen, not inferred."""
    if not ranks:
        return []
    return [
        Finding(
            code="ES-H01",
            sentence=f"{ranks_text(ranks)} {verb(ranks, 'is', 'are')} stopped (process state T) and "
            f"{verb(ranks, 'runs', 'run')} nothing; the others can only wait.",
            confidence=Confidence.HIGH,
            ranks=ranks,
            waiting=tuple(rank for rank in by_rank if rank not in ranks),
        )
    ]


def stacks(at: float, clusters: Clusters, doing: Mapping[int, Activity]) -> list[Finding]:
    """Ranks that do something else while the others wait in communication; else, ranks that differ at all."""
    waiting = tuple(sorted(rank for rank, activity in doing.items() if activity in _VICTIM))
    free = tuple(sorted(rank for rank, activity in doing.items() if activity not in (*_VICTIM, Activity.BACKWARD)))
    if waiting and free and len(free) <= len(waiting):
        listed = [c for c in (*clusters.healthy, *clusters.outliers) if set(c.ranks) & set(free)]
        what = "; ".join(_doing(c) for c in listed[:_MAX_LISTED])
        return [
            Finding(
                code="ES-H12",
                sentence=f"{ranks_text(waiting)} {verb(waiting, 'waits', 'wait')} in communication, {what}.",
                confidence=Confidence.MEDIUM if len(free) == 1 else Confidence.LOW,
                ranks=free,
                waiting=waiting,
            )
        ]
    odd = clusters.outlier_ranks
    if not odd:
        return []
    first = clusters.outliers[0]
    usual = sorted(rank for c in clusters.healthy for rank in c.ranks)
    return [
        Finding(
            code="ES-H12",
            sentence=f"{ranks_text(odd)} {verb(odd, 'stands', 'stand')} elsewhere than the other {len(usual)} ranks: "
            f"{first.innermost}{', called at ' + first.place if first.place else ''}.",
            confidence=Confidence.LOW,
            ranks=odd,
            waiting=tuple(usual),
        )
    ]


def _doing(of: Cluster) -> str:
    if of.activity is Activity.UNKNOWN:
        return f"what {ranks_text(of.ranks)} {verb(of.ranks, 'does', 'do')} is not known"
    return f"{ranks_text(of.ranks)} {of.activity}"


def timeouts(at: float, by_rank: Mapping[int, RankEvidence], world: tuple[int, ...], claims: Claims) -> list[Finding]:
    """Ranks that the communication library did not report as timed out, or that timed out earlier in the sequence: each
    group has one of its own, so numbers of several groups are not compared."""
    reported = {rank: e.waits_at for rank, e in by_rank.items() if e.waits_at is not None}
    if not reported:
        return []
    newest = max(seq for _, seq in reported.values())
    is_one = len({work.group for work in claims.works if work.group}) < 2
    behind = tuple(sorted(rank for rank, (_, seq) in reported.items() if seq < newest)) if is_one else ()
    silent = tuple(rank for rank in world if rank not in reported)
    ranks = silent or behind
    if not ranks or len(ranks) >= len(reported):
        return []
    operation = next(op for op, seq in reported.values() if seq == newest)
    furthest = f", the furthest in {operation} #{newest}" if is_one else " in several groups"
    who = "did not report a timeout" if silent else "timed out at an earlier place"
    return [
        Finding(
            code="ES-H20",
            sentence=f"{len(reported)} ranks timed out{furthest}; {ranks_text(ranks)} {who}.",
            confidence=Confidence.LOW if len(ranks) > 1 else Confidence.MEDIUM,
            ranks=ranks,
            waiting=tuple(reported),
            evidence=tuple(
                Evidence(at=at, source="log", says=f"timed out in {op} #{seq}", rank=rank)
                for rank, (op, seq) in sorted(reported.items())[:_MAX_LISTED]
            ),
        )
    ]


def loads(at: float, by_rank: Mapping[int, RankEvidence]) -> list[Finding]:
    odd = odd_ones_out({rank: e.load for rank, e in by_rank.items() if e.load is not None})
    return [
        Finding(
            code="ES-H13",
            sentence=f"{ranks_text(o.ranks)} {verb(o.ranks, 'is', 'are')} {'idle' if o.idle else 'busy'} while the "
            f"others are {'busy' if o.idle else 'idle'}: {o.says}.",
            confidence=Confidence.LOW,
            ranks=o.ranks,
            evidence=(Evidence(at=at, source=o.source, says=o.says, rank=o.ranks[0]),),
        )
        for o in odd
    ]


def steps(at: float, by_rank: Mapping[int, RankEvidence]) -> list[Finding]:
    """The rank whose log ends at an earlier step than all others'."""
    known = {rank: e.last_step for rank, e in by_rank.items() if e.last_step is not None}
    newest = max(known.values(), default=0)
    behind = tuple(sorted(rank for rank, step in known.items() if step < newest))
    if len(known) < 3 or not behind or len(behind) > len(known) // 4 + 1 or len(behind) * 2 >= len(known):
        return []
    return [
        Finding(
            code="ES-H20",
            sentence=f"the log of {ranks_text(behind)} ends at step {known[behind[0]]}, the others' at step {newest}.",
            confidence=Confidence.LOW,
            ranks=behind,
            evidence=tuple(Evidence(at=at, source="log", says=f"last step {known[r]}", rank=r) for r in behind[:8]),
        )
    ]


def everybody_waits(at: float, by_rank: Mapping[int, RankEvidence], positions: Positions) -> list[Finding]:
    """No record says that anybody waits for another, and the kernel says that every rank waits."""
    mains = {rank: main for rank, evidence in by_rank.items() if (main := evidence.main_wait) is not None}
    if not mains or set(positions.world) - set(mains):
        return []
    if any(main.hold in (Hold.NOTHING, Hold.UNKNOWN, Hold.ENDED) for main in mains.values()):
        return []
    waits: dict[str, list[int]] = {}
    for rank, main in mains.items():
        waits.setdefault(main.what or "waits within its process", []).append(rank)
    listed = "; ".join(
        f"{ranks_text(ranks)} {what if len(ranks) == 1 else what.replace('waits', 'wait', 1)}"
        for what, ranks in list(waits.items())[:_MAX_LISTED]
    )
    return [
        Finding(
            code="ES-H16",
            sentence=f"no rank is in a collective, and every one waits: {listed}.",
            confidence=Confidence.MEDIUM,
            waiting=tuple(mains),
        )
    ]


def nothing(at: float, by_rank: Mapping[int, RankEvidence], positions: Positions) -> Finding:
    """No rule found anything: either nothing is wrong, or not enough was seen."""
    recorded = sorted(positions.records)
    if recorded and not positions.missing():
        return Finding(
            code="ES-H00",
            sentence=f"no fault found: no rank waits for another in the flight records of {ranks_text(recorded)}"
            f"{', which were taken while the job moved' if positions.stale else ''}.",
            confidence=Confidence.MEDIUM,
        )
    stacked = sorted(rank for rank, evidence in by_rank.items() if evidence.processes)
    have = f"flight records of {len(recorded)} ranks, stacks of {len(stacked)}"
    lacking = f"; nothing at all of {ranks_text(lost)}" if (lost := _unseen(by_rank, positions)) else ""
    return Finding(
        code="ES-H15",
        sentence=f"the evidence does not say what is wrong: {have}, {len(positions.world)} ranks known{lacking}.",
        confidence=Confidence.LOW,
        evidence=(
            Evidence(at=at, source="missing", says=_missing_records(positions)),
            *_last_errors(at, by_rank),
        ),
    )


def _missing_records(positions: Positions) -> str:
    missing = positions.missing()
    return f"no flight record of {ranks_text(missing)}" if missing else "no flight record, and no rank is known"


def _last_errors(at: float, by_rank: Mapping[int, RankEvidence]) -> list[Evidence]:
    """Logs that end with an error: then it was no silent fault."""
    ended = {}
    for rank, evidence in by_rank.items():
        lines = [line for line in evidence.last_output.splitlines() if re.search(r"\b\w*(Error|Exception)\b", line)]
        if lines:
            ended[rank] = lines[-1]
    return [
        Evidence(at=at, source="log", says=f"ends with: {line.strip()[:200]}", rank=rank)
        for rank, line in list(ended.items())[:_MAX_LISTED]
    ]


def _unseen(by_rank: Mapping[int, RankEvidence], positions: Positions) -> list[int]:
    return [rank for rank in positions.world if rank not in by_rank]
