"""Finds the fewest faults that explain the losses, by likelihood.

A hypothesis is a set of links that lose packets at one rate: one direction of a cable, a cable, a switch, a host. The
search adds the hypothesis that makes the losses most likely, then the next one, until no further one explains much
more. A clean path counts against everything on it, in proportion to its packets, so no extra rule has to exonerate a
link. Hypotheses of about equal likelihood cannot be distinguished: the verdict names all of them.

A link that is full of its own traffic loses packets in its queue, in bursts that hit some paths and not others. While a
link is full, its queue may lose up to `QUEUE_LOSS` of a path's packets; the likelihood uses the share that fits best.
So such a path is evidence for a fault only beyond that share, and against a fault that should have lost more. A link
with too little other evidence is not judged (`limits.py`).

While a cable is full, probes cannot show what the cable itself loses; the counters of its two ports can (`wire.py`).
These losses are known before the probes are judged, and explain their part of the lost probes.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

import msgspec

from everstep.fabric.locate.counted import Lossy, believed, lossy_wires
from everstep.fabric.locate.likelihood import Row, gain_of, likeliest_rate
from everstep.fabric.locate.limits import MIN_BAD, MIN_GAIN, Unjudged, judged
from everstep.fabric.locate.loads import (
    FullLink,
    Known,
    Load,
    counted_meanwhile,
    full_on,
    own_lateness,
    share_of_traffic,
)
from everstep.fabric.locate.observations import Link, Seen, background, lateness, merged, usable

NOISE = 1e-4
"""Share of packets that a healthy network loses. Losses that this rate explains do not count."""
LATE_NOISE = 2e-3
"""Share of packets that come late in a healthy network, because processes wait for a CPU. If three times the share of
the median path is more, that is used."""
LEAST_LATE = 0.05
"""A link that makes a smaller share of packets late is not slow: a process that waits 0.25 s for a CPU in a window of
ten seconds makes 2.5 % of its packets late."""
MOST_LATE = 0.25
"""If the median path has a larger share of late packets, the slow link cannot be found."""
_BUNCH = 5
"""Packets of a flow that a host sends at one wake-up: one queue makes all of them late."""
QUEUE_LOSS = 0.25
"""Share of packets that a full queue may lose for some seconds: 15 % where TCP filled links, 8 % over ten seconds."""
_ALIKE = 3.0
"""Hypotheses with log likelihoods that differ by less (a factor of 20) cannot be distinguished."""
_MOST_FAULTS = 8
_ROUNDS = 4
_KINDS = {"link": 0, "cable": 1, "switch": 2, "host": 2}


class Suspect(msgspec.Struct, frozen=True, kw_only=True):
    kind: str  # "link", "cable", "switch", "host"
    name: str  # "leaf0 > spine1", "leaf0 - spine1", "spine1"


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    suspects: tuple[Suspect, ...]  # more than one: they cannot be distinguished
    rate: float  # share of packets that it loses or delays
    confidence: float  # probability that it is one of these, among all hypotheses
    bad: int  # packets on its paths that were lost, or late
    counted: int = 0  # from ports, not probes: packets that one port sent; `bad` of them did not reach the other
    may_be_full: bool = False  # its packets are late and its load is unknown: a full link would look the same


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    faults: tuple[Fault, ...]  # parts that lose packets
    slow: tuple[Fault, ...]  # parts that make packets late
    full: tuple[FullLink, ...]  # losses on these links are no fault
    is_all_late: bool  # too many paths have late packets to find the slow link
    unexplained: int  # lost packets beyond these faults and noise
    impossible: dict[str, int]  # host -> number of its impossible reports
    unjudged: tuple[Unjudged, ...]  # links on which a loss would not have been seen: neither healthy nor broken
    smallest_rate: float  # loss that is seen on every other link, in 19 of 20 such windows


def blame(
    seen: Iterable[Seen],
    hosts: frozenset[str],
    loads: Mapping[Link, Load] | None = None,
    links: Collection[Link] = (),
    *,
    noise: float = NOISE,
) -> Verdict:
    """Judge these observations. `loads`: the known loads of links over time. `links`: all links, probed or not."""
    given, impossible = usable(seen)
    loads = believed(loads or {}, given)
    given = counted_meanwhile(given, loads)
    wires = lossy_wires(loads)
    groups = _groups(given, loads)
    rows = [(row, full) for full, group in groups.items() for row in merged([group])]
    paths = [row for row, _ in rows]
    losing = {way: loads[way].lost_on_wire for wire in wires for way in wire.ways}
    model = _Model(paths, hosts, noise, [full for _, full in rows], losing)
    chosen = model.explain()
    faults = [_doubted(fault, given, loads) for fault in model.faults(chosen) if not _is_counted(fault, wires)]
    full = model.full_links(loads, chosen)
    late = lateness(row for row, full in rows if not full)
    usual = background(late)
    told = late if usual <= MOST_LATE else []
    calm, busy = groups.get(frozenset(), []), Known()
    own = own_lateness(calm, loads, busy) if told else {}
    slow = _Model(told, hosts, max(LATE_NOISE, 3 * usual), own=[own[row.nodes] for row in told], bunch=_BUNCH)
    delayed = [
        fault
        for fault in slow.faults(slow.explain())
        if fault.rate >= LEAST_LATE and not _is_own_traffic(fault, calm, loads, busy)
    ]
    unjudged, smallest_rate = judged(rows, loads, links, noise)
    return Verdict(
        faults=_both_ways([*map(_counted, wires), *faults]),
        slow=tuple(_doubted(fault, given, loads) for fault in delayed),
        full=full,
        is_all_late=usual > MOST_LATE,
        unexplained=model.unexplained(chosen),
        impossible=impossible,
        unjudged=unjudged,
        smallest_rate=smallest_rate,
    )


def _counted(wire: Lossy) -> Fault:
    one = wire.ways[0]
    link = Suspect(kind="link", name=" > ".join(one))
    suspect = link if len(wire.ways) == 1 else Suspect(kind="cable", name=cable_of(one))
    return Fault(suspects=(suspect,), rate=wire.rate, confidence=wire.confidence, bad=wire.lost, counted=wire.sent)


def _both_ways(faults: Sequence[Fault]) -> tuple[Fault, ...]:
    """Joins faults on the two directions of a cable, also if ports named one direction and probes the other."""
    found = list[Fault]()
    for fault in faults:
        link = _only_link(fault)
        twin = next((each for each in found if link is not None and _only_link(each) == link[::-1]), None)
        if link is None or twin is None:
            found.append(fault)
            continue
        cable = Suspect(kind="cable", name=cable_of(link))
        found[found.index(twin)] = msgspec.structs.replace(
            twin,
            suspects=(cable,),
            rate=max(twin.rate, fault.rate),
            confidence=min(twin.confidence, fault.confidence),
            may_be_full=twin.may_be_full and fault.may_be_full,
        )
    return tuple(found)


def _only_link(fault: Fault) -> Link | None:
    """The link, if the only suspect is one direction of a cable; else None."""
    if len(fault.suspects) != 1 or fault.suspects[0].kind != "link":
        return None
    one, _, other = fault.suspects[0].name.partition(" > ")
    return one, other


def _is_counted(fault: Fault, wires: Sequence[Lossy]) -> bool:
    """Whether port counters have already named this cable."""
    names = {name for wire in wires for way in wire.ways for name in (" > ".join(way), cable_of(way))}
    return any(suspect.name in names for suspect in fault.suspects)


def _groups(seen: Sequence[Seen], loads: Mapping[Link, Load]) -> dict[frozenset[Link], list[Seen]]:
    """Groups of windows in which the same links were full. Losses while no link was full are normal evidence, also
    against a link that is full at other times."""
    groups: dict[frozenset[Link], list[Seen]] = {}
    known: dict[tuple[Link, float | None, float], bool] = {}  # a cache: windows of one host end together
    for each in seen:
        groups.setdefault(full_on(each, loads, known), []).append(each)
    return groups


def _links_of(fault: Fault, paths: Sequence[Seen]) -> set[Link]:
    names = {suspect.name for suspect in fault.suspects}
    on = {link: {f"{link[0]} > {link[1]}", cable_of(link), *link} for path in paths for link in path.links}
    return {link for link, known_as in on.items() if known_as & names}


def _is_own_traffic(slow: Fault, calm: Sequence[Seen], loads: Mapping[Link, Load], busy: Known) -> bool:
    """Whether the traffic of one of these links can make so many packets late. A link has a queue only while it sends,
    so the chance that a packet meets a queue is at most the link's load."""
    links = [link for link in _links_of(slow, calm) if link in loads]
    return any(slow.rate <= share_of_traffic(link, calm, loads, busy) for link in links)


def _doubted(fault: Fault, paths: Sequence[Seen], loads: Mapping[Link, Load]) -> Fault:
    """The fault with `may_be_full` set: whether a full link would look the same, as far as is known."""
    links = _links_of(fault, paths)
    over = [path for path in paths if not links.isdisjoint(path.links)]
    late, lost = sum(path.late for path in over), sum(path.bad for path in over)
    least_late = LEAST_LATE * sum(path.sent for path in over)
    is_late = late > 0 and late >= min(lost, least_late)  # a queue is long before it is full
    is_unknown = any(
        link not in loads or loads[link].is_full_beside(path) is None
        for path in over
        if path.bad or path.late
        for link in links.intersection(path.links)
    )
    return msgspec.structs.replace(fault, may_be_full=is_late and is_unknown)


class _Chosen(msgspec.Struct, frozen=True):
    number: int  # number of the hypothesis
    rate: float


class _Model:
    """Paths, and hypotheses as sets of path numbers."""

    def __init__(
        self,
        paths: Sequence[Seen],
        hosts: frozenset[str],
        noise: float,
        full: Sequence[frozenset[Link]] = (),
        losing: Mapping[Link, float] | None = None,
        own: Sequence[float] = (),
        bunch: int = 1,
    ) -> None:
        """`full`: for each path, the links that were full meanwhile. `losing`: known loss rates of links. `own`: for
        each path, the share of bad packets that traffic alone may explain. `bunch`: packets that go bad together."""
        self._paths = paths
        self._own = own or [0.0] * len(paths)
        self._least_gain = MIN_GAIN * bunch
        self._on: dict[Link, set[int]] = {}
        for number, path in enumerate(paths):
            for link in path.links:
                self._on.setdefault(link, set()).add(number)
        known = losing or {}
        self._usual = [
            (1.0 - noise) * math.prod(max(1e-6, 1.0 - known.get(link, 0.0)) for link in path.links) for path in paths
        ]
        self._hypotheses = _hypotheses(self._on, hosts)
        self._full: dict[Link, set[int]] = {}
        for number, links in enumerate(full):
            for link in links:
                self._full.setdefault(link, set()).add(number)

    def _fit_lost(self, chosen: Sequence[_Chosen]) -> dict[Link, float]:
        """The likeliest loss rate of each full link, beside these faults."""
        rates = dict.fromkeys(self._full, 0.0)
        for _ in range(_ROUNDS if self._full else 0):
            for link, over in self._full.items():
                rates[link] = 0.0
                comes = self._coming(chosen, rates)
                rates[link], _gain = self._best_rate(over, [(each, each) for each in comes])
        return rates

    def explain(self) -> list[_Chosen]:
        """Adds the best hypothesis, then checks each chosen one again beside the others: with two faults, the first
        choice may have been the switch that has both."""
        chosen: list[_Chosen] = []
        seen: set[frozenset[int]] = set()
        while len(chosen) < _MOST_FAULTS:
            best = self._best(chosen)
            if best is None:
                break
            chosen = self._refined([*chosen, best])
            numbers = frozenset(each.number for each in chosen)
            if numbers in seen:
                break
            seen.add(numbers)
        return chosen

    def _refined(self, chosen: list[_Chosen]) -> list[_Chosen]:
        for _ in range(_ROUNDS):
            before = [each.number for each in chosen]
            for each in list(chosen):
                others = [other for other in chosen if other is not each]
                best = self._best(others)
                chosen = others if best is None else [*others, best]
            if sorted(each.number for each in chosen) == sorted(before):
                break
        return chosen

    def _best(self, others: Sequence[_Chosen]) -> _Chosen | None:
        scored = self._scored(others)
        if not scored:
            return None
        gain, number, rate = max(scored, key=lambda each: (each[0], -_KINDS[self._suspects(each[1])[0].kind]))
        return _Chosen(number, rate) if gain >= self._least_gain else None

    def _scored(self, others: Sequence[_Chosen]) -> list[tuple[float, int, float]]:
        """Gain, number and rate of each hypothesis beside the others."""
        passing = self._passing(others)
        scored = []
        for number, (_, covered) in enumerate(self._hypotheses):
            if sum(self._paths[path].bad for path in covered) >= MIN_BAD:
                rate, gain = self._best_rate(covered, passing)
                scored.append((gain, number, rate))
        return scored

    def _passing(self, chosen: Sequence[_Chosen]) -> list[tuple[float, float]]:
        """For each path, bounds on the probability that a packet arrives: full queues may lose much or nothing."""
        least = self._coming(chosen, dict.fromkeys(self._full, QUEUE_LOSS))
        least = [max(1e-6, coming * (1.0 - own)) for coming, own in zip(least, self._own, strict=True)]
        return list(zip(least, self._coming(chosen, {}), strict=True))

    def _coming(self, chosen: Sequence[_Chosen], queues: Mapping[Link, float]) -> list[float]:
        """For each path, the probability that a packet arrives if these queues lose these shares."""
        coming = list(self._usual)
        for link, rate in queues.items():
            for path in self._full[link]:
                coming[path] *= 1.0 - rate
        for each in chosen:
            for path in self._hypotheses[each.number][1]:
                coming[path] *= 1.0 - each.rate
        return coming

    def faults(self, chosen: Sequence[_Chosen]) -> tuple[Fault, ...]:
        found = [fault for place in range(len(chosen)) if (fault := self._fault(place, chosen)) is not None]
        named = {suspect.name for fault in found for suspect in fault.suspects}
        return tuple(fault for fault in found if not self._is_part(fault, named))

    def _is_part(self, fault: Fault, named: set[str]) -> bool:
        """Whether all suspects are single directions of cables that are named themselves: a cable that loses more in
        one direction than in the other is one fault."""
        links = {f"{one} > {other}": cable_of((one, other)) for one, other in self._on}
        return all(links.get(suspect.name) in named for suspect in fault.suspects)

    def _fault(self, place: int, chosen: Sequence[_Chosen]) -> Fault | None:
        own = chosen[place]
        scored = self._scored([*chosen[:place], *chosen[place + 1 :]])
        best_gain = next((gain for gain, number, _ in scored if number == own.number), 0.0)
        if best_gain < self._least_gain:
            return None
        alike = self._plainest([number for gain, number, _ in scored if gain > best_gain - _ALIKE], own.number)
        total = sum(math.exp(min(0.0, gain - best_gain)) for gain, _, _ in scored)
        inside = sum(math.exp(min(0.0, gain - best_gain)) for gain, number, _ in scored if number in alike)
        return Fault(
            suspects=tuple(suspect for number in alike for suspect in self._suspects(number)),
            rate=own.rate,
            confidence=inside / total,
            bad=sum(self._paths[path].bad for path in self._hypotheses[own.number][1]),
        )

    def _suspects(self, number: int) -> tuple[Suspect, ...]:
        return self._hypotheses[number][0]

    def _plainest(self, alike: list[int], best: int) -> list[int]:
        """Drops a cable, switch or host if one of its links explains as much: the smaller fault is likelier."""
        covered = self._hypotheses[best][1]
        smaller = [number for number in alike if self._hypotheses[number][1] < covered]
        return [number for number in alike if number == best or number in smaller or not self._contains(number, best)]

    def _contains(self, larger: int, smaller: int) -> bool:
        return self._hypotheses[larger][1] > self._hypotheses[smaller][1]

    def _best_rate(self, covered: Set[int], passing: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """The loss rate that makes the observations most likely, and the gain in log likelihood over no fault."""
        rows = [Row(self._paths[path].sent, self._paths[path].bad, *passing[path]) for path in covered]
        rate = likeliest_rate(rows)
        return rate, gain_of(rows, rate)

    def full_links(self, loads: Mapping[Link, Load], chosen: Sequence[_Chosen]) -> tuple[FullLink, ...]:
        rates = self._fit_lost(chosen)
        return tuple(
            FullLink(
                link=" > ".join(link),
                bps=load.bps,
                capacity_bps=load.capacity_bps,
                rate=rates[link],
                cable_rate=None if load.wire is None else max(0.0, load.wire.rate),
                cable_most=None if load.wire is None else load.wire.most,
            )
            for link in sorted(self._full)
            if (load := loads[link]).bps is not None and load.capacity_bps is not None
        )

    def unexplained(self, chosen: Sequence[_Chosen]) -> int:
        coming = self._coming(chosen, self._fit_lost(chosen))
        expected = sum(path.sent * (1.0 - share) for path, share in zip(self._paths, coming, strict=True))
        return max(0, round(sum(path.bad for path in self._paths) - expected))


def cable_of(link: Link) -> str:
    return f"{min(link)} - {max(link)}"


def _hypotheses(on: dict[Link, set[int]], hosts: frozenset[str]) -> list[tuple[tuple[Suspect, ...], frozenset[int]]]:
    """Each set of paths once, with all suspects that cover exactly these paths."""
    found: dict[frozenset[int], list[Suspect]] = {}

    def add(kind: str, name: str, links: Iterable[Link]) -> None:
        covered = frozenset(path for link in links for path in on.get(link, ()))
        if covered:
            found.setdefault(covered, []).append(Suspect(kind=kind, name=name))

    for one, other in on:
        add("link", f"{one} > {other}", [(one, other)])
        if one < other or (other, one) not in on:
            add("cable", cable_of((one, other)), [(one, other), (other, one)])
    for node in dict.fromkeys(node for link in on for node in link):
        kind = "host" if node in hosts else "switch"
        add(kind, node, [link for link in on if node in link])
    return [(tuple(suspects), covered) for covered, suspects in found.items()]
