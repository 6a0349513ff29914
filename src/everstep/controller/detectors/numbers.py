"""Losses and gradient norms of a running job: feeds what ranks said, or logged, to `analyzer.numbers.series`.

A finding is reported once, and again only after the job was fine for a while: a loss that is NaN is one incident, and
one that stays NaN (ES-N07) another, for which the job goes back. Nothing else is ever stopped because of a number. Who
said it is evidence, not a suspect, because ranks usually log the mean of all.
"""

import math
from collections import deque
from collections.abc import Iterable

import msgspec

from everstep.analyzer.codes import CODES
from everstep.analyzer.numbers.series import NumberSeries
from everstep.analyzer.observations.finding import Finding
from everstep.analyzer.observations.words import ranks_text
from everstep.core.restore.trust import LASTING_NAN
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound
from everstep.model.facts import NumberPoint, RankNumbers
from everstep.model.observations import NumbersReported
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

FINE_S = 60.0
"""So long a job must have been fine before the same is reported again."""

NUM_RECENT = 8
"""Newest points of every rank, for the evidence."""

MAX_EVIDENCE = 16


class _Rank:
    def __init__(self) -> None:
        self.series = NumberSeries()
        self.recent: deque[NumberPoint] = deque(maxlen=NUM_RECENT)


class NumberDetector:
    def __init__(self, policy: Policy) -> None:
        self._is_on = policy.watch_numbers
        self._undoes = policy.undo_nan
        self._generation = -1
        self._ranks: dict[tuple[int, str], _Rank] = {}  # by rank and source
        self._bad_at: dict[str, float] = {}  # code -> when it was found last, reported or not
        self._lost_at = float("-inf")  # newest point that was not finite

    def take(self, event: object, state: State) -> tuple[AnomalyFound, ...]:
        """One node's new points; what they show."""
        if not isinstance(event, NumbersReported) or not self._is_on:
            return ()
        if event.generation != self._generation:
            self._generation = event.generation
            self._ranks.clear()
            self._bad_at.clear()
            self._lost_at = float("-inf")
        found: dict[str, Finding] = {}
        for numbers in (each for each in event.numbers if each.points):
            for finding in self._judge(numbers, event.at):
                if finding.code != LASTING_NAN or self._undoes:
                    found.setdefault(finding.code, finding)
        if "ES-N01" in found or LASTING_NAN in found:
            self._lost_at = event.at
        if LASTING_NAN in found:
            found = {LASTING_NAN: found[LASTING_NAN]}  # the rest is its beginning, or its consequence
        new = [finding for code, finding in found.items() if self._is_news(code, event.at, state)]
        # One incident at a time: a NaN explains a jump beside it.
        new.sort(key=lambda finding: finding.code)
        return tuple(self._anomaly(finding, event.at, len(state.workers)) for finding in new[:1])

    def is_lost(self, at: float) -> bool:
        """Whether numbers were not finite lately: then parameters are not, and no two NaNs are alike. A single one that
        the job got over (a batch that was left out) says nothing of what comes a minute later."""
        return abs(at - self._lost_at) < FINE_S  # clocks of nodes differ

    def _judge(self, numbers: RankNumbers, at: float) -> Iterable[Finding]:
        rank = self._ranks.setdefault((numbers.rank, numbers.source), _Rank())
        for point in numbers.points:
            rank.recent.append(point)
            finding = rank.series.take(point, at, numbers.rank)
            if finding is not None:
                yield _from(finding, numbers.source)

    def _is_news(self, code: str, at: float, state: State) -> bool:
        if state.phase is not Phase.RUNNING or state.incident is not None:
            return False  # the brain is busy; what stays wrong is found again
        before = self._bad_at.get(code)
        self._bad_at[code] = at
        return before is None or at - before >= FINE_S

    def _anomaly(self, finding: Finding, at: float, num_ranks: int) -> AnomalyFound:
        bad = {rank for (rank, _), known in self._ranks.items() if not _is_finite(known.recent[-1])}
        is_alone = num_ranks > 1 and len(bad) < 2  # no other rank confirms it
        verdict = Verdict(
            code=finding.code,
            sentence=finding.sentence,
            blame=Blame(CODES[finding.code].blame),
            confidence=Confidence.MEDIUM if is_alone and finding.confidence is Confidence.HIGH else finding.confidence,
            at=at,
            evidence=(*finding.evidence, *self._others(finding, at)),
        )
        return AnomalyFound(at=at, generation=self._generation, verdict=verdict)

    def _others(self, finding: Finding, at: float) -> list[Evidence]:
        """List the ranks' last values: a person can see whether all ranks are affected, which is often the whole
        answer."""
        bad: list[int] = []
        fine: list[int] = []
        first: list[tuple[int, str]] = []  # those that say something else than most
        for (rank, source), known in sorted(self._ranks.items()):
            is_fine = _is_finite(known.recent[-1])
            (fine if is_fine else bad).append(rank)
            if not is_fine:
                first.append((rank, source))
        shown = list(dict.fromkeys([*first[:MAX_EVIDENCE], *sorted(self._ranks)[:MAX_EVIDENCE]]))[:MAX_EVIDENCE]
        said = [_said(rank, source, self._ranks[rank, source].recent, at) for rank, source in shown]
        summary = [] if finding.code not in ("ES-N01", LASTING_NAN) or not bad else [_summary(bad, fine, at)]
        return [*summary, *said]


def _said(rank: int, source: str, points: Iterable[NumberPoint], at: float) -> Evidence:
    text = "; ".join(_text(point) for point in points)
    return Evidence(at=at, source=source, says=f"rank {rank} said: {text}", rank=rank)


def _summary(bad: list[int], fine: list[int], at: float) -> Evidence:
    others = f"; finite by then: {ranks_text(fine)}" if fine else ""
    return Evidence(at=at, source="numbers", says=f"not finite on {ranks_text(bad)}{others}")


def _from(finding: Finding, source: str) -> Finding:
    where = "everstep.step" if source == "step" else "log"
    evidence = tuple(msgspec.structs.replace(each, source=where) for each in finding.evidence)
    return msgspec.structs.replace(finding, evidence=evidence)


def _is_finite(point: NumberPoint) -> bool:
    return all(value is None or math.isfinite(value) for value in (point.loss, point.grad_norm))


def _text(point: NumberPoint) -> str:
    parts = [f"step {point.step}"] if point.step is not None else []
    parts += [f"loss {point.loss:.6g}"] if point.loss is not None else []
    parts += [f"grad norm {point.grad_norm:.6g}"] if point.grad_norm is not None else []
    return " ".join(parts)
