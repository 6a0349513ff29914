"""Hang detection. Feeds the agents' signals and the job's own step times to `analyzer.hangs.hang.judge`.

It knows the newest signals of every node, and from `learned` how long steps take here; all of it is in memory only and
learned anew by another controller. It judges only a complete, fresh set of signals from all live ranks of a running
generation: silent nodes are handled elsewhere, and a rank that was not seen is not judged.
"""

import logging
import time

from everstep.analyzer.hangs.hang import HangPolicy, HangVerdict, judge, window_s
from everstep.analyzer.hangs.signals import Phase as JobPhase
from everstep.analyzer.hangs.signals import RankSample
from everstep.analyzer.observations.words import ranks_text, verb
from everstep.controller.detectors.learned import Learned, is_excused, moved_at, waits_on
from everstep.core.run.standstill import SEEN_STRETCH
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Standstill, State
from everstep.model.events import HangSuspected, StandstillEnded
from everstep.model.facts import Signals
from everstep.model.observations import SignalsReported
from everstep.model.verdict import Certainty

FRESH_S = 3.0
"""Older signals of a node are not judged: its agent or its link has a trouble of its own."""

GAP_S = 3.0
"""A gap in observation: the machine slept, its clock was set, or it is overloaded. Ages are meaningless until a window
has passed under observation: after a sleep of ten seconds everything has been silent for ten seconds."""

AGAIN_S = 30.0
"""Pause after a suspicion that came to nothing, unless the job has moved since. It doubles each time: a hang that is
left alone is one piece of news, not a hundred an hour."""

MAX_AGAIN_S = 3600.0

MOVED_S = 0.75
"""Ages are known to half a second."""

RESUMED_S = 1.0
"""Twice the interval at which ranks look at their own communication. When one of them has come out of a long silence,
the others are out of it as well, and do not know it yet."""

JUDGE_EVERY_S = 0.2
JUDGE_SHARE = 0.2
"""However many nodes report, judging takes no more than this share of the controller's time: it costs some microseconds
per rank, and nothing while no rank is quiet."""

JUDGE_AT_LEAST_EVERY_S = 2.0

STOPPED = "T"
"""State letter in /proc/PID/stat of a stopped process. A process traced by a debugger has another."""

MIN_SILENT = HangPolicy().min_silent
MAX_SENTENCES = 64
"""How many silent ranks go on record; the verdict names the culprit."""

log = logging.getLogger("everstep.controller")


class HangDetector:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._newest: dict[str, SignalsReported] = {}
        self._learned = Learned()
        self._generation = -1
        self._suspected: dict[int, int | None] = {}  # rank -> its newest step when the job was suspected
        self._suspected_at = float("-inf")
        self._num_in_vain = 0  # suspicions since the job did something
        self._judged_at = float("-inf")
        self._judging_s = 0.0  # how long it took the last time
        self._quiet: set[str] = set()  # nodes with a rank that the rule could possibly call hung
        self._blind_at = float("-inf")
        self._excused_at = float("-inf")
        self._resumed_at = float("-inf")
        self._said = ""
        self._told_end = ""  # of which standstill the end was reported
        self._had_culprit = True  # the last suspicion named a culprit
        self.is_near = False
        """Whether a rank in the newest report is silent for half of what makes a suspicion."""

    def take(self, event: object, state: State) -> tuple[HangSuspected | StandstillEnded, ...]:
        """One node's signals; the suspicion, if they complete one, or the end of a standstill."""
        suspected = self._take(event, state) if isinstance(event, SignalsReported) else None
        return () if suspected is None else (suspected,)

    def _take(self, event: SignalsReported, state: State) -> HangSuspected | StandstillEnded | None:
        if event.generation != self._generation:
            self._begin(event.generation)
        before = self._newest.get(event.node)
        if before is not None and not -1.0 <= event.at - before.at <= GAP_S:
            self._blind_at = event.at
        self._newest[event.node] = event
        self._note_quiet(event)
        if before is not None and self._has_resumed(before, event):
            self._resumed_at = event.at
        self._learned.take(before, event)
        if state.phase is not Phase.RUNNING:
            return None
        if state.standstill is not None and (ended := self._ended(event, state, state.standstill)) is not None:
            return ended
        if not self._policy.watch_hangs or self._is_blind(event.at):
            return None  # signals come for the sake of slowness as well
        interval_s = min(JUDGE_AT_LEAST_EVERY_S, max(JUDGE_EVERY_S, self._judging_s / JUDGE_SHARE))
        if not self._may_suspect(event.at):
            interval_s = JUDGE_AT_LEAST_EVERY_S  # only to learn from
        if not self._quiet or abs(event.at - self._judged_at) < interval_s:
            return None  # clocks of nodes differ by a little, and may be set back by much
        self._judged_at, begun = event.at, time.thread_time()  # CPU time: what ran meanwhile is not its cost
        try:
            return self._judge(event, state)
        finally:
            self._judging_s = time.thread_time() - begun

    def _judge(self, event: SignalsReported, state: State) -> HangSuspected | None:
        signals = self._complete(state, event.at)
        if not any(self._is_quiet(each) for each in signals):
            return None
        if all(each.last_step is None and each.communication_s is None for each in signals):
            return None  # neither steps nor process groups: it is unknown what this program is doing
        if all(each.is_over for each in signals):
            return None  # there is nothing to restart: the rest is reported however long it takes
        is_excuse_new = 0 <= event.at - self._excused_at < self._policy.hang_window_s
        # while an excuse lasts, the rule knows for how long it may
        if is_excuse_new and not any(map(is_excused, signals)):
            return None  # after an evaluation of a minute everything has been silent for a minute
        may_suspect = self._may_suspect(event.at)
        if may_suspect and (
            stopped := [each.rank for each in signals if each.state == STOPPED and self._is_quiet(each)]
        ):
            return self._suspect_stopped(stopped, signals, event, state)
        if any(each.looking for each in signals):
            return None
        rule = self._rule()
        verdict = judge([_sample(each, event.at) for each in signals], self._learned.rhythm(rule), rule)
        self._say(verdict)
        if any(each.computing or each.waiting for each in verdict.by_rank):
            self._learned.note_reason(_stood_since(signals, event.at), event.at)
        if not may_suspect or not verdict.hung or self._is_known(verdict, signals, event.at, state):
            return None
        if state.standstill is not None and (verdict.culprit is not None or not self._had_culprit):
            return None  # nothing is new about it
        usual_s = max(window_s(self._learned.usual, _phase(each.phase), rule) for each in signals)
        return self._suspect(verdict, signals, event, usual_s)

    def _suspect_stopped(
        self, stopped: list[int], signals: list[Signals], event: SignalsReported, state: State
    ) -> HangSuspected | None:
        """Suspect ranks that are stopped, however long steps take here: they cannot continue."""
        if state.standstill is not None and not self._had_culprit:
            return None  # already reported
        why = f"{ranks_text(stopped)} {verb(stopped, 'is', 'are')} stopped"
        least_s = self._policy.hang_window_s
        verdict = HangVerdict(hung=True, ranks=tuple(stopped), window_s=least_s, why=why, by_rank=())
        return self._suspect(verdict, signals, event, least_s)

    def _ended(self, event: SignalsReported, state: State, standing: Standstill) -> StandstillEnded | None:
        """Report the end of a standstill once every rank has done something since. Uses the signals alone, so that
        another controller can do it as well."""
        since = standing.since + MOVED_S
        moved = [moved_at(each, event.at) for each in self._complete(state, event.at)]
        known = [at for at in moved if at is not None]
        if not known or min(known) <= since or self._told_end == standing.incident.id:
            return None
        self._told_end = standing.incident.id
        lasted_s = max(0.0, min(known) - standing.since)
        return StandstillEnded(
            at=event.at, generation=event.generation, incident=standing.incident.id, lasted_s=lasted_s
        )

    def _is_known(self, verdict: HangVerdict, signals: list[Signals], at: float, state: State) -> bool:
        """Whether this place was seen to take as long and recovered by itself. Only if the verdict names a culprit."""
        if verdict.culprit is None:
            return False
        stood_s = at - _stood_since(signals, at)
        place = next((each.place for each in signals if each.rank == verdict.culprit), "")
        known = state.places.get(f"{Certainty.DOUBTFUL} {place}")
        return bool(place) and known is not None and stood_s < SEEN_STRETCH * known.longest_s

    def has_moved_on(self) -> bool:
        """Whether every rank has done a step since the suspicion."""
        return bool(self._suspected) and all(
            rank in self._learned.steps and self._learned.steps[rank][0] != step
            for rank, step in self._suspected.items()
        )

    def _note_quiet(self, event: SignalsReported) -> None:
        if any(map(is_excused, event.signals)):
            self._excused_at = event.at
        if any(map(self._is_quiet, event.signals)):
            self._quiet.add(event.node)
        else:
            self._quiet.discard(event.node)
        half_s = self._policy.hang_window_s / 2
        self.is_near = any(_is_silent(each, half_s) and each.phase != JobPhase.STARTUP for each in event.signals)

    def _has_resumed(self, before: SignalsReported, event: SignalsReported) -> bool:
        """Whether communication of a rank moved just now, after half a window in which it did not or was not seen."""
        least_s = self._policy.hang_window_s / 2
        ages = {each.rank: each.communication_s for each in before.signals}
        for each in event.signals:
            age, now = ages.get(each.rank, 0.0), each.communication_s
            if now is not None and now < least_s and (age is None or age >= least_s):
                return True
        return False

    def _is_quiet(self, signals: Signals) -> bool:
        """Whether the rule could possibly call it hung."""
        return _is_silent(signals, self._policy.hang_window_s)

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._newest.clear()
        self._quiet.clear()
        self._learned.begin()
        self._suspected = {}
        self._suspected_at = float("-inf")
        self._num_in_vain = 0

    def _is_blind(self, at: float) -> bool:
        return 0 <= at - self._blind_at < self._policy.hang_window_s or 0 <= at - self._resumed_at < RESUMED_S

    def _may_suspect(self, at: float) -> bool:
        pause_s = min(MAX_AGAIN_S, AGAIN_S * 2.0 ** min(self._num_in_vain - 1, 16))
        return not -FRESH_S <= at - self._suspected_at < pause_s or self._has_lived()

    def _has_lived(self) -> bool:
        """Whether the job did something since the suspicion before: steps, or all of it communicated where it has no
        steps."""
        return self.has_moved_on() or all(
            each.last_step is None
            and each.communication_s is not None
            and event.at - each.communication_s > self._suspected_at
            for event in self._newest.values()
            for each in event.signals
        )

    def _complete(self, state: State, at: float) -> list[Signals]:
        """The signals of all live ranks; empty if some are unknown or stale."""
        seen = {
            each.rank: each
            for node, event in self._newest.items()
            if state.is_active(node) and at - event.at <= FRESH_S
            for each in event.signals
        }
        alive = [rank for rank, worker in state.workers.items() if worker.exit is None]
        return [seen[rank] for rank in alive] if all(rank in seen for rank in alive) else []

    def _rule(self) -> HangPolicy:
        return HangPolicy(min_window_s=self._policy.hang_window_s, report_s=self._policy.hang_report_s)

    def _suspect(
        self, verdict: HangVerdict, signals: list[Signals], event: SignalsReported, usual_s: float
    ) -> HangSuspected:
        self._num_in_vain = 1 if self._has_lived() else self._num_in_vain + 1
        self._suspected = {each.rank: each.last_step for each in signals}
        self._suspected_at = event.at
        self._had_culprit = verdict.culprit is not None
        return HangSuspected(
            at=event.at,
            generation=event.generation,
            ranks=verdict.ranks,
            since=_stood_since(signals, event.at),
            window_s=usual_s,
            why=verdict.why,
            silent={each.rank: each.why for each in [v for v in verdict.by_rank if v.silent][:MAX_SENTENCES]},
            place=next((each.place for each in signals if each.rank == verdict.culprit), ""),
        )

    def _say(self, verdict: HangVerdict) -> None:
        """Log once why it is not a hang although ranks are silent."""
        kind = verdict.why.partition("(")[0] if any(each.hung for each in verdict.by_rank) else ""
        if kind and kind != self._said:
            log.info("hang rule: %s", verdict.why)
        self._said = kind


def _is_silent(signals: Signals, least_s: float) -> bool:
    ages = (signals.log_s, signals.stack_s, signals.device_s, signals.communication_s)
    return sum(age is not None and age >= least_s for age in ages) >= MIN_SILENT


def _stood_since(signals: list[Signals], at: float) -> float:
    """The last sign of progress of any rank."""
    return min(at, max((moved for each in signals if (moved := moved_at(each, at)) is not None), default=at))


def _sample(signals: Signals, at: float) -> RankSample:
    moved = moved_at(signals, at)  # a step without communication is progress as well
    progress_s = None if signals.communication_s is None or moved is None else max(0.0, at - moved)
    return RankSample(
        rank=signals.rank,
        log_s=signals.log_s,
        stack_s=signals.stack_s,
        device_s=signals.device_s,
        communication_s=progress_s,
        phase=_phase(signals.phase),
        log_gap_s=signals.log_gap_s,
        paused=signals.paused,
        busy=signals.busy,
        waits_on=waits_on(signals.waits_on),
        waits_for=signals.waits_for,
        wait_left_s=signals.wait_left_s,
    )


def _phase(name: str) -> JobPhase:
    try:
        return JobPhase(name)
    except ValueError:  # of an agent that knows more phases: the patient one
        return JobPhase.STARTUP
