"""Joins a verdict on a hang with what the nodes see of the links between them: is it the network, or a rank?

A pair of nodes is cut only when both of them report it: a node that lies, or that is only busy, reports its own links
and is not enough. What is unknown changes nothing. A link is to blame only where every rank waits in communication; a
rank that never called stays the culprit, whatever the network does meanwhile. Nothing of this makes a hang certain: a
network heals, and TCP continues then.

Pure. Called by the controller with the newest reports of the nodes.
"""

import enum
import math
from collections.abc import Iterable, Mapping

import msgspec

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.observations.clusters import Activity
from everstep.analyzer.observations.words import names_text, ranks_text, seconds, verb
from everstep.model.facts import LinkSeen, LinkState, PortSeen
from everstep.model.verdict import Blame, Certainty, Confidence, Evidence, Verdict

STALLED, CUT = "ES-H11", "ES-H19"

_OF_A_RANK = ("ES-H01", "ES-H06", "ES-H07", "ES-H08", "ES-H09", "ES-H03", "ES-H04")
"""Proven of a rank, or of the program."""

_TOGETHER = (Activity.COLLECTIVE, Activity.BACKWARD)
_MOST_TOLD = 8
_MOST_WATCHED = 64
"""How many links of one node are evaluated: no node has to watch more than a few."""


class Between(enum.StrEnum):
    """The network between two nodes, as both of them see it."""

    UNKNOWN = "unknown"
    GOOD = "good"
    LOSSY = "lossy"
    PARTIAL = "partial"
    ONE_WAY = "one way"
    CUT = "cut"


class Pair(msgspec.Struct, frozen=True, kw_only=True):
    one: str
    other: str
    state: Between
    for_s: float  # since when at the latest
    why: str  # in words, for the list of evidence


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """State of the links, as far as it is known when a hang is judged."""

    links: Mapping[str, tuple[tuple[LinkSeen, float], ...]]  # by node, each with how long ago that was said
    node_of: Mapping[int, str]  # by rank
    ports: Mapping[str, tuple[tuple[PortSeen, float], ...]] = {}  # by node, in the same way


def is_candidate(diagnosis: Diagnosis) -> bool:
    """Whether the network could be what keeps these ranks."""
    verdict = diagnosis.verdict
    if verdict.code == STALLED:
        return True
    if not verdict.code.startswith("ES-H") or verdict.code in (*_OF_A_RANK, "ES-H00"):
        return False
    clusters = (*diagnosis.clusters.healthy, *diagnosis.clusters.outliers)
    return bool(clusters) and all(cluster.activity in _TOGETHER for cluster in clusters)


def joined(diagnosis: Diagnosis, sight: Sight) -> Verdict:
    """The verdict, with what the links say."""
    verdict = diagnosis.verdict
    pairs = pairs_of(sight, _nodes(verdict, sight))
    known = [pair for pair in pairs if pair.state is not Between.UNKNOWN]
    if not known or not verdict.code.startswith("ES-H") or verdict.code == "ES-H00":
        return verdict
    evidence = (*(_evidence(verdict.at, pair) for pair in _worst_first(known)[:_MOST_TOLD]), *verdict.evidence)
    verdict = msgspec.structs.replace(verdict, evidence=evidence)
    broken = [pair for pair in known if pair.state in (Between.CUT, Between.ONE_WAY)]
    if broken and is_candidate(diagnosis):
        return _counted(_of_network(verdict, broken, known, sight), broken, sight)
    partial = next((pair for pair in known if pair.state is Between.PARTIAL), None)
    if all(pair.state is Between.GOOD for pair in known):
        more = _good(known, pairs)
    elif partial is not None and verdict.code == STALLED:
        more = f"Between {partial.one} and {partial.other} {partial.why}."
    else:
        return verdict
    return msgspec.structs.replace(verdict, sentence=f"{verdict.sentence} {more}")


def pairs_of(sight: Sight, nodes: Iterable[str]) -> list[Pair]:
    """Return every pair of these nodes of which at least one watches the link between them."""
    among = set(nodes)
    seen = {
        (node, each.to): msgspec.structs.replace(each, for_s=_age(each.for_s) + _age(ago_s))
        for node, listed in sight.links.items()
        if node in among
        for each, ago_s in listed[:_MOST_WATCHED]
        if each.to in among and each.to != node
    }
    pairs = {pair if _in_order(pair[0]) < _in_order(pair[1]) else pair[::-1] for pair in seen}
    return [
        _between(one, other, seen.get((one, other)), seen.get((other, one)))
        for one, other in sorted(pairs, key=lambda pair: (_in_order(pair[0]), _in_order(pair[1])))
    ]


def _age(seconds: float) -> float:
    """The age as reported, or 0: a node's garbage must not make a verdict unreadable."""
    return seconds if 0.0 <= seconds < math.inf else 0.0


def _nodes(verdict: Verdict, sight: Sight) -> set[str]:
    ranks = verdict.group_ranks or tuple(sight.node_of)
    return {node for rank in (*ranks, *verdict.ranks) if (node := sight.node_of.get(rank)) is not None}


def _between(one: str, other: str, there: LinkSeen | None, back: LinkSeen | None) -> Pair:
    states = {seen.state for seen in (there, back) if seen is not None} - {LinkState.UNKNOWN}
    if there is None or back is None or not states:
        state = Between.UNKNOWN
    elif there.state is LinkState.DEAD and back.state is LinkState.DEAD:
        state = Between.ONE_WAY if there.hears != back.hears else Between.CUT
    elif LinkState.PARTIAL in states and LinkState.DEAD not in states:
        state = Between.PARTIAL
    elif LinkState.LOSSY in states:
        state = Between.LOSSY
    else:
        state = Between.GOOD if states == {LinkState.GOOD} else Between.UNKNOWN
    if state is Between.ONE_WAY and back is not None and back.hears:  # what it hears is the way that works
        one, other = other, one
    both = [seen for seen in (there, back) if seen is not None]
    return Pair(
        one=one,
        other=other,
        state=state,
        for_s=min((seen.for_s for seen in both), default=0.0),
        why=_why(state, both),
    )


def _why(state: Between, both: list[LinkSeen]) -> str:
    dead = max((f"{seen.dead_ports} of {seen.ports} source ports" for seen in both), default="")
    return {
        Between.GOOD: "probes come through both ways",
        Between.LOSSY: "probes are lost now and then",
        Between.PARTIAL: f"probes of {dead} are lost, those of others come through",
        Between.ONE_WAY: "every probe is lost one way; the other way they come",
        Between.CUT: "every probe is lost",
    }.get(state, "not known")


def _evidence(at: float, pair: Pair) -> Evidence:
    arrow = "to" if pair.state is Between.ONE_WAY else "and"
    lasts = "" if pair.state is Between.GOOD else f", for {seconds(pair.for_s)}"
    return Evidence(at=at, source="link", says=f"{pair.one} {arrow} {pair.other}: {pair.why}{lasts}")


def _worst_first(pairs: list[Pair]) -> list[Pair]:
    order = list(Between)
    return sorted(pairs, key=lambda pair: (-order.index(pair.state), pair.one, pair.other))


def _of_network(verdict: Verdict, broken: list[Pair], known: list[Pair], sight: Sight) -> Verdict:
    where = _where(broken, known)
    does = _does(broken)
    nodes = {node for pair in broken for node in (pair.one, pair.other)}
    alone = _alone(broken, known)
    ranks = [rank for rank, node in sight.node_of.items() if node in (alone or nodes)]
    is_one_way = all(pair.state is Between.ONE_WAY for pair in broken)
    lost = "not all that is sent arrives" if is_one_way else f"{verb(ranks, 'is', 'are')} not heard beyond it"
    who = f"{ranks_text(ranks)} {verb(ranks, 'has', 'have')} called, and {lost}"
    for_s = max(pair.for_s for pair in broken)
    rest = verdict.sentence if verdict.code == STALLED else "every rank waits in communication."
    sentence = f"{where} {does}, for {seconds(for_s)}: {who}; {rest}"
    return msgspec.structs.replace(
        verdict,
        code=CUT,
        sentence=sentence,
        blame=Blame.NETWORK,
        confidence=Confidence.MEDIUM,
        ranks=(),
        certainty=Certainty.DOUBTFUL,
        because=f"{where} {does}: it may heal, and the connections go on then",
        computes=False,
    )


def _counted(verdict: Verdict, broken: list[Pair], sight: Sight) -> Verdict:
    """With what the ports of these nodes counted meanwhile: after the links, before the rest."""
    nodes = sorted({node for pair in broken for node in (pair.one, pair.other)}, key=_in_order)
    told = [
        Evidence(at=verdict.at, source="port", says=f"{node} {_port(port)}, {seconds(_age(ago_s))} ago")
        for node in nodes
        for port, ago_s in sight.ports.get(node, ())[:_MOST_TOLD]
        if port.grown
    ]
    first = sum(each.source == "link" for each in verdict.evidence)
    evidence = (*verdict.evidence[:first], *told[:_MOST_TOLD], *verdict.evidence[first:])
    return msgspec.structs.replace(verdict, evidence=evidence)


def _port(port: PortSeen) -> str:
    most = sorted(port.grown.items(), key=lambda item: (-item[1], item[0]))[:_MOST_TOLD]
    grown = ", ".join(f"{name[:64]} +{value}" for name, value in most)
    return f"{port.nic[:64]}: {grown} in {seconds(_age(port.seconds))}"


def _does(broken: list[Pair]) -> str:
    states = {pair.state for pair in broken}
    return "loses every probe one way" if states == {Between.ONE_WAY} else "loses every probe"


def _where(broken: list[Pair], known: list[Pair]) -> str:
    alone = _alone(broken, known)
    if alone:
        (node,) = alone
        others = sorted({*(p.one for p in broken), *(p.other for p in broken)} - {node}, key=_in_order)
        return f"the network between {node} and the other nodes ({names_text(others)})"
    listed = [f"from {p.one} to {p.other}" if p.state is Between.ONE_WAY else f"{p.one} - {p.other}" for p in broken]
    if len(broken) == 1 and broken[0].state is not Between.ONE_WAY:
        listed = [f"between {broken[0].one} and {broken[0].other}"]
    return f"the network {names_text(listed)}"


def _alone(broken: list[Pair], known: list[Pair]) -> set[str]:
    """The one node all of whose links are broken, while others are not."""
    if len(known) < 2 or len(broken) < 2:
        return set()
    shared = set.intersection(*({pair.one, pair.other} for pair in broken))
    good = {node for pair in known if pair not in broken for node in (pair.one, pair.other)}
    found = shared - good
    return found if len(found) == 1 else set()


def _good(known: list[Pair], pairs: list[Pair]) -> str:
    nodes = sorted({node for pair in known for node in (pair.one, pair.other)}, key=_in_order)
    of = "" if len(known) == len(pairs) else f" on {len(known)} of {len(pairs)} links that are watched"
    return f"Probes come through between {names_text(nodes)}{of}: the network is not seen to be broken."


def _in_order(node: str) -> tuple[int, str]:
    """n2 before n10."""
    return len(node), node
