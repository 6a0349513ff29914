"""Rounds of the fail-slow vote: joins what the agents report into timings of all ranks, and keeps the newest rounds.

A round closes when all live ranks are in it, or when the next round begins; the vote judges what is complete by then.
If steps are long, several rounds of the agents make one round of the vote. Used by the slowness watch.
"""

import logging
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from everstep.analyzer.observations.groups import kind_of
from everstep.analyzer.observations.records import ParallelGroup, RankTiming
from everstep.analyzer.slowness.arrivals import counted, join, measure
from everstep.analyzer.slowness.slow import MANY, SlowLimits
from everstep.controller.detectors.slow.clocks import DOUBT_S
from everstep.core.state.schema import State
from everstep.model.facts import RankRound
from everstep.model.observations import RoundReported

NUM_ROUNDS = SlowLimits().num_rounds
NUM_FIRST = 2
NUM_EARLIER = 30
NUM_LONG_AGO, KEEP_EACH = 30, 8
"""Of the rounds before those, one in so many is kept: what lasts for thirty rounds must not become usual by that."""

FIRST_STEPS = 20
"""Steps (or rounds) at the beginning that show how the job is made. More would hide a fault that comes early."""

MAX_BACK = 3
"""A report that is more rounds behind means that a clock was set back."""

MAX_PENDING = 2048
"""Arrivals kept per rank while they wait for more steps."""

MAX_KERNEL = 3
"""Lines per rank."""

MAX_TAKERS = 24
"""Processes that had a rank's CPU, over all joined rounds."""

MAX_SENT = 120
"""Characters; the controller does not trust agents."""

log = logging.getLogger("everstep.controller")


class Counted:
    """Kernel counters, per round of the agents: if steps are long, a round of the vote is several of these, and the
    detection of a sleep or a quota need not wait for them."""

    def __init__(self) -> None:
        self.rounds: deque[list[RankTiming]] = deque(maxlen=NUM_ROUNDS)
        self.num_closed = 0
        self._begun: list[list[RankTiming]] = []
        self._earlier: deque[list[RankTiming]] = deque(maxlen=NUM_EARLIER)
        self._since_step: dict[int, RankRound | None] = {}  # rank -> sum since its last step; ranks with a step only

    def close(self, reports: Iterable[RankRound], state: State, *, is_unusual: bool) -> None:
        """Add a round. `is_unusual`: the vote found something in the current rounds."""
        timings = [timing for each in reports if (timing := self._timing(each, state)) is not None]
        if len(timings) < 2:
            return
        if len(self.rounds) == NUM_ROUNDS and not is_unusual:
            self._earlier.append(self.rounds[0])
        self.rounds.append(timings)
        self._begun += [timings] * (len(self._begun) < NUM_FIRST)
        self.num_closed += 1

    def usual_rounds(self) -> list[list[RankTiming]]:
        return [*self._begun, *self._earlier]

    def _timing(self, report: RankRound, state: State) -> RankTiming | None:
        """Timing of a rank's last steps. A step may take several rounds, and includes their counts. Counts before the
        first step are left out: they belong to the start of the job."""
        joined = join(self._since_step.get(report.rank), msgspec.structs.replace(report, kinds=(), arrivals=()))
        timing = counted(joined, _host_of(report.rank, state))
        if timing is not None:
            self._since_step[report.rank] = None
        elif report.rank in self._since_step:
            self._since_step[report.rank] = joined
        return timing


class Ballot:
    def __init__(self) -> None:
        self.rounds: deque[list[RankTiming]] = deque(maxlen=NUM_ROUNDS)
        self.groups: tuple[ParallelGroup, ...] = ()
        self.generation = -1
        self._open: dict[int, RankRound] = {}
        self._number = -1
        self._pending: dict[int, RankRound] = {}
        self._first: dict[tuple[int, str], list[RankTiming]] = {}  # by rank and node, kept over generations
        self._said = ""
        self.rivals: dict[int, str] = {}  # newest report on which processes run on a rank's CPU
        self.sent: dict[int, str] = {}  # newest report on where a rank's data goes, and how fast
        self.unread: dict[int, str] = {}  # newest report on which peers have no room for what a rank sends
        self.kernel: dict[int, tuple[str, ...]] = {}  # what the kernel saw of a rank in its newest round
        self._first_steps: Counter[tuple[int, str]] = Counter()
        self.begun: list[list[RankTiming]] = []  # the first rounds of this generation
        self._earlier: deque[list[RankTiming]] = deque(maxlen=NUM_EARLIER)  # rounds that no longer vote
        self._long_ago: deque[list[RankTiming]] = deque(maxlen=NUM_LONG_AGO)
        self._num_earlier = 0
        self.is_unusual = False  # the vote found something in these rounds: they never count as usual
        self.counted = Counted()

    def begin(self, generation: int) -> None:
        self.generation = generation
        self.rounds.clear()
        self.begun.clear()
        self._earlier.clear()
        self._long_ago.clear()
        self._num_earlier = 0
        self.counted = Counted()
        self._open.clear()
        self._pending.clear()
        self.rivals.clear()
        self.kernel.clear()
        self.sent.clear()
        self.unread.clear()
        self.groups = ()
        self.is_unusual = False

    def take(self, event: RoundReported, state: State, ahead_s: Callable[[], Mapping[int, float]]) -> bool:
        """Whether this report completed a round."""
        closed = False
        if event.round < self._number - MAX_BACK:
            self._number, self._open = -1, {}  # a clock was set back
        if event.round > self._number and self._open:
            closed = self._close(state, ahead_s())
        self._number = max(self._number, event.round)
        if event.round == self._number:
            self._open |= {each.rank: each for each in event.ranks}
        if 0 < state.tally.alive <= len(self._open):  # else ranks are missing: do not scan thousands of them
            alive = {rank for rank, worker in state.workers.items() if worker.exit is None}
            if alive <= set(self._open):
                closed = self._close(state, ahead_s()) or closed
        return closed

    def first_rounds(self, state: State) -> list[list[RankTiming]]:
        """The first timings of the ranks, on the nodes on which they are now."""
        known = [self._first.get((rank, worker.node), []) for rank, worker in state.workers.items()]
        return [[timings[i] for timings in known if i < len(timings)] for i in range(NUM_FIRST)]

    def usual_rounds(self) -> list[list[RankTiming]]:
        """The first rounds of this generation, with the start of the job itself, and the rounds before the vote."""
        return [*self.begun, *self._earlier]

    def long_usual_rounds(self) -> list[list[RankTiming]]:
        """Return the usual rounds, and some of long ago."""
        return [*self.begun, *self._long_ago, *self._earlier]

    def _keep_earlier(self, timings: list[RankTiming]) -> None:
        if len(self._earlier) == NUM_EARLIER and self._num_earlier % KEEP_EACH == 0:
            self._long_ago.append(self._earlier[0])
        self._num_earlier += 1
        self._earlier.append(timings)

    def _close(self, state: State, ahead_s: Mapping[int, float]) -> bool:
        reported, self._open = self._open, {}
        for rank, each in reported.items():
            if each.rivals:
                self.rivals[rank] = each.rivals
            if each.held is not None or each.kernel:  # else eBPF did not look, or its answer comes with a later round
                self.kernel[rank] = each.kernel[:MAX_KERNEL]
            self.sent[rank] = each.sent[:MAX_SENT]
            self.unread[rank] = each.unread[:MAX_SENT]
            if each.arrivals:
                self._pending[rank] = _bounded(join(self._pending.get(rank), each))
        self.counted.close(reported.values(), state, is_unusual=self.is_unusual)
        measured = measure(list(self._pending.values()), ahead_s)
        self._say(reported)
        if len(measured.timings) < 2:
            return False
        self.groups = _groups(self._pending.values(), len(state.workers))
        num_steps = {rank: each.num_steps for rank, each in self._pending.items()}
        self._pending.clear()
        # Three errors flag a rank: the unknown part of the clocks must not look like computing.
        doubt_s = measured.num_waits * DOUBT_S / 3 if ahead_s else 0.0
        timings = [
            msgspec.structs.replace(t, error_s=t.error_s + doubt_s, host=_host_of(t.rank, state))
            for t in measured.timings
        ]
        log.debug("fail-slow vote: measured %s", timings)
        if len(self.rounds) == NUM_ROUNDS and not self.is_unusual:
            self._keep_earlier(self.rounds[0])
        self.rounds.append(timings)
        self.begun += [timings] * (len(self.begun) < NUM_FIRST)
        self._note_first(timings, state, num_steps)
        return True

    def _note_first(self, timings: Sequence[RankTiming], state: State, num_steps: Mapping[int, int]) -> None:
        of_all = statistics.median(each.compute_s for each in timings)
        for timing in timings:
            if timing.rank not in state.workers:
                continue
            place = (timing.rank, state.workers[timing.rank].node)
            begun = self._first.setdefault(place, [])
            if len(begun) < NUM_FIRST and self._first_steps[place] < FIRST_STEPS:
                few = len(timings) <= MANY  # among many ranks, one does not move the median
                others_s = _median_of_others(timing, timings) if few else of_all
                begun.append(msgspec.structs.replace(timing, others_s=others_s))
                self._first_steps[place] += num_steps[timing.rank]

    def _say(self, reported: Mapping[int, RankRound]) -> None:
        """Log why ranks cannot be measured, on change only."""
        whys = sorted({each.missing for each in reported.values() if each.missing})
        said = "; ".join(whys)
        if said != self._said:
            log.info("fail-slow vote: %s", said or "all ranks report")
        self._said = said


def _median_of_others(timing: RankTiming, timings: Sequence[RankTiming]) -> float:
    return statistics.median(each.compute_s for each in timings if each is not timing)


def _host_of(rank: int, state: State) -> str:
    worker = state.workers.get(rank)
    member = state.members.get(worker.node) if worker is not None else None
    return member.host if member is not None else ""


def _bounded(each: RankRound) -> RankRound:
    takers = None if each.takers is None else tuple(sorted(each.takers, key=lambda t: -t.share)[:MAX_TAKERS])
    return msgspec.structs.replace(each, arrivals=each.arrivals[-MAX_PENDING:], takers=takers)


def _groups(reports: Iterable[RankRound], world_size: int) -> tuple[ParallelGroup, ...]:
    """Groups with declared ranks; for the others, the ranks that entered a collective in them."""
    declared: dict[tuple[str, tuple[int, ...]], str] = {}
    users: defaultdict[str, set[int]] = defaultdict(set)
    titles: dict[str, str] = {}
    for each in reports:
        titles |= each.titles
        for name, ranks in each.groups.items():
            declared[name, tuple(ranks)] = each.titles.get(name, "")
        for name, _ in each.kinds:
            if name not in each.groups:
                users[name].add(each.rank)
    found = [ParallelGroup(name=n, desc=d, ranks=r, kind=kind_of(d), complete=True) for (n, r), d in declared.items()]
    for name, members in users.items():
        if 1 < len(members) < world_size:
            title = titles.get(name, "")
            found.append(ParallelGroup(name=name, desc=title, ranks=tuple(sorted(members)), kind=kind_of(title)))
    return tuple(found)
