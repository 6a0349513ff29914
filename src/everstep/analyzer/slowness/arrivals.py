"""Time that each rank computes and waits per step, from the times at which ranks entered their collectives.

A collective is done when its last member has entered it, so rank r waits for `max(arrival) - arrival_r`. But a rank
need not wait: gradients are reduced during the backward pass. The data decide whether ranks wait, for each place in the
step: where they do, a longer wait makes the next collective later, one for one (`is_synchronous`).

The communication itself counts as computing; it is the same for all members. Operations between two ranks are not among
the arrivals (gloo does not record them), so waiting for a neighbour in a pipeline counts as computing too. Pure; the
slowness watch calls it with the agents' reports.
"""

import itertools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from everstep.analyzer.observations.records import RankTiming
from everstep.model.facts import RankRound, Taken

MIN_STEPS = 5
TRIM = 0.1
"""Share of the steps to leave out at either end: saves, evaluations and pauses are no property of a machine. More would
hide a machine that is slow half of the time."""

TICK_S = 0.0005
"""Differences below this mean nothing: clocks differ, and threads wake up late."""

MAX_VIOLATIONS = 0.1
MAX_ASKED = 32
"""Ranks that decide what a step is like: more ranks would add nothing."""

MIN_PERIODIC = 0.85

Key: TypeAlias = tuple[str, tuple[int, ...]]
"""A group: its name, and its ranks if declared; groups without common ranks may have the same name."""

Place: TypeAlias = tuple[Key, int]
Kind: TypeAlias = tuple[str, str]
"""Name of the group, and the operation with its size."""


class Entered(msgspec.Struct, frozen=True):
    """One rank's entry into one collective. `wait_s`: seconds until the last member entered."""

    place: Place
    kind: str
    at: float
    wait_s: float


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    timings: tuple[RankTiming, ...] = ()
    num_waits: int = 0  # places in a step at which ranks wait for each other; errors of clocks add up over them
    why_not: dict[int, str] = {}  # ranks that could not be measured


def join(earlier: RankRound | None, new: RankRound) -> RankRound:
    """Both rounds as one, for steps so long that one round has too few of them."""
    if earlier is None or earlier.rank != new.rank:
        return new
    kinds = list(earlier.kinds)
    index = {kind: number for number, kind in enumerate(kinds)}
    for kind in new.kinds:
        if index.setdefault(kind, len(kinds)) == len(kinds):
            kinds.append(kind)
    moved = tuple((index[new.kinds[kind]], seq, at) for kind, seq, at in new.arrivals if 0 <= kind < len(new.kinds))
    return msgspec.structs.replace(
        new,
        kinds=tuple(kinds),
        arrivals=(*earlier.arrivals, *moved),
        num_steps=earlier.num_steps + new.num_steps,
        num_entered=earlier.num_entered + new.num_entered,
        window_s=earlier.window_s + new.window_s,
        data_s=_sum(earlier.data_s, new.data_s),
        gc_s=_sum(earlier.gc_s, new.gc_s),
        delay_s=_sum(earlier.delay_s, new.delay_s),
        throttled_s=_sum(earlier.throttled_s, new.throttled_s),
        io_s=_sum(earlier.io_s, new.io_s),
        cpu_s=_sum(earlier.cpu_s, new.cpu_s),
        send_s=_sum(earlier.send_s, new.send_s),
        rivals=new.rivals or earlier.rivals,
        sent=new.sent or earlier.sent,
        lost=None if earlier.lost is None or new.lost is None else earlier.lost + new.lost,
        kernel=new.kernel or earlier.kernel,
        takers=_joined_takers(earlier, new),
        held=_joined_held(earlier, new),
        work=_sum(earlier.work, new.work),
    )


def measure(rounds: Sequence[RankRound], ahead_s: Mapping[int, float] | None = None) -> Measured:
    """Timings of all ranks with enough steps. `ahead_s`: seconds by which a rank's clock is ahead of the others'."""
    entered = _entered(rounds, ahead_s or {})
    by_rank = {each.rank: each for each in rounds}
    lanes: defaultdict[frozenset[Key], list[int]] = defaultdict(list)
    for rank, listed in entered.items():
        lanes[frozenset(each.place[0] for each in listed)].append(rank)
    timings: list[RankTiming] = []
    num_waits = 0
    for ranks in lanes.values():
        lane = _Lane({rank: entered[rank] for rank in ranks}, [by_rank[rank] for rank in ranks])
        timings += lane.timings()
        num_waits = max(num_waits, lane.num_waits)
    measured = {timing.rank for timing in timings}
    why_not = {each.rank: each.missing or "too few steps" for each in rounds if each.rank not in measured}
    return Measured(timings=tuple(sorted(timings, key=lambda t: t.rank)), num_waits=num_waits, why_not=why_not)


def counted(report: RankRound, host: str) -> RankTiming | None:
    """Kernel counters of a rank in one round, per step. They need no complete steps and no arrivals of other ranks: all
    of a step's time counts as computing here, including waits for others. None: the rank made no step."""
    if report.num_steps < 1 or report.window_s <= 0:
        return None
    num_steps = report.num_steps
    return RankTiming(
        rank=report.rank,
        compute_s=report.window_s / num_steps,
        delay_s=_per(report.delay_s, num_steps),
        throttled_s=_per(report.throttled_s, num_steps),
        cpu_s=_per(report.cpu_s, num_steps),
        takers=report.takers,
        held=_held_s(report),
        host=host,
    )


def is_synchronous(waits: Sequence[Sequence[float]], gaps: Sequence[Sequence[float]]) -> bool:
    """Whether ranks leave a collective only after all have entered it. One sequence per rank: waits, and the seconds to
    the rank's next entry. If the data do not decide it, True, as in programs without overlap; an error then only makes
    a number too large."""
    pairs = [(w, g) for ws, gs in zip(waits, gaps, strict=True) for w, g in zip(ws, gs, strict=True)]
    long = [(w, g) for w, g in pairs if w > 2 * TICK_S]
    if long and sum(g < w - TICK_S for w, g in long) > MAX_VIOLATIONS * len(long):
        return False  # continued before the last rank came
    xs, ys = _centred(waits, gaps)
    sxx = math.fsum(x * x for x in xs)
    num_free = len(xs) - len(waits) - 1
    if num_free < 3 or math.sqrt(sxx / len(xs)) < TICK_S / 4:
        return True
    slope = math.fsum(x * y for x, y in zip(xs, ys, strict=True)) / sxx
    rest = math.fsum((y - slope * x) ** 2 for x, y in zip(xs, ys, strict=True))
    error = math.sqrt(rest / num_free / sxx)
    return slope + error > 0.5


def _centred(waits: Sequence[Sequence[float]], gaps: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Differences from the rank's own means, without its longest gaps, which have another cause."""
    xs: list[float] = []
    ys: list[float] = []
    for ws, gs in zip(waits, gaps, strict=True):
        if not gs:
            continue
        limit = sorted(gs)[min(len(gs) - 1, int(len(gs) * (1 - TRIM)))]
        kept = [(w, g) for w, g in zip(ws, gs, strict=True) if g <= limit]
        mean_w, mean_g = sum(w for w, _ in kept) / len(kept), sum(g for _, g in kept) / len(kept)
        xs += [w - mean_w for w, _ in kept]
        ys += [g - mean_g for _, g in kept]
    return xs, ys


def _entered(rounds: Sequence[RankRound], ahead_s: Mapping[int, float]) -> dict[int, list[Entered]]:
    """Entries per rank, in order of time; only collectives that all members have entered."""
    raw: dict[int, dict[Place, tuple[str, float]]] = {}
    members: defaultdict[Key, set[int]] = defaultdict(set)
    last: dict[Place, float] = {}
    num: dict[Place, int] = {}
    for each in rounds:
        keys: list[Key] = [(group, tuple(each.groups.get(group, ()))) for group, _ in each.kinds]
        ahead = ahead_s.get(each.rank, 0.0)
        mine: dict[Place, tuple[str, float]] = {}
        for kind, seq, at in each.arrivals:
            if 0 <= kind < len(keys) and math.isfinite(at):
                mine[keys[kind], seq] = (each.kinds[kind][1], at - ahead)
        raw[each.rank] = mine
        for key in {place[0] for place in mine}:
            members[key].add(each.rank)
        for place, (_, at) in mine.items():
            num[place] = num.get(place, 0) + 1
            if at > last.get(place, -math.inf):
                last[place] = at
    full = {key: len(key[1]) or len(ranks) for key, ranks in members.items()}
    found: dict[int, list[Entered]] = {}
    for rank, mine in raw.items():
        whole = [
            Entered(place, kind, at, last[place] - at)
            for place, (kind, at) in mine.items()
            if num[place] == full[place[0]]
        ]
        if whole:
            found[rank] = sorted(whole, key=lambda e: e.at)
    return found


class _Lane:
    """Ranks in the same groups, which therefore enter the same collectives."""

    def __init__(self, entered: Mapping[int, list[Entered]], rounds: Sequence[RankRound]) -> None:
        self._rounds = {each.rank: each for each in rounds}
        by_place = {rank: {each.place: each for each in listed} for rank, listed in entered.items()}
        first, *others = by_place.values()
        places = [place for place in first if all(place in other for other in others)]
        self._ranks = {rank: [mine[place] for place in places] for rank, mine in by_place.items()}
        self._places = places
        self._kinds = [(place[0][0], first[place].kind) for place in places]
        self._gaps = {
            rank: [b.at - a.at for a, b in itertools.pairwise(listed)] for rank, listed in self._ranks.items()
        }
        self._some = list(self._ranks)[:: max(1, len(self._ranks) // MAX_ASKED)]
        self.num_waits = 0

    def timings(self) -> list[RankTiming]:
        per_step = _per_step(list(self._rounds.values()))
        if per_step is None or len(self._kinds) < MIN_STEPS * per_step:
            return []
        kinds, period = _cycle(self._kinds, per_step)
        starts = self._steps(kinds, period)
        if len(starts) < MIN_STEPS:
            return []
        waits_at = [self._waits_at(starts, offset) for offset in range(period)]
        self.num_waits = sum(waits_at)
        # If steps differ in their collectives, one collective counts as a step; scale it back.
        scale = per_step / period if period == 1 else 1.0
        return [self._timing(rank, starts, waits_at, scale) for rank in self._ranks]

    def _steps(self, kinds: list[Kind], period: int) -> list[int]:
        """Indices at which complete steps begin: at the collective with the longest time before it. A step that was
        interrupted (by an evaluation with its own collectives, or by the end of a report) is left out."""
        if len(kinds) <= period * MIN_STEPS:
            return []
        some = [self._gaps[rank] for rank in self._some]
        gaps = [0.0, *(sum(mine[i] for mine in some) / len(some) for i in range(len(kinds) - 1))]
        usual = _usual_step(kinds, gaps, period)
        found: list[int] = []
        for run in _runs(kinds, period):
            begins = [i for i in run if tuple(kinds[i : i + period]) == usual and i + period in run]
            i = _first_begin(begins, gaps, period)
            found += [k for k in begins if k >= i and (k - i) % period == 0]
        return [i for i in found if self._goes_on(i, period)]

    def _goes_on(self, i: int, period: int) -> bool:
        """Whether no collective is missing between this step and the next one: the sequence numbers have no gap."""
        seqs: dict[Key, int] = {}
        for key, seq in self._places[i : i + period + 1]:
            if seqs.setdefault(key, seq - 1) != seq - 1:
                return False
            seqs[key] = seq
        return True

    def _waits_at(self, starts: Sequence[int], offset: int) -> bool:
        waits = [[self._ranks[rank][i + offset].wait_s for i in starts] for rank in self._some]
        gaps = [[self._gaps[rank][i + offset] for i in starts] for rank in self._some]
        return is_synchronous(waits, gaps)

    def _timing(self, rank: int, starts: Sequence[int], waits_at: Sequence[bool], scale: float) -> RankTiming:
        listed, gaps, report = self._ranks[rank], self._gaps[rank], self._rounds[rank]
        computes: list[float] = []
        waits: list[float] = []
        for i in starts:
            wait_s = sum(listed[i + m].wait_s for m, waits_here in enumerate(waits_at) if waits_here)
            waits.append(wait_s)
            computes.append(sum(gaps[i : i + len(waits_at)]) - wait_s)
        num_steps = report.num_steps
        return RankTiming(
            rank=rank,
            compute_s=max(0.0, trimmed_mean(computes)) * scale,
            error_s=_error(computes) * scale,
            wait_s=trimmed_mean(waits) * scale,
            data_s=_per(report.data_s, num_steps),
            gc_s=_per(report.gc_s, num_steps),
            delay_s=_per(report.delay_s, num_steps),
            throttled_s=_per(report.throttled_s, num_steps),
            io_s=_per(report.io_s, num_steps),
            cpu_s=_per(report.cpu_s, num_steps),
            send_s=_per(report.send_s, num_steps),
            lost=report.lost,
            takers=report.takers,
            held=_held_s(report),
            work=_per(report.work, num_steps),
        )


def _usual_step(kinds: list[Kind], gaps: list[float], period: int) -> tuple[Kind, ...]:
    """The collectives of a step. All rotations of them occur equally often; a step begins after the longest time."""
    before: defaultdict[tuple[Kind, ...], list[float]] = defaultdict(list)
    for i in range(len(kinds) - period):
        before[tuple(kinds[i : i + period])].append(gaps[i])
    most = max(len(listed) for listed in before.values())
    often = {step: listed for step, listed in before.items() if 2 * len(listed) >= most}
    return max(often, key=lambda step: statistics.median(often[step]))


def _runs(kinds: list[Kind], period: int) -> list[range]:
    """Ranges without foreign collectives: those that occur less than in every other step."""
    count = Counter(kinds)
    foreign = [i for i, kind in enumerate(kinds) if 2 * count[kind] * period < len(kinds)]
    bounds = [-1, *foreign, len(kinds)]
    return [range(a + 1, b) for a, b in itertools.pairwise(bounds) if b - a > 1]


def _first_begin(begins: list[int], gaps: list[float], period: int) -> int:
    """Index of the first step. If all collectives of a step look alike, only time shows where it begins."""
    if not begins:
        return 0
    classes: defaultdict[int, list[int]] = defaultdict(list)
    for i in begins:
        classes[i % period].append(i)
    most = max(map(len, classes.values()))
    often = [listed for listed in classes.values() if 2 * len(listed) >= most]
    # Leave out the first: the time before it may contain what interrupted the run.
    return max(often, key=lambda listed: statistics.median([gaps[i] for i in listed[1:]] or [gaps[listed[0]]]))[0]


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the tenth at either end. Raises on no values."""
    cut = int(len(values) * TRIM)
    if not cut and len(values) > 2:
        cut = 1
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean, from the scatter of the steps; robust, because single steps may take very long."""
    middle = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - middle) for v in values) / math.sqrt(len(values))


def _per_step(rounds: Sequence[RankRound]) -> float | None:
    """Collectives per step, counted over the round; None if there are too few steps."""
    shares = [each.num_entered / each.num_steps for each in rounds if each.num_steps >= MIN_STEPS and each.num_entered]
    return statistics.median(shares) if shares else None


def _cycle(kinds: list[Kind], per_step: float) -> tuple[list[Kind], int]:
    """The kinds that repeat from step to step, and their number per step. Sizes are dropped if they vary; if even the
    operations vary, all collectives count as one kind."""
    for seen in (kinds, [(group, op.partition(" ")[0]) for group, op in kinds]):
        shortest = _period(seen)
        if shortest is not None:
            period = shortest * max(1, round(per_step / shortest))
            if abs(period - per_step) <= max(0.2, 0.1 * per_step):
                return seen, period
    return [("", "")] * len(kinds), 1


def _period(kinds: list[Kind]) -> int | None:
    for period in range(1, len(kinds) // MIN_STEPS + 1):
        same = sum(a == b for a, b in zip(kinds, kinds[period:], strict=False))
        if same >= MIN_PERIODIC * (len(kinds) - period):
            return period
    return None


def _per(total: float | None, num_steps: int) -> float | None:
    return None if total is None or not num_steps else total / num_steps


def _held_s(report: RankRound) -> dict[str, float] | None:
    if report.held is None or not report.num_steps:
        return None
    return {kind: share * report.window_s / report.num_steps for kind, share in report.held.items()}


def _joined_takers(earlier: RankRound, new: RankRound) -> tuple[Taken, ...] | None:
    """Shares of both windows; of one window if only one was observed."""
    if earlier.takers is None or new.takers is None:
        return new.takers if earlier.takers is None else earlier.takers
    names = {each.pid: each.name for each in (*earlier.takers, *new.takers)}
    old, young = ({each.pid: each.share for each in takers} for takers in (earlier.takers, new.takers))
    return tuple(Taken(pid, name, _weighed(old.get(pid), young.get(pid), earlier, new)) for pid, name in names.items())


def _joined_held(earlier: RankRound, new: RankRound) -> dict[str, float] | None:
    if earlier.held is None or new.held is None:
        return new.held if earlier.held is None else earlier.held
    kinds = dict.fromkeys((*earlier.held, *new.held))
    return {kind: _weighed(earlier.held.get(kind), new.held.get(kind), earlier, new) for kind in kinds}


def _weighed(old: float | None, young: float | None, earlier: RankRound, new: RankRound) -> float:
    """Share over both windows. A taker that is not listed in an observed window has the share 0 there."""
    both_s = earlier.window_s + new.window_s
    return ((old or 0.0) * earlier.window_s + (young or 0.0) * new.window_s) / both_s if both_s > 0 else 0.0


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
