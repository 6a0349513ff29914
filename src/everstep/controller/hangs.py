"""Does the job stand still? Feeds the agents' signals and the job's own step times to `analyzer.hang.judge`.

It knows the newest signals of every node and how long steps take here; all of it is in memory only and learned anew by
another controller. It judges only a complete, fresh look at all live ranks of a running generation: a node that is
silent is somebody else's business, and what is not seen is not judged.
"""

import logging
from collections import deque

import msgspec

from everstep.analyzer.hang import HangPolicy, HangVerdict, judge
from everstep.analyzer.signals import Phase as JobPhase
from everstep.analyzer.signals import RankSample, Rhythm, Signal
from everstep.core.policy import Policy
from everstep.core.state import Phase, State
from everstep.model.events import HangSuspected, SignalsReported
from everstep.model.facts import Signals

FRESH_S = 3.0
"""Older signals of a node are not judged: its agent or its link has a trouble of its own."""

NUM_STEP_TIMES = 512
MAX_REPEATED = 16
"""A look that spans many short steps counts as so many steps of their mean."""

AGAIN_S = 30.0
"""After a suspicion that came to nothing, unless the job has moved since."""

JUDGE_EVERY_S = 0.4
"""However many nodes report: judging costs some microseconds per rank."""

MIN_SILENT = HangPolicy().min_silent
MAX_SENTENCES = 64
"""Of so many silent ranks on record; the verdict names the culprit."""

log = logging.getLogger("everstep.controller")


class HangWatch:
    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._newest: dict[str, SignalsReported] = {}
        self._steps: dict[int, tuple[int, float]] = {}  # rank -> newest step and when it was done
        self._step_s: deque[float] = deque(maxlen=NUM_STEP_TIMES)
        self._generation = -1
        self._suspected: dict[int, int | None] = {}  # rank -> its newest step when the job was suspected
        self._suspected_at = float("-inf")
        self._judged_at = float("-inf")
        self._said = ""
        self._loop_at: tuple[int | None, int] | None = None  # newest step and generation when a busy rank was suspected

    def take(self, event: SignalsReported, state: State) -> HangSuspected | None:
        """One node's signals; the suspicion, if they complete one. A fault in here costs the rule, nothing else."""
        try:
            return self._take(event, state)
        except Exception:
            log.exception("the hang rule failed on %r", event)
            return None

    def _take(self, event: SignalsReported, state: State) -> HangSuspected | None:
        if event.generation != state.generation or event.node not in state.active_nodes:
            return None
        if event.generation != self._generation:
            self._begin(event.generation)
        self._newest[event.node] = event
        self._learn(event)
        if state.phase is not Phase.RUNNING or not self._may_suspect(event.at):
            return None
        if event.at - self._judged_at < JUDGE_EVERY_S:
            return None
        self._judged_at = event.at
        signals = self._complete(state, event.at)
        if any(each.looking for each in signals) or not any(self._is_quiet(each) for each in signals):
            return None
        if self._has_come_again(signals):
            signals = [msgspec.structs.replace(each, stack_s=None) for each in signals]
        verdict = judge([_sample(each) for each in signals], self._rhythm(), self._rule(signals))
        self._say(verdict)
        return self._suspect(verdict, signals, event) if verdict.hung else None

    def has_moved_on(self) -> bool:
        """Whether every rank has done a step since the suspicion."""
        return bool(self._suspected) and all(
            rank in self._steps and self._steps[rank][0] != step for rank, step in self._suspected.items()
        )

    def _is_quiet(self, signals: Signals) -> bool:
        """Whether the rule could possibly call it hung: cheap, because in a healthy job of many ranks none is."""
        ages = (signals.log_s, signals.stack_s, signals.device_s, signals.communication_s)
        return sum(age is not None and age >= self._policy.hang_window_s for age in ages) >= MIN_SILENT

    def _begin(self, generation: int) -> None:
        self._generation = generation
        self._newest.clear()
        self._steps.clear()
        self._suspected = {}
        self._suspected_at = float("-inf")

    def _may_suspect(self, at: float) -> bool:
        return at - self._suspected_at >= AGAIN_S or self.has_moved_on()

    def _learn(self, event: SignalsReported) -> None:
        """The slowest rank's time per step between this look and the one before."""
        slowest_s, num_steps = 0.0, 0
        for each in event.signals:
            if each.last_step is None or each.last_step_at is None:
                continue
            before = self._steps.get(each.rank)
            self._steps[each.rank] = (each.last_step, each.last_step_at)
            if before is not None and each.last_step > before[0] and each.last_step_at > before[1]:
                done = each.last_step - before[0]
                step_s = (each.last_step_at - before[1]) / done
                if step_s > slowest_s:
                    slowest_s, num_steps = step_s, done
        self._step_s.extend([slowest_s] * min(num_steps, MAX_REPEATED))

    def _complete(self, state: State, at: float) -> list[Signals]:
        """Of all live ranks; empty when some of them are not known or not fresh."""
        seen = {
            each.rank: each
            for node, event in self._newest.items()
            if node in state.active_nodes and at - event.at <= FRESH_S
            for each in event.signals
        }
        alive = [rank for rank, worker in state.workers.items() if worker.exit is None]
        return [seen[rank] for rank in alive] if all(rank in seen for rank in alive) else []

    def _rhythm(self) -> Rhythm:
        return Rhythm(step_s=tuple(self._step_s))

    def _rule(self, signals: list[Signals]) -> HangPolicy:
        is_saved = all(each.has_snapshot for each in signals)
        policy = self._policy
        return HangPolicy(min_window_s=policy.hang_window_s if is_saved else policy.hang_unsaved_window_s)

    def _has_come_again(self, signals: list[Signals]) -> bool:
        """A rank that works and whose stack stays was taken for a loop, and after the restart the job stands at the
        same step again: then this is how long it takes here. It gets the patience of what computes, so that a mistake
        costs one restart and not the run."""
        if self._loop_at is None or self._loop_at[1] == self._generation:
            return False
        return _newest_step(signals) == self._loop_at[0]

    def _suspect(self, verdict: HangVerdict, signals: list[Signals], event: SignalsReported) -> HangSuspected:
        self._suspected = {each.rank: each.last_step for each in signals}
        self._suspected_at = event.at
        if any(Signal.STACK in each.silent and Signal.DEVICE not in each.silent for each in verdict.by_rank):
            self._loop_at = (_newest_step(signals), event.generation)
        stepped = [each.last_step_at for each in signals if each.last_step_at is not None]
        moved = [event.at - each.communication_s for each in signals if each.communication_s is not None]
        return HangSuspected(
            at=event.at,
            generation=event.generation,
            ranks=verdict.ranks,
            since=min(event.at, max([*stepped, *moved], default=event.at)),
            window_s=verdict.window_s,
            why=verdict.why,
            silent={each.rank: each.why for each in [v for v in verdict.by_rank if v.silent][:MAX_SENTENCES]},
        )

    def _say(self, verdict: HangVerdict) -> None:
        """Why it is not a hang although ranks are silent: once, for whoever reads the log."""
        kind = verdict.why.partition("(")[0] if any(each.hung for each in verdict.by_rank) else ""
        if kind and kind != self._said:
            log.info("hang rule: %s", verdict.why)
        self._said = kind


def _newest_step(signals: list[Signals]) -> int | None:
    return max((each.last_step for each in signals if each.last_step is not None), default=None)


def _sample(signals: Signals) -> RankSample:
    return RankSample(
        rank=signals.rank,
        log_s=signals.log_s,
        stack_s=signals.stack_s,
        device_s=signals.device_s,
        communication_s=signals.communication_s,
        phase=_phase(signals.phase),
        log_gap_s=signals.log_gap_s,
        paused=signals.paused,
    )


def _phase(name: str) -> JobPhase:
    try:
        return JobPhase(name)
    except ValueError:  # of an agent that knows more phases: the patient one
        return JobPhase.STARTUP
