"""Dual-phase replay: finds the machine that computes wrongly, from two rounds of replays on groups of machines. Pure.

ByteRobust (SOSP 2025, 5.2): the job is replayed with its tensor and pipeline parallelism kept and data parallelism
reduced. First on *horizontal* groups of m neighbouring machines, then on n *vertical* groups of machines n apart; the
bad one is in the failing group of both. m = k * (machines of one pipeline), n = machines / m; for m <= n the answer is
unique.

That is true for one bad machine that fails in every replay. So every result needs a confirmation: a candidate is
replayed once more among machines that never failed, and a result that cannot be confirmed is reported as such.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Literal

import msgspec

Outcome = bool | None
"""Outcome of a group's replay. True: a value differed; False: none did; None: no answer."""

MIN_GROUPS = 3
"""If two groups differ, it is unknown which one is right."""

MAX_CONFIRMATIONS = 4
"""Rounds of confirmation; each takes as many candidates as there are partners for. With more, the machine stays
unknown: it would take longer than a manual check."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """`size` machines in each of `num_groups` groups (the paper's m and n), of `factor` pipelines each (its k)."""

    num_machines: int
    size: int
    num_groups: int
    factor: int

    def horizontal(self) -> tuple[tuple[int, ...], ...]:
        """Groups of neighbours, by index."""
        return tuple(tuple(range(first, first + self.size)) for first in range(0, self.num_machines, self.size))

    def vertical(self) -> tuple[tuple[int, ...], ...]:
        """Groups of machines that are `num_groups` apart."""
        return tuple(tuple(range(first, self.num_machines, self.num_groups)) for first in range(self.num_groups))


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the two rounds. `several`: more than one machine, or one that failed only sometimes; no machine is
    named before each candidate is confirmed."""

    kind: Literal["none", "one", "several"]
    candidates: tuple[int, ...] = ()
    clean: tuple[int, ...] = ()  # machines that computed correctly in both rounds
    why: str


def layout(num_machines: int, pipeline: int = 1) -> Layout | str:
    """How to group the machines, or a sentence why that is impossible. `pipeline`: machines per pipeline. Takes the
    largest groups with a unique answer: they resemble the job most."""
    if num_machines < 1 or pipeline < 1:
        raise ValueError(f"no layout: {num_machines} machines, pipelines of {pipeline}")
    if num_machines % pipeline:
        return f"{num_machines} machines are not whole pipelines of {pipeline}"
    for factor in range(num_machines // pipeline, 0, -1):
        size = factor * pipeline
        if num_machines % size == 0 and max(size, MIN_GROUPS) <= num_machines // size:
            return Layout(num_machines=num_machines, size=size, num_groups=num_machines // size, factor=factor)
    return (
        f"{num_machines} machines in pipelines of {pipeline} make no groups of m machines, n of them, with m <= n and "
        f"n >= {MIN_GROUPS}: the answer would not be one machine"
    )


def solve(groups: Layout, horizontal: Sequence[Outcome], vertical: Sequence[Outcome]) -> Found:
    """Find the bad machine from the outcomes of both rounds, in the order of the groups. Raises ValueError if their
    number is wrong."""
    rows, columns = groups.horizontal(), groups.vertical()
    if len(horizontal) != len(rows) or len(vertical) != len(columns):
        raise ValueError(f"{len(horizontal)} and {len(vertical)} outcomes of {len(rows)} and {len(columns)} groups")
    in_rows, in_columns = _members(rows, horizontal, True), _members(columns, vertical, True)
    clean = tuple(sorted(_members(rows, horizontal, False) & _members(columns, vertical, False)))
    num_rows, num_columns = sum(o is True for o in horizontal), sum(o is True for o in vertical)
    if not in_rows and not in_columns:
        return Found(kind="none", clean=clean, why="no group's replay differed in either round")
    both = tuple(sorted(in_rows & in_columns))
    seen = f"{num_rows} of {len(rows)} horizontal and {num_columns} of {len(columns)} vertical groups differed"
    if num_rows == num_columns == 1 and len(both) == 1:
        return Found(kind="one", candidates=both, clean=clean, why=f"{seen}: one machine is in both")
    if in_rows and in_columns and both:
        why = f"{seen}: {len(both)} machines are in both kinds, so more than one computes wrongly"
        return Found(kind="several", candidates=both, clean=clean, why=why)
    if in_rows and in_columns:
        why = f"{seen}, and no machine is in both: several compute wrongly, and only now and then"
    else:
        why = f"{seen}: what differs does so only now and then"
    return Found(kind="several", candidates=tuple(sorted(in_rows | in_columns)), clean=clean, why=why)


def confirmations(
    groups: Layout, candidates: Sequence[int], clean: Collection[int]
) -> tuple[tuple[tuple[int, ...], ...], ...] | str:
    """Rounds in which each candidate is replayed once, at its own place, among machines that never failed; the groups
    of a round share no machine. Or a sentence why that is impossible."""
    partners = [machine for machine in sorted(clean) if machine not in candidates]
    needed = groups.size - 1
    if needed > len(partners):
        return f"{needed} machines that never failed are needed beside a candidate, and there are {len(partners)}"
    at_once = len(partners) // needed if needed else len(candidates)
    if math.ceil(len(candidates) / at_once) > MAX_CONFIRMATIONS:
        return f"{len(candidates)} candidates, {at_once} at a time, are more than {MAX_CONFIRMATIONS} rounds"
    rounds = []
    for first in range(0, len(candidates), at_once):
        batch = candidates[first : first + at_once]
        rounds.append(
            tuple(_with_partners(groups, c, partners[i * needed : (i + 1) * needed]) for i, c in enumerate(batch))
        )
    return tuple(rounds)


def odd_digests(digests: Sequence[str]) -> tuple[Outcome, ...]:
    """For each of several computations that should be equal, whether it differs from the majority of its kind; "" is no
    answer. Without a strict majority of the answers, and at least two equal ones, the result is None for all."""
    of_kind: dict[str, Counter[str]] = {}
    for digest in digests:
        if digest:
            of_kind.setdefault(kind_of(digest), Counter())[digest] += 1
    usual = {kind: _usual(counted) for kind, counted in of_kind.items()}
    return tuple(digest != most if digest and (most := usual[kind_of(digest)]) else None for digest in digests)


def kind_of(digest: str) -> str:
    """The computation and the hardware, which precede the colon of a digest. CPUs of two kinds, or libraries of two
    versions, round differently, and both are right: only digests of one kind are compared."""
    return digest.rpartition(":")[0]


def _usual(counted: Counter[str]) -> str:
    """The digest of a strict majority, at least two; empty if there is none."""
    most, count = counted.most_common(1)[0]
    return most if count >= 2 and 2 * count > counted.total() else ""


def rounds_for(detection: float, confidence: float, num_phases: int = 3) -> int:
    """Replays per phase after which a machine that fails in a replay with probability `detection` has failed in all
    phases (horizontal, vertical, confirmation) with probability `confidence`. Raises ValueError."""
    if not 0 < detection <= 1 or not 0 < confidence < 1 or num_phases < 1:
        raise ValueError(f"number of rounds: detection {detection}, confidence {confidence}, {num_phases} phases")
    if detection == 1:
        return 1
    missed = 1 - confidence ** (1 / num_phases)
    return max(1, math.ceil(math.log(missed) / math.log1p(-detection) - 1e-9))


def missed(detection: float, num_rounds: int) -> float:
    """Probability that a bad machine fails in none of these replays."""
    return (1 - detection) ** num_rounds


def none_text(detection: float, num_rounds: int) -> str:
    """The sentence if no replay differed: a bound, and never a claim that all machines are sound."""
    return (
        f"nothing differed in {num_rounds} replays: a machine that computes wrongly in {detection:.0%} of them or more "
        f"passes all with a probability of at most {missed(detection, num_rounds):.1%}"
    )


def _members(groups: Sequence[tuple[int, ...]], outcomes: Sequence[Outcome], wanted: bool) -> set[int]:
    return {x for group, outcome in zip(groups, outcomes, strict=True) if outcome is wanted for x in group}


def _with_partners(groups: Layout, candidate: int, partners: Sequence[int]) -> tuple[int, ...]:
    """The group of a candidate, at its place in its horizontal group: a fault may show in one pipeline stage only."""
    place = candidate % groups.size
    return (*partners[:place], candidate, *partners[place:])
