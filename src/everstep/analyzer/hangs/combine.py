"""All evidence about one moment becomes one verdict: which rank, why, how sure, and which group to isolate.

Order of trust: what the flight records prove (`localise`), the state of processes, what stacks show (`clusters`), what
the library reported when it timed out, loads. A stronger source decides, a weaker one refines it or lowers the
confidence. No rank is blamed for missing evidence while there is another explanation.

Pure. Called by the controller and by `everstep analyze`.
"""

import msgspec

from everstep.analyzer.codes import CODES
from everstep.analyzer.flights.localise import localise
from everstep.analyzer.flights.moving import SPREAD_S, is_moving, lately_s
from everstep.analyzer.hangs import alone, certainty, claimed, describe, fallbacks, openers
from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.observations.clusters import Activity, Clusters, cluster, main_thread, place_of
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.groups import shared_by
from everstep.analyzer.observations.positions import Positions
from everstep.analyzer.observations.records import Case, ParallelGroup, RankEvidence
from everstep.analyzer.observations.words import seconds
from everstep.model.verdict import Blame, Certainty, Confidence, Evidence, Verdict

SETTLED_S = 1.0
"""A wait younger than this when the evidence was taken is what a running job looks like, too: ranks arrive one after
another in every step. Younger hangs are not called; the hang rule does not ask before."""

_PROOF = ("ES-H03", "ES-H04", "ES-H05")
_SURE = (Confidence.LOW, Confidence.MEDIUM, Confidence.HIGH)
_STOPPED = "T"  # not t: py-spy itself holds a process in a tracing stop while it looks


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the rules look at, indexed by rank."""

    case: Case
    by_rank: dict[int, RankEvidence]
    positions: Positions
    clusters: Clusters
    doing: dict[int, Activity]

    @property
    def suspects_by_state(self) -> tuple[int, ...]:
        return tuple(r for r, e in sorted(self.by_rank.items()) if e.states and e.states[0][1] == _STOPPED)


def diagnose(case: Case) -> Diagnosis:
    """The verdict of one moment. A running job gets ES-H00, poor evidence ES-H15."""
    bench = lay_out(case)
    findings = _findings(bench)
    chosen = findings[0]
    chosen = describe.refine(chosen, bench.by_rank, bench.doing)
    group = _group(chosen, bench)
    limit_s = limit_of(bench)
    judged = certainty.judge(chosen, bench.by_rank, bench.doing, bench.positions.world, limit_s)
    is_certain = judged.certainty is Certainty.CERTAIN
    confidence = chosen.confidence if is_certain else min(chosen.confidence, Confidence.MEDIUM, key=_SURE.index)
    if alone.is_alone(chosen, case, bench.positions):
        confidence = Confidence.LOW
    verdict = Verdict(
        code=chosen.code,
        sentence=chosen.sentence,
        blame=judged.blame or Blame(CODES[chosen.code].blame),
        confidence=confidence,
        ranks=chosen.ranks,
        at=case.at,
        group=group.title if group is not None else "",
        group_ranks=group.ranks if group is not None else (),
        place=chosen.place or _place(chosen, bench),
        certainty=judged.certainty,
        because=judged.because,
        computes=judged.computes,
        evidence=_evidence(chosen, bench),
    )
    if chosen.code == "ES-H00":
        verdict = msgspec.structs.replace(
            verdict, certainty=Certainty.UNSTATED, because="", confidence=chosen.confidence
        )
    return Diagnosis(
        verdict=verdict, limit_s=limit_s, group=group, clusters=bench.clusters, findings=(chosen, *findings[1:])
    )


def limit_of(bench: Bench) -> float | None:
    """The longest time limit of what ranks wait in: torch ends the job then at the latest."""
    pending = (entry for rank in bench.positions.records for entry in bench.positions.pending(rank))
    return max((entry.timeout_s for entry in pending if entry.timeout_s is not None), default=None)


def _place(finding: Finding, bench: Bench) -> str:
    """The place where the first suspect stands, else the first rank kept waiting."""
    for rank in (*finding.ranks, *finding.waiting):
        evidence = bench.by_rank.get(rank)
        thread = main_thread(evidence.own) if evidence is not None and evidence.own is not None else None
        place = place_of(thread.frames) if thread is not None else ""
        if place:
            return place
    return ""


def lay_out(case: Case) -> Bench:
    by_rank = {evidence.rank: evidence for evidence in case.ranks}
    threads = {
        rank: thread
        for rank, evidence in by_rank.items()
        if evidence.own is not None and (thread := main_thread(evidence.own)) is not None
    }
    clusters = cluster(threads)
    doing = {rank: c.activity for c in (*clusters.healthy, *clusters.outliers) for rank in c.ranks}
    others = {r for r, e in by_rank.items() if certainty.is_at_store(e) or _trains_in_a_thread(e, doing)}
    doing |= dict.fromkeys(others, Activity.COLLECTIVE)
    records = [evidence.flight for evidence in case.ranks if evidence.flight is not None]
    positions = Positions(records, {*case.world, *by_rank}, case.usual_s)
    return Bench(case=case, by_rank=by_rank, positions=positions, clusters=clusters, doing=doing)


def _trains_in_a_thread(evidence: RankEvidence, doing: dict[int, Activity]) -> bool:
    """Its main thread waits for one that waits for the other ranks."""
    own = evidence.own
    if own is None or doing.get(evidence.rank) is not Activity.BLOCKED:
        return False
    waits = [wait for wait in evidence.waits if wait.pid == own.pid]
    is_within = any(wait.tid == own.pid and wait.hold in openers.WITHIN for wait in waits)
    return is_within and openers.takes_part(waits, certainty.threads_of(evidence), own.pid)


def _findings(bench: Bench) -> list[Finding]:
    located = (_narrowed(finding, bench) for finding in localise(bench.positions, bench.case.at))
    found = [finding for finding in located if finding is not None]
    if found and _is_young(found[0], bench):
        return [_young(bench)]
    if not found and is_moving(bench.positions):
        return [_queued(bench)]
    if not found and _is_moving(bench):
        return [fallbacks.nothing(bench.case.at, bench.by_rank, bench.positions)]
    free = {rank for rank, doing in bench.doing.items() if doing not in (Activity.COLLECTIVE, Activity.BACKWARD)}
    if free:  # gloo records no sends, receives and reduce_scatters: a rank that looks idle may wait in one
        found = [f for f in found if f.code != "ES-H02" or set(f.ranks) & free or not set(f.ranks) <= set(bench.doing)]
    proven = [f for f in found if f.code in _PROOF or f.confidence is Confidence.HIGH]
    weaker = [f for f in found if f not in proven and f.code != "ES-H11"]
    stalled = [f for f in found if f.code == "ES-H11"]
    others = fallbacks.stopped(bench.case.at, bench.by_rank, bench.suspects_by_state)
    stacked = fallbacks.stacks(bench.case.at, bench.clusters, bench.doing)
    if weaker and stacked and not set(weaker[0].ranks) & set(stacked[0].ranks):
        stacked = []  # the records identify ranks; stacks alone do not overrule them
    said = claimed.findings(bench.case.claims, bench.case.at)
    sure = [finding for finding in said if finding.confidence is Confidence.HIGH]
    rest = [
        *(finding for finding in said if finding not in sure and finding.ranks),
        *fallbacks.timeouts(bench.case.at, bench.by_rank, bench.positions.world, bench.case.claims),
        *fallbacks.loads(bench.case.at, bench.by_rank),
        *fallbacks.steps(bench.case.at, bench.by_rank),
        *(finding for finding in said if not finding.ranks),
    ]
    listed = [*proven, *others, *sure, *weaker, *_still(bench, found), *stacked, *stalled, *rest]
    return listed or [fallbacks.nothing(bench.case.at, bench.by_rank, bench.positions)]


def _still(bench: Bench, found: list[Finding]) -> list[Finding]:
    """The finding when no rank communicates, by record or by stack, but for the job's store."""
    at_store = {rank for rank, evidence in bench.by_rank.items() if certainty.is_at_store(evidence)}
    communicate = {rank for rank, doing in bench.doing.items() if doing is Activity.COLLECTIVE}
    if found or communicate - at_store:
        return []
    return fallbacks.everybody_waits(bench.case.at, bench.by_rank, bench.positions)


def _narrowed(finding: Finding, bench: Bench) -> Finding | None:
    """Narrow the suspects without a record. Those whose files there was no time to read may have one; of several, those
    whose stack shows that they wait themselves are innocent. None: no suspect is left."""
    if finding.code != "ES-H10":
        return finding
    seen = tuple(rank for rank in finding.ranks if rank not in bench.case.unread)
    left = tuple(rank for rank in seen if len(seen) < 2 or bench.doing.get(rank) is not Activity.COLLECTIVE) or seen
    if not left:
        return None
    if left == finding.ranks:
        return finding
    sentence = describe.absent_sentence(left, finding)
    confidence = Confidence.MEDIUM if len(left) == 1 else finding.confidence
    return msgspec.structs.replace(finding, ranks=left, sentence=sentence, confidence=confidence)


def _is_young(finding: Finding, bench: Bench) -> bool:
    """Whether everything that is pending began only just before the evidence was taken."""
    if finding.code in ("ES-H03", "ES-H04", "ES-H10"):  # a desync does not pass, and a rank without a record is odd
        return False
    taken_at = _taken_at(bench)
    ages = [
        taken_at - entry.created_at
        for record in bench.positions.records.values()
        for entry in bench.positions.pending(record.rank)
        if entry.created_at is not None
    ]
    return bool(ages) and -SPREAD_S <= max(ages) < SETTLED_S


def _is_moving(bench: Bench) -> bool:
    """Whether all records are there, no rank waits, and an operation is fresh: then stacks differ as they always do."""
    taken_at = _taken_at(bench)
    ages = [
        taken_at - created_at
        for record in bench.positions.records.values()
        if len(record.entries) and (created_at := record.entries[-1].created_at) is not None
    ]
    return not bench.positions.missing() and bool(ages) and -SPREAD_S <= min(ages) < SETTLED_S


def _taken_at(bench: Bench) -> float:
    """When the records were taken. They are asked for together, and a file is written when its record is done: seconds
    later where stacks are symbolised. So the first file is the best clock for all."""
    known = [record.taken_at for record in bench.positions.records.values() if record.taken_at is not None]
    return min(known, default=bench.case.at)


def _young(bench: Bench) -> Finding:
    pending = [rank for rank in bench.positions.records if bench.positions.pending(rank)]
    return Finding(
        code="ES-H00",
        sentence=f"no fault found: {len(pending)} ranks are in a collective, for less than {SETTLED_S} s when the "
        "evidence was taken, as in every running job.",
        confidence=Confidence.MEDIUM,
    )


def _queued(bench: Bench) -> Finding:
    pending = [rank for rank in bench.positions.records if bench.positions.pending(rank)]
    return Finding(
        code="ES-H00",
        sentence=f"no fault found: {len(pending)} ranks have operations queued, and most ranks queued or ended some "
        f"within {seconds(lately_s(bench.positions))} of their record, as in every running job.",
        confidence=Confidence.MEDIUM,
    )


def _group(finding: Finding, bench: Bench) -> ParallelGroup | None:
    """The parallel group that all outliers share; for one suspect, where it was missed unless that is everywhere."""
    if not finding.ranks:
        return finding.group
    groups = list(bench.positions.groups.values())
    moving = {rank for c in bench.clusters.outliers for rank in c.ranks if c.activity is not Activity.BACKWARD}
    for outliers in ({*finding.ranks, *moving}, set(finding.ranks)):
        if len(outliers) > 1:
            shared = shared_by(sorted(outliers), groups)
            if shared:
                return shared
    seen = finding.group
    return seen if seen is not None and seen.kind != "world" and len(seen.ranks) > 1 else None


def _evidence(finding: Finding, bench: Bench) -> tuple[Evidence, ...]:
    at = bench.case.at
    listed = list(finding.evidence)
    listed += describe.of_suspects(at, finding.ranks, bench.by_rank)
    listed += describe.of_clusters(at, bench.clusters)
    listed += [
        Evidence(at=at, source="flight record", says=says, rank=rank)
        for rank, says in list(bench.positions.stale.items())[:16]
    ]
    listed += [
        Evidence(at=at, source="missing", says=why, rank=rank)
        for rank, evidence in bench.by_rank.items()
        if rank in finding.ranks or not finding.ranks
        for why in evidence.unavailable
    ][:64]
    unique = {(e.source, e.says, e.rank): e for e in listed}
    return tuple(unique.values())
