"""Whether a replica that differs holds the same wrong numbers as before the job went back.

A line of the program that one rank alone runs writes the same again whenever its steps are done again, on any machine.
A broken device most often computes something else each time. So the same again accuses nobody: an examination decides.
What is remembered is of earlier generations; a restart of the controller forgets it.
"""

from collections.abc import Mapping

import msgspec

from everstep.analyzer.numbers.digests import Apart, apart, come_again
from everstep.analyzer.observations.finding import Finding
from everstep.model.facts import RankDigest
from everstep.model.verdict import Blame, Confidence, Evidence

MAX_RANKS = 8
"""Ranks whose differences are remembered. So many that differ at once are no single machine."""

MAX_STEPS = 4
"""Steps of each: the same are digested again, unless a frame was lost."""


class Repeats:
    def __init__(self) -> None:
        self._before: dict[int, tuple[Apart, ...]] = {}  # rank -> of the last generation in which it differed
        self._now: dict[int, tuple[Apart, ...]] = {}

    def begin(self) -> None:
        """Another generation."""
        self._before = dict([*self._before.items(), *self._now.items()][-MAX_RANKS:])
        self._now.clear()

    def is_early(self, finding: Finding, step: int) -> bool:
        """Whether all that is remembered of these ranks is of later steps, which are soon done again: only then it can
        be compared bit by bit. (The first step of a generation is digested, whatever its number.)"""
        before = [each.step for rank in finding.ranks for each in self._before.get(rank, ())]
        return bool(before) and step < min(before)

    def doubt(self, finding: Finding, held: Mapping[int, RankDigest], at: float) -> Finding:
        """The finding that ranks differ from the others; blaming nobody where that came again in the same way."""
        usual = next((digest for rank, digest in held.items() if rank not in finding.ranks), None)
        if finding.code != "ES-N04" or usual is None:
            return finding
        mine = {rank: apart(held[rank], usual) for rank in finding.ranks[:MAX_RANKS] if rank in held}
        for rank, each in mine.items():
            if rank in self._now or len(self._now) < MAX_RANKS:
                self._now[rank] = (*self._now.get(rank, ()), each)[-MAX_STEPS:]
        if not mine or not all(come_again(self._before.get(rank, ()), each) for rank, each in mine.items()):
            return finding
        says = "the same parameters were wrong before the job went back, in the same way as far as can be compared"
        return msgspec.structs.replace(
            finding,
            sentence=f"{finding.sentence.removesuffix('.')}; and so it was before the job went back: a device that "
            "always fails alike, or a line of the program that not every rank runs.",
            confidence=Confidence.MEDIUM,
            blame=Blame.UNKNOWN,
            evidence=(*finding.evidence, Evidence(at=at, source="digest", says=says, rank=finding.ranks[0])),
        )
