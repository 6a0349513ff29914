"""From how processes ended to a verdict: which end was the cause, which ones followed. Pure.

A rank that dies takes its peers with it: their connections break and they raise. So the first *exit* is often not the
first *fault*. Ends that only say "a peer is gone" are consequences, whatever their order, unless there is nothing else.
"""

import msgspec

from everstep.analyzer.numbers.alerts import SeenAlert, cause_among, verdict_on
from everstep.analyzer.observations.words import seconds
from everstep.analyzer.rank_exit import (
    action_of,
    broke_its_own,
    classify,
    describe,
    evidences,
    fault_time,
    is_own_exception,
    looks_like_consequence,
    lost_a_service,
    repeated,
    same_fault,
    same_killer,
    strongest_first,
)
from everstep.analyzer.standing import Hang, Left, is_of_left, left_verdict
from everstep.model.facts import Exit
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

_SAME_TIME_S = 1.0
"""What ranks noticed later than this after the first one followed from it. Clocks of nodes differ by less."""


class LostNode(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    at: float
    reason: str
    ranks: tuple[int, ...]
    rack: str = ""  # empty: not known


class Overdue(msgspec.Struct, frozen=True, kw_only=True):
    """Something that should have happened by now."""

    code: str  # "ES-P04" or "ES-P05"
    at: float
    ranks: tuple[int, ...]  # those that others wait for; empty: unknown
    says: str


class FailedRestore(msgspec.Struct, frozen=True, kw_only=True):
    """A rank could not begin from the snapshot that it was given."""

    rank: int
    node: str
    at: float
    step: int
    what: str  # "memory", "the copy on n0", "the checkpoint /ckpt/step-400"
    source: str  # "memory" | "peer" | "disk"
    why: str


class FaultFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one fault, as it comes in."""

    at: float  # when the first of it was noticed
    exits: tuple[Exit, ...] = ()
    lost: tuple[LostNode, ...] = ()
    overdue: tuple[Overdue, ...] = ()
    unrestored: tuple[FailedRestore, ...] = ()
    left: tuple[Left, ...] = ()  # ranks that ended well before it
    hang: Hang | None = None
    stood: Hang | None = None  # the job stood still until this, and was left as it was
    anomaly: Verdict | None = None  # the job ran, and this was wrong with it
    alerts: tuple[SeenAlert, ...] = ()  # what nodes noticed about themselves, lately
    nodes: dict[int, str] = {}  # node of each rank
    outlived_at: float | None = None  # all ranks have made steps since: what nodes noticed before it is over


def judge(facts: FaultFacts) -> Verdict:
    """The verdict on what is known so far. Total: there is one for every combination of facts."""
    if facts.anomaly is not None:
        return anomaly_verdict(facts, facts.anomaly)
    failures = sorted((e for e in facts.exits if not e.succeeded and not e.stopped_by_us), key=fault_time)
    causes = [e for e in failures if not looks_like_consequence(e)]
    noticed = _noticed_verdict(facts, failures, causes)
    if noticed is not None:
        return noticed
    if facts.lost:
        return _lost_verdict(facts)
    if facts.unrestored:
        return _unrestored_verdict(facts)
    if causes:
        return _exit_verdict(facts, causes[0], causes)
    if facts.left and (facts.hang is None or is_of_left(facts.left, facts.hang)) and not facts.overdue:
        seen = [e for e in facts.exits if not e.succeeded]
        return left_verdict(facts.left, facts.nodes, evidences(seen, facts.nodes), is_hang=facts.hang is not None)
    if facts.hang is not None:
        return hang_verdict(facts, facts.hang)
    if facts.overdue:
        return _overdue_verdict(facts)
    if failures and facts.stood is not None and facts.stood.verdict is not None:
        return _given_up_verdict(facts, facts.stood, failures)
    return _contact_verdict(facts, failures)


def _exit_verdict(facts: FaultFacts, cause: Exit, causes: list[Exit]) -> Verdict:
    code, blame, confidence, note = classify(cause, causes, len(facts.nodes))
    node = facts.nodes.get(cause.rank)
    place = cause.error.place if cause.error is not None else cause.place
    killed = [e.rank for e in causes if same_killer(cause, e)]
    same = killed or [e.rank for e in causes if same_fault(cause, e)]
    rest = [e for e in facts.exits if e.rank != cause.rank and not e.succeeded]
    who, did = f"rank {cause.rank} on {node}", describe(cause)
    if len(same) > 1:
        who, did = (
            f"{len(same)} ranks (first: rank {cause.rank}) on {node}",
            did.replace("was killed", "were killed", 1),
        )
    if len({facts.nodes.get(rank) for rank in same}) > 1:
        who = f"{len(same)} ranks (first: rank {cause.rank} on {node})"
        node = None  # which machine's rank ended first says nothing of that machine
    sentence = f"{who} {did}{note}{repeated(cause)}"
    return Verdict(
        code=code,
        sentence=sentence,
        blame=blame,
        confidence=confidence,
        ranks=tuple(same),
        node=node,
        at=fault_time(cause),
        place=place,
        action=action_of(cause),
        evidence=evidences([cause, *strongest_first(rest)], facts.nodes),
    )


def _lost_verdict(facts: FaultFacts) -> Verdict:
    first = min(facts.lost, key=lambda lost: lost.at)
    evidence = [
        Evidence(at=lost.at, source="link", says=f"{lost.node}: {lost.reason}", node=lost.node) for lost in facts.lost
    ]
    return Verdict(
        code="ES-P06",
        sentence=_lost_text(facts, first),
        blame=Blame.MACHINE,
        confidence=Confidence.HIGH,
        ranks=_lost_ranks(facts),
        node=first.node,
        at=first.at,
        evidence=(*evidence, *evidences([e for e in facts.exits if not e.succeeded], facts.nodes)),
    )


def _lost_text(facts: FaultFacts, first: LostNode) -> str:
    """All of them: which of those that go together is seen first is chance. Of one rack they are one fault, of what
    they share."""
    nodes, ranks = list(dict.fromkeys(lost.node for lost in facts.lost)), _lost_ranks(facts)
    also = f", and {'rank' if len(ranks) == 1 else 'ranks'} {_ranks(ranks)} with" if ranks else ""
    if len(nodes) < 2:
        return f"the agent of {first.node} is lost ({first.reason}){also and f'{also} it'}"
    is_rack = first.rack and len({lost.rack for lost in facts.lost}) == 1
    who = f"{len(nodes)} agents{f' of rack {first.rack}' if is_rack else ''}"
    return f"{who} are lost ({', '.join(nodes)}; the first: {first.reason}){also and f'{also} them'}"


def _lost_ranks(facts: FaultFacts) -> tuple[int, ...]:
    return tuple(sorted({rank for lost in facts.lost for rank in lost.ranks}))


def _unrestored_verdict(facts: FaultFacts) -> Verdict:
    """The rank raises because of it, so its exit is a consequence."""
    first = min(facts.unrestored, key=lambda failed: failed.at)
    is_disk, ranks = first.source == "disk", tuple(dict.fromkeys(failed.rank for failed in facts.unrestored))
    is_alone = len(ranks) < 2 and len(facts.nodes) > 1
    evidence = [
        Evidence(at=f.at, source="snapshot", says=f"step {f.step} from {f.what}: {f.why}", rank=f.rank, node=f.node)
        for f in facts.unrestored[:8]
    ]
    return Verdict(
        code="ES-P08",
        sentence=f"rank {first.rank} on {first.node} could not restore step {first.step} from {first.what}: "
        f"{first.why.removesuffix('.')}",
        blame=Blame.STORAGE if is_disk else Blame.UNKNOWN,
        confidence=Confidence.MEDIUM if is_alone else Confidence.HIGH,
        ranks=ranks,
        node=None if is_disk else first.node,
        at=first.at,
        evidence=(*evidence, *evidences([e for e in facts.exits if not e.succeeded], facts.nodes)),
    )


def _overdue_verdict(facts: FaultFacts) -> Verdict:
    overdue = facts.overdue[0]
    node = facts.nodes.get(overdue.ranks[0]) if overdue.ranks else None
    return Verdict(
        code=overdue.code,
        sentence=overdue.says,
        blame=Blame.UNKNOWN,
        confidence=Confidence.MEDIUM if overdue.ranks else Confidence.LOW,
        ranks=overdue.ranks,
        node=node,
        at=overdue.at,
        evidence=(Evidence(at=overdue.at, source="timer", says=overdue.says, node=node),),
    )


def hang_verdict(facts: FaultFacts, hang: Hang) -> Verdict:
    """The diagnosis, with what the hang rule saw and the node added; without one, the rule's own words."""
    seen = Evidence(at=hang.at, source="hang rule", says=hang.says)
    if hang.verdict is None:
        return Verdict(
            code="ES-H15",
            sentence=f"the job stands still, and nothing says why: {hang.says}",
            blame=Blame.UNKNOWN,
            confidence=Confidence.LOW,
            at=hang.at,
            evidence=(seen,),
        )
    found = hang.verdict
    nodes = {facts.nodes.get(rank) for rank in found.ranks}
    return msgspec.structs.replace(
        found,
        sentence=found.sentence.removesuffix("."),
        at=hang.at,
        node=nodes.pop() if len(nodes) == 1 else None,
        evidence=(*found.evidence, seen),
    )


def _given_up_verdict(facts: FaultFacts, stood: Hang, failures: list[Exit]) -> Verdict:
    """The verdict when ranks gave up waiting: the rank that they waited for is to be investigated, not they."""
    found, first = hang_verdict(facts, stood), failures[0]
    waited = seconds(max(0.0, fault_time(first) - stood.at))
    return msgspec.structs.replace(
        found,
        sentence=f"{found.sentence}; after {waited} rank {first.rank} gave up: it {describe(first)}",
        evidence=(*found.evidence, *evidences(failures, facts.nodes)),
    )


def anomaly_verdict(facts: FaultFacts, found: Verdict) -> Verdict:
    """Return the verdict of a detector on a running job, with the node added where all suspects are on one."""
    nodes = {facts.nodes.get(rank) for rank in found.ranks}
    node = found.node or (nodes.pop() if len(nodes) == 1 else None)
    return msgspec.structs.replace(found, sentence=found.sentence.removesuffix("."), node=node)


def _noticed_verdict(facts: FaultFacts, failures: list[Exit], causes: list[Exit]) -> Verdict | None:
    """A node noticed something that explains the fault. A rank's own exception, unless it speaks of a device or of the
    network, is believed first."""
    if not facts.alerts:
        return None
    if causes and (causes[0].oom is not None or is_own_exception(causes[0])):
        return None
    culprits = causes or failures
    diagnosed = facts.hang.verdict if facts.hang is not None and not culprits else None
    if diagnosed is not None and diagnosed.blame is Blame.USER:
        return None
    ranks = tuple(e.rank for e in culprits) or (diagnosed.ranks if diagnosed is not None else ())
    nodes = {lost.node for lost in facts.lost} or {facts.nodes[rank] for rank in ranks if rank in facts.nodes}
    at = fault_time(culprits[0]) if culprits else facts.hang.at if facts.hang is not None else facts.at
    only_consequences = not causes and not facts.lost and not (diagnosed is not None and diagnosed.ranks)
    alerts = [each for each in facts.alerts if facts.outlived_at is None or each.alert.at >= facts.outlived_at]
    chosen = cause_among(alerts, at, nodes) or (cause_among(alerts, at, ()) if only_consequences else None)
    if chosen is None:
        return None
    then = ""
    if culprits:
        then = f"rank {culprits[0].rank} {describe(culprits[0])}"
    elif facts.lost:
        then = f"the agent of {facts.lost[0].node} is lost"
    elif facts.hang is not None:
        then = "the job stands still"
    mine = tuple(rank for rank in ranks if facts.nodes.get(rank) == chosen.node)
    found = verdict_on(chosen, facts.alerts, at, mine or ranks, then)
    return msgspec.structs.replace(found, evidence=(*found.evidence, *evidences(culprits[:8], facts.nodes)))


def _contact_verdict(facts: FaultFacts, failures: list[Exit]) -> Verdict:
    outside = [e for e in failures if lost_a_service(e)]
    if outside:
        return _exit_verdict(facts, outside[0], outside)
    own = next((e for e in failures if broke_its_own(e) is not None), None)
    if own is not None and fault_time(own) - fault_time(failures[0]) <= _SAME_TIME_S:
        return _own_socket_verdict(facts, own)
    ranks = tuple(e.rank for e in failures)
    at = fault_time(failures[0]) if failures else facts.at
    if failures:
        first = failures[0]
        who = f"rank {first.rank} on {facts.nodes.get(first.rank)}"
        sentence = f"{who} {describe(first)}; no rank failed for a reason of its own"
    else:
        sentence = "the workers ended, for an unknown reason"
    return Verdict(
        code="ES-P07",
        sentence=sentence,
        blame=Blame.UNKNOWN,
        confidence=Confidence.LOW,
        ranks=ranks,
        at=at,
        evidence=evidences(failures, facts.nodes),
    )


def _own_socket_verdict(facts: FaultFacts, own: Exit) -> Verdict:
    """The verdict when no rank failed for another reason, and one was the first to lose a connection that its program
    made itself. Who closed it, and whether another rank was at its end, stays a guess."""
    found = _exit_verdict(facts, own, [own])
    sentence = f"{found.sentence}; the program made that connection itself"
    blame = broke_its_own(own) or Blame.UNKNOWN
    return msgspec.structs.replace(found, sentence=sentence, blame=blame, confidence=Confidence.LOW)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
