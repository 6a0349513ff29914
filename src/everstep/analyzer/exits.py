"""From how processes ended to a verdict: which end was the cause, which ones followed. Pure.

A rank that dies takes its peers with it: their connections break and they raise. So the first *exit* is often not the
first *fault*. Ends that only say "a peer is gone" are consequences, whatever their order, unless there is nothing else.
"""

import re
import signal as signals

import msgspec

from everstep.analyzer.numbers.alerts import SeenAlert, blame_of, cause_among, is_cause, verdict_on
from everstep.analyzer.standing import Hang, Left, is_of_left, left_verdict
from everstep.model.components import KERNEL, NODE_ACTIONS
from everstep.model.facts import Alert, ErrorReport, Exit
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

_CONSEQUENCE = re.compile(
    r"connection (was )?(likely )?(closed|reset|refused|aborted)( by peer)?"
    r"|broken pipe|socket closed|recvvalue failed|got 0 bytes|remote process exited"
    r"|timed out waiting|wait timeout|pair closure|collective operation timeout"
    r"|watchdog caught|heartbeat monitor|failed to (connect|recv|send)",
    re.IGNORECASE,
)
"""What gloo, NCCL and the store say when somebody else is gone (wordings of torch 2.6 to 2.13)."""

_SENT = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGQUIT})
"""No process brings these upon itself: a person, or a tool on their behalf, sends them."""

MAX_EVIDENCE = 64
"""Exits that a verdict shows one by one. A fault ends every rank of the job, and a hundred thousand say the same."""

_CANNOT_RUN = frozenset({"SyntaxError", "IndentationError", "TabError", "ModuleNotFoundError", "ProgramNotFound"})


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
    ranks: tuple[int, ...]  # those that others wait for; empty: nobody knows
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
    anomaly: Verdict | None = None  # the job ran, and this was wrong with it
    alerts: tuple[SeenAlert, ...] = ()  # what nodes noticed about themselves, lately
    nodes: dict[int, str] = {}  # node of each rank


def looks_like_consequence(exit_: Exit) -> bool:
    """This end only says that a peer is gone (or that we stopped it)."""
    if exit_.stopped_by_us:
        return True
    if exit_.error is not None:
        if _is_own_cause(exit_, exit_.error):
            return False
        return _CONSEQUENCE.search(exit_.error.message) is not None or _is_cascade(exit_)
    if exit_.signal is not None and exit_.signal != signals.SIGABRT:
        return False
    return _CONSEQUENCE.search(exit_.last_output) is not None


def _is_own_cause(exit_: Exit, error: ErrorReport) -> bool:
    """What it raised is known for a cause: the connection that was refused is that to a storage, and no peer's."""
    found, first = exit_.finding, error.message.strip().split("\n", 1)[0]
    return found is not None and found.role == "root" and is_cause(found) and bool(first) and first[:80] in found.line


def _is_cascade(exit_: Exit) -> bool:
    return exit_.finding is not None and exit_.finding.role == "cascade"


def _named(exit_: Exit) -> Alert | None:
    """What its own words say about a cause that is more than "the program raised an exception"."""
    found = exit_.finding
    if found is None or exit_.oom is not None or exit_.signal == signals.SIGKILL:
        return None  # whoever is killed from outside has not said why
    is_plain = found.component == "python" and blame_of(found) is Blame.USER  # its exception says as much
    return found if is_cause(found) and not is_plain and not _is_of_machine(found) else None


def _is_of_machine(found: Alert) -> bool:
    """What the kernel or a driver says when a machine is broken."""
    return found.component in KERNEL and (blame_of(found) is Blame.MACHINE or found.action in NODE_ACTIONS)


def _repeated(exit_: Exit) -> str:
    """A line of the kernel or of a driver in its output: evidence of what the program printed. If it is true, the
    node's own senses say so (`_noticed_verdict`)."""
    found = exit_.finding
    if found is None or not is_cause(found) or not _is_of_machine(found):
        return ""
    return f'; it printed "{_shorten(found.line.strip(), 80)}" ({found.code}), which its node did not notice'


def fault_time(exit_: Exit) -> float:
    """When the rank's own trouble began: when it raised, if it said so; when it ended, otherwise."""
    if exit_.error is not None and exit_.error.at is not None:
        return min(exit_.error.at, exit_.at)
    return exit_.at


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
        return left_verdict(facts.left, facts.nodes, _evidences(facts, seen), is_hang=facts.hang is not None)
    if facts.hang is not None:
        return hang_verdict(facts, facts.hang)
    if facts.overdue:
        return _overdue_verdict(facts)
    return _contact_verdict(facts, failures)


_NO_INPUT = (
    "its debugger found no commands to read. For breakpoint() run one rank at a terminal, with stdin not redirected"
)


def describe(exit_: Exit) -> str:
    """How it ended, in a few words."""
    if exit_.error is not None:
        where = f" at {exit_.error.place}" if exit_.error.place else ""
        text = exit_.error.message.strip().splitlines()
        if exit_.error.kind.rpartition(".")[2] == "BdbQuit":
            return f"raised {exit_.error.kind}{where}: {_NO_INPUT}"
        return f"raised {exit_.error.kind}{where}" + (f": {_shorten(text[0])}" if text else "")
    if exit_.signal is not None:
        return f"was killed by {signal_name(exit_.signal)}"
    if exit_.code is not None:
        return f"ended with exit code {exit_.code}" + (f" at {exit_.place}" if exit_.place else "")
    return "ended, it is not known how"


def signal_name(number: int) -> str:
    try:
        return signals.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exit_verdict(facts: FaultFacts, cause: Exit, causes: list[Exit]) -> Verdict:
    code, blame, confidence, note = _classify(cause, causes, len(facts.nodes))
    node = facts.nodes.get(cause.rank)
    place = cause.error.place if cause.error is not None else cause.place
    same = [e.rank for e in causes if _same_fault(cause, e)]
    who = f"rank {cause.rank}" if len(same) == 1 else f"{len(same)} ranks (first: rank {cause.rank})"
    sentence = f"{who} on {node} {describe(cause)}{note}{_repeated(cause)}"
    return Verdict(
        code=code,
        sentence=sentence,
        blame=blame,
        confidence=confidence,
        ranks=tuple(same),
        node=node,
        at=fault_time(cause),
        place=place,
        action=_action(cause),
        evidence=_evidences(facts, _strongest_first(facts, cause)),
    )


def _action(cause: Exit) -> str:
    """What its words suggest. They never take a machine out of the fleet: a program can print anything."""
    named = _named(cause)
    return "" if named is None or named.action in NODE_ACTIONS else named.action


def _classify(cause: Exit, causes: list[Exit], num_ranks: int) -> tuple[str, Blame, Confidence, str]:
    """Code, blame, confidence, and what to add to the sentence."""
    named = _named(cause)
    if named is not None:
        # A program's words are a hint where somebody else would have to act on them.
        is_own = named.role == "root" and blame_of(named) is Blame.USER
        confidence = Confidence.HIGH if is_own else Confidence.MEDIUM
        return named.code, blame_of(named), confidence, f" ({named.sentence})"
    if cause.error is not None:
        everywhere = len({e.rank for e in causes if _same_fault(cause, e)}) >= max(2, num_ranks)
        code = "ES-U02" if cause.error.kind in _CANNOT_RUN else "ES-U01"
        sure = everywhere or code == "ES-U02"
        return code, Blame.USER, Confidence.HIGH if sure else Confidence.MEDIUM, ""
    if cause.oom is not None:
        return "ES-P03", Blame.USER, Confidence.HIGH, f" for lack of memory ({cause.oom.source})"
    if cause.signal == signals.SIGKILL:
        return "ES-P09", Blame.OPERATOR, Confidence.MEDIUM, "; no sign of lack of memory"
    if cause.signal in _SENT:
        return "ES-P02", Blame.OPERATOR, Confidence.MEDIUM, ", which comes from outside"
    if cause.signal is not None:
        return "ES-P02", Blame.UNKNOWN, Confidence.HIGH, ""
    if cause.place:
        return "ES-P01", Blame.USER, Confidence.MEDIUM, ": the program ended itself"
    return "ES-P01", Blame.UNKNOWN, Confidence.MEDIUM, " and left no report"


def _same_fault(one: Exit, other: Exit) -> bool:
    if one.rank == other.rank:
        return True
    if one.error is not None and other.error is not None:
        return (one.error.kind, one.error.place) == (other.error.kind, other.error.place)
    return False


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
        ranks=first.ranks,
        node=first.node,
        at=first.at,
        evidence=(*evidence, *_evidences(facts, [e for e in facts.exits if not e.succeeded])),
    )


def _lost_text(facts: FaultFacts, first: LostNode) -> str:
    """Machines of one rack that go together are one fault, of what they share."""
    racks = {lost.rack for lost in facts.lost}
    if len(facts.lost) < 2 or len(racks) > 1 or not first.rack:
        return f"the agent of {first.node} is lost ({first.reason}), and ranks {_ranks(first.ranks)} with it"
    nodes = ", ".join(dict.fromkeys(lost.node for lost in facts.lost))
    ranks = tuple(sorted(rank for lost in facts.lost for rank in lost.ranks))
    return (
        f"{len(facts.lost)} agents of rack {first.rack} are lost ({nodes}; the first: {first.reason}), and ranks "
        f"{_ranks(ranks)} with them"
    )


def _unrestored_verdict(facts: FaultFacts) -> Verdict:
    """The rank raises because of it, so its exit is a consequence."""
    first = min(facts.unrestored, key=lambda failed: failed.at)
    is_disk = first.source == "disk"
    evidence = [
        Evidence(at=f.at, source="snapshot", says=f"step {f.step} from {f.what}: {f.why}", rank=f.rank, node=f.node)
        for f in facts.unrestored[:8]
    ]
    return Verdict(
        code="ES-P08",
        sentence=f"rank {first.rank} on {first.node} could not restore step {first.step} from {first.what}: "
        f"{first.why.removesuffix('.')}",
        blame=Blame.STORAGE if is_disk else Blame.UNKNOWN,
        confidence=Confidence.HIGH,
        ranks=tuple(dict.fromkeys(failed.rank for failed in facts.unrestored)),
        node=None if is_disk else first.node,
        at=first.at,
        evidence=(*evidence, *_evidences(facts, [e for e in facts.exits if not e.succeeded])),
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


def anomaly_verdict(facts: FaultFacts, found: Verdict) -> Verdict:
    """What a watch found in a running job, with the node added where all suspects are on one."""
    nodes = {facts.nodes.get(rank) for rank in found.ranks}
    node = found.node or (nodes.pop() if len(nodes) == 1 else None)
    return msgspec.structs.replace(found, sentence=found.sentence.removesuffix("."), node=node)


def _noticed_verdict(facts: FaultFacts, failures: list[Exit], causes: list[Exit]) -> Verdict | None:
    """A node noticed something that explains the fault. A rank's own exception, unless it speaks of a device or of the
    network, is believed first."""
    if causes and (causes[0].oom is not None or _is_own_exception(causes[0])):
        return None
    culprits = causes or failures
    diagnosed = facts.hang.verdict if facts.hang is not None and not culprits else None
    if diagnosed is not None and diagnosed.blame is Blame.USER:
        return None
    ranks = tuple(e.rank for e in culprits) or (diagnosed.ranks if diagnosed is not None else ())
    nodes = {lost.node for lost in facts.lost} or {facts.nodes[rank] for rank in ranks if rank in facts.nodes}
    at = fault_time(culprits[0]) if culprits else facts.hang.at if facts.hang is not None else facts.at
    only_consequences = not causes and not facts.lost and not (diagnosed is not None and diagnosed.ranks)
    chosen = cause_among(facts.alerts, at, nodes) or (cause_among(facts.alerts, at, ()) if only_consequences else None)
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
    return msgspec.structs.replace(found, evidence=(*found.evidence, *(_evidence(facts, e) for e in culprits[:8])))


def _is_own_exception(exit_: Exit) -> bool:
    """A Python exception about which nothing more is known than that the program raised it."""
    return exit_.error is not None and _named(exit_) is None


def _contact_verdict(facts: FaultFacts, failures: list[Exit]) -> Verdict:
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
        evidence=_evidences(facts, failures),
    )


def _strongest_first(facts: FaultFacts, cause: Exit) -> list[Exit]:
    rest = [e for e in facts.exits if e.rank != cause.rank and not e.succeeded]
    return [cause, *sorted(rest, key=lambda e: (looks_like_consequence(e), fault_time(e)))]


def _evidences(facts: FaultFacts, exits: list[Exit]) -> tuple[Evidence, ...]:
    """Of the first ones, and how many more there are."""
    shown = [_evidence(facts, exit_) for exit_ in exits[:MAX_EVIDENCE]]
    more = len(exits) - len(shown)
    if more > 0:
        says = f"{more} more ranks ended; all of them are in the records of this incident"
        shown.append(Evidence(at=fault_time(exits[-1]), source="exit status", says=says))
    return tuple(shown)


def _evidence(facts: FaultFacts, exit_: Exit) -> Evidence:
    says = f"rank {exit_.rank} {describe(exit_)}"
    if exit_.stopped_by_us:
        says += " (ended by everstep)"
    elif looks_like_consequence(exit_):
        says += " (a consequence: a peer was gone)"
    detail = exit_.error.traceback if exit_.error is not None else exit_.last_output
    if exit_.oom is not None:
        detail = exit_.oom.line or exit_.oom.source
    source = "error report" if exit_.error is not None else "exit status"
    node = facts.nodes.get(exit_.rank)
    return Evidence(at=fault_time(exit_), source=source, says=says, rank=exit_.rank, node=node, detail=detail)


def _ranks(ranks: tuple[int, ...]) -> str:
    return ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")


def _shorten(text: str, limit: int = 160) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
