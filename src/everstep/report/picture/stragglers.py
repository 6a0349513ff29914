"""The straggler map: a row for each rank, a column for each round of some seconds, and how slow it was against the
median of all. Pure.
"""

from collections.abc import Sequence
from statistics import median

import msgspec

from everstep.analyzer.observations.words import ranks_text
from everstep.journal.beside.paces import Paces
from everstep.report.parts.units import count, duration, percent, plural

RECENT = 5
"""Rounds that say how it is now: as many as vote."""

NOTABLE = 1.08
"""As in the vote (docs/slow.md): less is not worth a mention."""

MAX_NAMED = 4


class PaceLine(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    node: str
    ratios: tuple[float | None, ...]  # own time per step / median of all ranks, one per round
    ratio: float | None  # of the newest rounds
    compute_s: float | None  # in the newest round, as the two below
    wait_s: float | None
    data_s: float | None


class StragglersPage(msgspec.Struct, frozen=True, kw_only=True):
    sentence: str
    generation: int
    order: str
    num_ranks: int
    num_measured: int
    begin: float | None
    end: float | None
    usual_s: float | None
    lines: tuple[PaceLine, ...]


def stragglers_page(paces: Paces) -> StragglersPage:
    lines = tuple(_line(paces, place) for place in range(len(paces.ranks)))
    last = paces.rounds[-1] if paces.rounds else None
    return StragglersPage(
        sentence=_sentence(lines, last.usual_s if last is not None else None) + _unmeasured(paces),
        generation=paces.generation,
        order=paces.order,
        num_ranks=paces.num_ranks,
        num_measured=paces.num_measured,
        begin=paces.rounds[0].at if paces.rounds else None,
        end=None if last is None else last.at,
        usual_s=None if last is None else last.usual_s,
        lines=lines,
    )


def _line(paces: Paces, place: int) -> PaceLine:
    ratios = tuple(_ratio(each.compute_s[place], each.usual_s) for each in paces.rounds)
    recent = [ratio for ratio in ratios[-RECENT:] if ratio is not None]
    return PaceLine(
        rank=paces.ranks[place],
        node=paces.nodes[place],
        ratios=ratios,
        ratio=median(recent) if recent else None,
        compute_s=paces.rounds[-1].compute_s[place] if paces.rounds else None,
        wait_s=paces.wait_s[place],
        data_s=paces.data_s[place],
    )


def _ratio(seconds: float | None, usual_s: float) -> float | None:
    return None if seconds is None or usual_s <= 0.0 else round(seconds / usual_s, 3)


def _unmeasured(paces: Paces) -> str:
    """Unknown is not healthy."""
    unknown = paces.num_ranks - paces.num_measured
    return f"; {plural(unknown, 'rank')} of {count(paces.num_ranks)} not measured" if unknown > 0 else ""


def _sentence(lines: Sequence[PaceLine], usual_s: float | None) -> str:
    """Describe what the map shows, without a verdict: a verdict takes a vote, and looks for reasons."""
    known = [line for line in lines if line.ratio is not None]
    slow = sorted((line for line in known if (line.ratio or 0.0) >= NOTABLE), key=lambda line: -(line.ratio or 0.0))
    if not known:
        return "no round was measured yet"
    if not slow:
        least = percent(NOTABLE - 1.0, 0)
        return f"no rank stands out: none needs {least} more per step than the median of {duration(usual_s)}"
    worst = slow[0]
    more = percent((worst.ratio or 1.0) - 1.0, 0)
    if len(slow) == 1:
        return f"rank {worst.rank} on {worst.node} needs {more} more per step than the median of {duration(usual_s)}"
    named = ranks_text(sorted(line.rank for line in slow[:MAX_NAMED]))
    rest = f" and {len(slow) - MAX_NAMED} more" if len(slow) > MAX_NAMED else ""
    return f"{named}{rest} need up to {more} more per step than the median of {duration(usual_s)}"
