"""Slowness detection: whether a rank makes the others wait, and whether the job became slower. Feeds rounds and step
times to `analyzer.slowness.slow`.

A cause is reported once; again only after the rank was fine for a minute, or in another generation. Another cause of
the same rank is reported too. Slowness that is no machine's fault is reported as a refusal, once per cause and
generation. The detector takes no decision; `core.faults.anomalies` does. Its state is in memory only; a new controller
learns it anew.
"""

import logging
import statistics
import time
from collections import Counter

import msgspec

from everstep.analyzer.codes import CODES
from everstep.analyzer.observations.records import RankTiming
from everstep.analyzer.observations.words import per_step
from everstep.analyzer.slowness.cpu.overload import find_overload
from everstep.analyzer.slowness.cpu.starving import Starving, find_starving
from everstep.analyzer.slowness.cpu.taken import find_robbed
from everstep.analyzer.slowness.grown import Grown, every_grown
from everstep.analyzer.slowness.links.sending import SlowLink, explains, find_slow_link
from everstep.analyzer.slowness.shares import Shares, of_rounds
from everstep.analyzer.slowness.slow import SlowVerdict, flag_like, judge
from everstep.controller.detectors.slow.ballot import Ballot
from everstep.controller.detectors.slow.clocks import Clocks
from everstep.controller.detectors.slow.pace import Pace
from everstep.controller.detectors.slow.paces import PaceHistory
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.model.events import AnomalyFound
from everstep.model.observations import RoundReported, SignalsReported
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

FINE_S = 60.0
"""Seconds without the fault after which a recurrence is a new fault."""

MAX_REFUSALS = 8
"""Refusals per generation; uneven work would otherwise be reported for ever."""

BUSIER_S = 0.001
"""Seconds per step; a larger increase is mentioned."""

STARVED_ROUNDS, STARVED_VOTES = 5, 4
"""Rounds and votes needed, as in the vote: the same rank in four of five rounds is not chance."""

LINK_VOTES = 3
"""Votes needed if the vote has named a rank: it must not be accused a round before the link is certain."""

UNEXPLAINED = {"ES-S01", "ES-S02", "ES-S04", "ES-S08", "ES-S10"}
"""Codes that follow from the duration of ranks alone: a slow link makes its receiver take longer, without a fault of
the receiver."""

MAX_RANKS = 16
"""Ranks to record with their timings."""

KERNEL = "kernel (eBPF)"
CONNECTIONS = "connections"
MAX_UNREAD = 4

_Cause = tuple[int, str]  # rank, code

log = logging.getLogger("everstep.controller")


class SlownessDetector:
    def __init__(self, policy: Policy) -> None:
        self._is_on = policy.watch_slowness
        self._clocks = Clocks()
        self._ballot = Ballot()
        self._pace = Pace()
        self.paces = PaceHistory()
        self._bad_at: dict[_Cause, float] = {}  # time of the last detection in this generation
        self._told: set[_Cause] = set()
        self._rounds_in_a_row: Counter[_Cause] = Counter()  # newest rounds in a row in which it was found
        self._explained_at: dict[_Cause, float] = {}  # when a cause other than the machine was last found
        self._of_kernel: set[_Cause] = set()  # causes that kernel counters have ever named
        self._refused: set[tuple[str, tuple[int, ...]]] = set()
        self._overloads: set[str] = set()  # machines for which an overload was reported
        self._said = ""

    @property
    def newest_round(self) -> list[RankTiming]:
        """The timing of each rank in the last round of this generation; empty if there is none yet."""
        return self._ballot.rounds[-1] if self._ballot.rounds else []

    def shares(self) -> Shares:
        """Return what makes the job uneven, from the last rounds; empty while there are too few."""
        return of_rounds(self._ballot.rounds, self._ballot.groups)

    def ahead_s(self, state: State) -> dict[int, float]:
        """Seconds by which the clock of each rank's machine is ahead; empty on one machine."""
        return self._clocks.ahead_s(state)

    def note_explained(self, rank: int, code: str, at: float) -> bool:
        """Record that another detector has found why this rank is slow. False: that was reported already."""
        is_news = (rank, code) not in self._told
        self._bad_at[rank, code] = at
        self._explained_at[rank, code] = at
        self._told.add((rank, code))
        return is_news

    def take(self, event: object, state: State) -> tuple[AnomalyFound, ...]:
        if not self._is_on or not isinstance(event, RoundReported | SignalsReported):
            return ()
        if event.generation != self._ballot.generation:
            self._begin(event.generation, state)
        if isinstance(event, RoundReported):
            found = self._vote(event, state)
        else:
            self._clocks.note(event.node, event.at, time.time())
            self._pace.take(event, state)
            found = self._compare(event, state)
        return () if found is None else (found,)

    def _begin(self, generation: int, state: State) -> None:
        self._ballot.begin(generation)
        self._pace.begin()
        self.paces.begin(generation)
        self._clocks.forget(state.active_nodes)
        self._bad_at.clear()
        self._told.clear()
        self._rounds_in_a_row.clear()
        self._explained_at.clear()
        self._of_kernel.clear()
        self._refused.clear()
        self._overloads.clear()

    def _vote(self, event: RoundReported, state: State) -> AnomalyFound | None:
        num_counted = self._ballot.counted.num_closed
        if not self._ballot.take(event, state, lambda: self._clocks.ahead_s(state)):
            if self._ballot.counted.num_closed == num_counted or not _may_tell(state):
                return None
            return self._tell_news(self._by_kernel(event.at), event, is_vote=False)  # the vote waits for more steps
        node_of = {rank: worker.node for rank, worker in state.workers.items()}
        self.paces.note(event.at, self._ballot.rounds[-1], node_of, self._ballot.groups)
        first = self._ballot.first_rounds(state)
        verdict = judge(tuple(self._ballot.rounds), self._ballot.groups, first, from_arrivals=True)
        self._say(verdict)
        self._ballot.is_unusual = verdict.code != "ES-S00"
        if verdict.code == "ES-S00":
            unnamed = self._unnamed(event) if _may_tell(state) else None
            self._told -= self._fine(event.at)
            return unnamed
        if not _may_tell(state):
            return None
        # A slow rank is not fine because it is now the only slow one, or has another cause.
        told = [cause for cause in self._told if cause[0] in verdict.ranks]
        self._bad_at |= dict.fromkeys([*told, *((rank, verdict.code) for rank in verdict.ranks)], event.at)
        link = self._slow_link(LINK_VOTES, is_slow=True) if verdict.code in UNEXPLAINED else None
        if link is not None and explains(link, verdict.ranks, self._ballot.rounds):
            return self._tell_news([self._congested(link, event.at)], event)
        return self._refuse(verdict, event) if verdict.refusal is not None else self._accuse(verdict, event)

    def _accuse(self, verdict: SlowVerdict, event: RoundReported) -> AnomalyFound | None:
        for each in self._explanations(event.at):
            self._explained_at |= dict.fromkeys(_causes(each), event.at)
        known = {rank for rank, code in self._told if self._holds((rank, code), event.at)}
        if set(verdict.ranks) <= known:
            return None
        self._told |= {(rank, verdict.code) for rank in verdict.ranks}
        return AnomalyFound(at=event.at, generation=event.generation, verdict=self._verdict(verdict, event.at))

    def _holds(self, told: _Cause, at: float) -> bool:
        """Whether a told cause is a reason not to accuse its rank: an accusation, or a cause that was found within the
        last minute. A rank whose CPU is free again may be slow for another reason."""
        return abs(at - self._explained_at.get(told, at)) < FINE_S

    def _refuse(self, verdict: SlowVerdict, event: RoundReported) -> AnomalyFound | None:
        # The rank that is long changes from step to step; a change is no news.
        key = (verdict.code, () if verdict.code == "ES-S04" else tuple(sorted(verdict.ranks)))
        is_told = bool(verdict.ranks) and all((rank, verdict.code) in self._told for rank in verdict.ranks)
        if key in self._refused or is_told or len(self._refused) >= MAX_REFUSALS:
            return None
        self._refused.add(key)
        refusal = verdict.refusal
        if refusal is not None and (unread := self._unread(event.at)):  # no incident shows its evidence
            refusal = msgspec.structs.replace(refusal, why=f"{refusal.why.removesuffix('.')}; {unread[0].says}")
        return AnomalyFound(
            at=event.at,
            generation=event.generation,
            verdict=self._verdict(verdict, event.at),
            refusal=refusal,
        )

    def _compare(self, event: SignalsReported, state: State) -> AnomalyFound | None:
        if not _may_tell(state):
            return None
        verdict = self._pace.judge(event.at)
        if verdict is None or any(
            flag_like(timings, self._ballot.groups) for timings in list(self._ballot.rounds)[-2:]
        ):
            return None  # the vote may be about to blame a rank for it
        self._pace.accept(verdict, event.at)
        if any(abs(event.at - bad_at) < FINE_S for bad_at in self._bad_at.values()):
            return None  # the vote has blamed a rank for it
        evidence = [Evidence(at=event.at, source="step times", says=verdict.sentence)]
        starving = self._starving(2, 2)
        busy = self._with_rival(starving) if starving is not None else self._busier()
        if busy:
            evidence.append(Evidence(at=event.at, source="scheduler", says=busy))
        if starving is not None:
            evidence += self._seen(starving.rank, event.at)
        evidence += self._unread(event.at)
        found = Verdict(
            code=verdict.code,
            sentence=f"{verdict.sentence.removesuffix('.')}; {busy}" if busy else verdict.sentence,
            blame=Blame.ENVIRONMENT if starving is not None else Blame.UNKNOWN,
            confidence=verdict.confidence,
            ranks=(starving.rank,) if starving is not None else (),
            at=event.at,
            evidence=tuple(evidence),
        )
        return AnomalyFound(at=event.at, generation=event.generation, verdict=found)

    def _busier(self) -> str:
        """A message if ranks wait longer for a CPU than in the first rounds: other processes run on their machines."""
        now, first = (_delay(rounds) for rounds in (list(self._ballot.rounds)[-2:], self._ballot.begun))
        if now is None or first is None or now - first < BUSIER_S:
            return ""
        return f"ranks wait {per_step(now)} per step for a CPU, at first {per_step(first)}"

    def _starving(self, num_rounds: int, min_votes: int) -> Starving | None:
        """A rank that waits longer for a CPU than usual: another process runs on its core."""
        rounds = list(self._ballot.rounds)[-num_rounds:]
        return find_starving(rounds, self._ballot.long_usual_rounds(), min_votes) if len(rounds) >= min_votes else None

    def _unnamed(self, event: RoundReported) -> AnomalyFound | None:
        """A slow rank that the kernel counters explain, when the vote identifies none. None of these causes accuses a
        machine. Reported after it has lasted as long as an accusation would need."""
        if len(self._ballot.rounds) < STARVED_ROUNDS:
            return None
        found = self._explanations(event.at)
        news = self._tell_news(found, event)
        self._ballot.is_unusual = bool(found)
        return news if found else self._overloaded(list(self._ballot.rounds), event)

    def _explanations(self, at: float) -> list[Verdict]:
        """Why ranks are slow, as far as no machine is to blame."""
        rounds, usual = list(self._ballot.rounds), self._ballot.usual_rounds()
        found = (
            self._starved(at),
            *self._by_kernel(at),
            *(self._grown(each, at) for each in every_grown(rounds, usual, STARVED_VOTES, counted=False)),
            self._linked(at),
        )
        return [each for each in found if each is not None]

    def _by_kernel(self, at: float) -> list[Verdict]:
        """Causes that need no complete steps: a process that took its CPU, its quota, and what it slept for."""
        rounds, usual = list(self._ballot.counted.rounds), self._ballot.counted.usual_rounds()
        if len(rounds) < STARVED_ROUNDS:
            return []
        robbed = self._robbed(rounds, usual, at)
        grown = [self._grown(each, at) for each in every_grown(rounds, usual, STARVED_VOTES, counted=True)]
        found = grown if robbed is None else [robbed, *grown]
        self._of_kernel.update(cause for each in found for cause in _causes(each))
        return found

    def _tell_news(self, verdicts: list[Verdict], event: RoundReported, *, is_vote: bool = True) -> AnomalyFound | None:
        """The first verdict that is not reported yet. A second cause of a rank must last: while the first one begins,
        it changes other values too."""
        self._ballot.is_unusual |= bool(verdicts)
        causes = list(dict.fromkeys(cause for verdict in verdicts for cause in _causes(verdict)))
        self._bad_at |= dict.fromkeys(causes, event.at)
        self._explained_at |= dict.fromkeys(causes, event.at)
        again = {each: self._rounds_in_a_row[each] + 1 for each in causes}
        if not is_vote:  # other causes were not examined in this round
            again |= {each: num for each, num in self._rounds_in_a_row.items() if each not in self._of_kernel}
            self._told -= self._fine(event.at) & self._of_kernel
        self._rounds_in_a_row = Counter(again)
        known = {rank for rank, _ in self._told}
        for verdict in verdicts:
            least = STARVED_ROUNDS if known & set(verdict.ranks) else 1
            news = _causes(verdict) - self._told
            if news and all(self._rounds_in_a_row[each] >= least for each in news):
                self._told |= news
                return AnomalyFound(at=event.at, generation=event.generation, verdict=verdict)
        return None

    def _fine(self, at: float) -> set[_Cause]:
        """Causes that were reported and not found for a minute since."""
        return {each for each in self._told if abs(at - self._bad_at.get(each, at)) >= FINE_S}

    def _starved(self, at: float) -> Verdict | None:
        found = self._starving(STARVED_ROUNDS, STARVED_VOTES)
        if found is None:
            return None
        cure = "has the same limit" if found.is_throttled else "does not cure what runs beside it"
        code = "ES-S09" if found.is_throttled else "ES-S03"
        return self._of_rank(code, found.rank, self._with_rival(found), f"a restart elsewhere {cure}", "scheduler", at)

    def _robbed(self, rounds: list[list[RankTiming]], usual: list[list[RankTiming]], at: float) -> Verdict | None:
        found = find_robbed(rounds, usual, STARVED_VOTES)
        if found is None:
            return None
        cure = "a restart elsewhere does not cure what runs beside it"
        source = KERNEL if any(self._ballot.kernel.get(rank) for rank in found.ranks) else "scheduler"
        return self._of_ranks("ES-S03", found.ranks, found.says, cure, source, at)

    def _grown(self, found: Grown, at: float) -> Verdict:
        return self._of_rank(found.code, found.rank, found.says, found.cure, "scheduler", at)

    def _slow_link(self, min_votes: int, *, is_slow: bool = False) -> SlowLink | None:
        return find_slow_link(self._ballot.rounds, self._ballot.usual_rounds(), min_votes, is_slow=is_slow)

    def _linked(self, at: float) -> Verdict | None:
        found = self._slow_link(STARVED_VOTES)
        return None if found is None else self._congested(found, at)

    def _congested(self, found: SlowLink, at: float) -> Verdict:
        sent = self._ballot.sent.get(found.rank, "")
        says = f"{found.says} ({sent})" if sent else found.says
        loses = f" and loses data ({found.lost} segments sent again in these rounds)" if found.lost else ""
        what = f"the link out of its machine is slow{loses}, or the other end's, and its computing is not"
        return self._of_rank("ES-S11", found.rank, says, what, CONNECTIONS, at)

    def _of_rank(self, code: str, rank: int, says: str, cure: str, source: str, at: float) -> Verdict:
        return self._of_ranks(code, (rank,), says, cure, source, at)

    def _of_ranks(self, code: str, ranks: tuple[int, ...], says: str, cure: str, source: str, at: float) -> Verdict:
        only = ranks[0] if len(ranks) == 1 else None
        seen = (line for rank in ranks for line in self._seen(rank, at))
        return Verdict(
            code=code,
            sentence=f"{says}; {cure}.",
            blame=Blame.ENVIRONMENT if code == "ES-S03" else Blame(CODES[code].blame),
            confidence=Confidence.MEDIUM,
            ranks=ranks,
            at=at,
            evidence=(Evidence(at=at, source=source, says=says, rank=only), *seen, *self._unread(at)),
        )

    def _overloaded(self, rounds: list[list[RankTiming]], event: RoundReported) -> AnomalyFound | None:
        """Report an overloaded machine, once per machine and generation: no single rank can be identified there."""
        found = find_overload(rounds, STARVED_VOTES)
        if found is None or found.host in self._overloads:
            return None
        self._overloads.add(found.host)
        rivals = next((self._ballot.rivals[rank] for rank in found.ranks if self._ballot.rivals.get(rank)), "")
        says = f"{found.says}{f' ({rivals})' if rivals else ''}"
        verdict = Verdict(
            code="ES-S03",
            sentence=f"{says}; a rank that is slower by less than that looks like one that had to wait.",
            blame=Blame.ENVIRONMENT,
            confidence=Confidence.MEDIUM,
            at=event.at,
            evidence=(Evidence(at=event.at, source="scheduler", says=says),),
        )
        return AnomalyFound(at=event.at, generation=event.generation, verdict=verdict)

    def _seen(self, rank: int, at: float) -> tuple[Evidence, ...]:
        """Lines of eBPF about this rank, if eBPF is on."""
        lines = self._ballot.kernel.get(rank, ())
        return tuple(Evidence(at=at, source=KERNEL, says=f"rank {rank}: {line}", rank=rank) for line in lines)

    def _unread(self, at: float) -> tuple[Evidence, ...]:
        """Ranks that cannot send because the other end does not read. The lines name that end, for any blamed rank."""
        told = [(rank, says) for rank, says in sorted(self._ballot.unread.items()) if says]
        return tuple(
            Evidence(at=at, source=CONNECTIONS, says=f"rank {rank}: {says}", rank=rank)
            for rank, says in told[:MAX_UNREAD]
        )

    def _with_rival(self, found: Starving) -> str:
        if found.is_throttled:
            return (
                f"{found.says}: the CPU quota of its cgroup stops it for {per_step(found.throttled_s or 0.0)} of that"
            )
        rival = self._ballot.rivals.get(found.rank, "")
        return f"{found.says}: {rival}" if rival else f"{found.says}; what takes it cannot be seen from its node"

    def _verdict(self, verdict: SlowVerdict, at: float) -> Verdict:
        return Verdict(
            code=verdict.code,
            sentence=verdict.sentence,
            blame=Blame(CODES[verdict.code].blame),
            confidence=verdict.confidence,
            ranks=verdict.ranks,
            at=at,
            group=verdict.group.title if verdict.group else "",
            group_ranks=verdict.group.ranks if verdict.group else (),
            evidence=(
                *_evidence(list(self._ballot.rounds), verdict.ranks, at),
                *(each for rank in verdict.ranks[:MAX_RANKS] for each in self._seen(rank, at)),
                *self._unread(at),
            ),
        )

    def _say(self, verdict: SlowVerdict) -> None:
        """Log the verdict, on change only."""
        if verdict.code != self._said:
            log.info("fail-slow vote: %s", verdict.sentence)
        self._said = verdict.code


def _causes(verdict: Verdict) -> set[_Cause]:
    return {(rank, verdict.code) for rank in verdict.ranks}


def _may_tell(state: State) -> bool:
    """Whether a finding may be reported. The brain drops findings while it handles a fault; they are found again."""
    return state.phase is Phase.RUNNING and state.incident is None


def _evidence(rounds: list[list[RankTiming]], ranks: tuple[int, ...], at: float) -> tuple[Evidence, ...]:
    """The measured times of each suspect, against those of the other ranks."""
    every = [timing for timings in rounds for timing in timings]
    others = [timing for timing in every if timing.rank not in ranks]
    found = []
    for rank in ranks[:MAX_RANKS]:
        mine = [timing for timing in every if timing.rank == rank]
        if mine and others:
            says = f"rank {rank}: computes {_mean(mine)} per step, the others {_mean(others)}; {_waits(mine, others)}"
            found.append(Evidence(at=at, source="collectives", says=says, rank=rank))
    return tuple(found)


def _delay(rounds: list[list[RankTiming]]) -> float | None:
    known = [t.delay_s for timings in rounds for t in timings if t.delay_s is not None]
    return statistics.fmean(known) if known else None


def _mean(timings: list[RankTiming]) -> str:
    return per_step(statistics.fmean(timing.compute_s for timing in timings))


def _waits(mine: list[RankTiming], others: list[RankTiming]) -> str:
    means = [
        per_step(statistics.fmean(known)) if (known := [t.wait_s for t in part if t.wait_s is not None]) else "?"
        for part in (mine, others)
    ]
    return f"it waits {means[0]} for them, they wait {means[1]}"
