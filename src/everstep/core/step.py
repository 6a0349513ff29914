"""`step`: the one way in. A literal table of event types, and the checks that are the same for all of them."""

from collections.abc import Callable
from typing import Any

from everstep.core.faults import alerts, anomalies, damage, drills, hangs, incidents, late, membership, tracing
from everstep.core.reissue import reissue
from everstep.core.restore import backups, flaws, persistence
from everstep.core.run import elastic, ending, forming, progress, standstill, updates
from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.state.timers import TimerKind, timer_of
from everstep.core.state.turn import Turn
from everstep.model import events, observations
from everstep.model.actions import Action
from everstep.model.events import Event
from everstep.model.versions import OPEN

__all__ = ["reissue", "step"]

Handler = Callable[[Turn, Any], None]


def _on_timer_fired(turn: Turn, event: events.TimerFired) -> None:
    """Timers are facts about time; each handler decides whether its timer still matters."""
    timer = timer_of(event.key)
    if timer is None or not turn.has_timer(timer):
        return
    due_at = turn.state.timers[event.key]
    turn.drop_timer(timer)
    TIMER_HANDLERS[timer.kind](turn, timer.subject, due_at)


def _on_update_due(turn: Turn, version: str, due_at: float) -> None:
    """Nothing more: `updates.look` sees after every event that the version is due."""


TIMER_HANDLERS: dict[TimerKind, Callable[[Turn, str, float], None]] = {
    TimerKind.NODE: forming.on_node_timer,
    TimerKind.STANDBY: membership.on_standby_timer,
    TimerKind.BACKOFF: incidents.on_backoff_timer,
    TimerKind.START: incidents.on_start_timer,
    TimerKind.RENDEZVOUS: incidents.on_rendezvous_timer,
    TimerKind.LATE: progress.on_late_timer,
    TimerKind.RECOVERED: progress.on_recovered_timer,
    TimerKind.SETTLE: incidents.on_settle_timer,
    TimerKind.EVIDENCE: hangs.on_evidence_timer,
    TimerKind.DIAGNOSIS: hangs.on_diagnosis_timer,
    TimerKind.ACT: hangs.on_standstill_timer,
    TimerKind.EVICT: incidents.on_evict_timer,
    TimerKind.EXAM: incidents.on_exam_timer,
    TimerKind.APPROVAL: incidents.on_approval_timer,
    TimerKind.UPDATE_CHECK: updates.on_check_timer,
    TimerKind.UPDATE_DUE: _on_update_due,
    TimerKind.SHRINK: elastic.on_shrink_timer,
    TimerKind.LEAST: elastic.on_least_timer,
    TimerKind.GROW: elastic.on_grow_timer,
    TimerKind.PERSIST_NEXT: persistence.on_next_timer,
    TimerKind.PERSIST_LIMIT: persistence.on_limit_timer,
}
"""Each handler takes the turn, the subject of the timer and when it was due. It may be of a generation or an incident
that is over; then it does nothing."""

HANDLERS: dict[type, Handler] = {
    events.RunStarted: forming.on_run_started,
    events.RunReopened: forming.on_run_reopened,
    events.NodeJoined: membership.on_node_joined,
    events.NodeLost: membership.on_node_lost,
    events.NodeSilent: membership.on_node_silent,
    events.NodeSpared: membership.on_node_spared,
    events.NodeInDoubt: membership.on_node_in_doubt,
    events.NodeRefused: membership.on_node_refused,
    events.StoreOpened: forming.on_store_opened,
    events.WorkersStarted: progress.on_workers_started,
    events.WorkersFailedToStart: incidents.on_workers_failed_to_start,
    events.MarksReported: progress.on_accounts,
    events.ProgressReported: progress.on_accounts,
    events.HangSuspected: hangs.on_hang_suspected,
    events.StandstillEnded: hangs.on_standstill_ended,
    events.RestartRequested: hangs.on_restart_requested,
    events.EvidenceRequested: hangs.on_evidence_requested,
    events.TraceRequested: tracing.on_trace_requested,
    events.EvidenceCollected: hangs.on_evidence_collected,
    events.Diagnosed: hangs.on_diagnosed,
    events.AnomalyFound: anomalies.on_anomaly_found,
    events.NodeAlerted: alerts.on_node_alerted,
    events.ReplicasAgreed: persistence.on_replicas_agreed,
    events.GroupsLearned: backups.on_groups_learned,
    events.RestoreFailed: damage.on_restore_failed,
    events.StateIncomplete: flaws.on_state_incomplete,
    events.SizeFixed: elastic.on_size_fixed,
    events.SnapshotPersisted: persistence.on_snapshot_persisted,
    events.CheckpointCommitted: persistence.on_checkpoint_committed,
    events.CheckpointsFound: forming.on_checkpoints_found,
    events.NodeExamined: incidents.on_node_examined,
    events.WorkerExited: incidents.on_worker_exited,
    events.WorkersStopped: incidents.on_workers_stopped,
    events.TimerFired: _on_timer_fired,
    events.StopRequested: ending.on_stop_requested,
    events.DrillRequested: drills.on_drill_requested,
    events.DrillFailed: drills.on_drill_failed,
    events.ProposalApproved: incidents.on_proposal_approved,
    events.UpdateRequested: updates.on_update_requested,
    events.UpdateValidated: updates.on_update_validated,
}

ONLY_ON_RECORD = (
    events.ControllerStarted,
    *observations.UNRECORDED,
    events.TemplateReported,
    events.SnapshotsRefused,
    events.RuntimeFaulted,
    events.LossNoted,
    events.RankTraced,
)
"""Facts that the folds of the journal show and that change no decision."""


_FROM_ANY_NODE = (
    events.NodeLost,
    events.NodeSilent,
    events.NodeSpared,
    events.NodeInDoubt,
    events.NodeAlerted,
    events.NodeExamined,
    events.DrillRequested,
    events.UpdateValidated,
)
"""Also reported by, or about, nodes that hold no slot."""


def step(state: State, event: Event, policy: Policy) -> tuple[State, list[Action]]:
    """Next state, and what the shell must do. Same inputs, same outputs; never raises on any sequence of events."""
    if isinstance(event, ONLY_ON_RECORD):
        return state, []
    if state.phase is Phase.NEW and not isinstance(event, events.RunStarted):
        return state, []
    if state.is_over:
        return state, []
    turn = Turn(state, policy, event.at)
    if _is_stale(state, event):
        turn.set(stale=state.stale + 1)
        return turn.state, []
    HANDLERS[type(event)](turn, event)
    _follow_up(turn)
    return turn.state, turn.actions


def _follow_up(turn: Turn) -> None:
    """Carry out what follows from the state as it is now, whatever has happened."""
    if turn.state.phase is Phase.SAVING:
        ending.finish_if_saved(turn)
    late.forget_old(turn)
    late.act(turn)
    if turn.state.unjudged or turn.state.deferred:
        alerts.judge_waiting(turn)
    if any(candidate.stage in OPEN for candidate in turn.state.candidates):
        updates.look(turn)
    if turn.spec.is_elastic:
        elastic.look(turn)
    if turn.state.standstill is not None and turn.state.phase is not Phase.RUNNING:
        outcome = "superseded" if turn.state.ending is None else "stopped"
        standstill.close(turn, outcome, "the generation that stood still is over")


def _is_stale(state: State, event: Event) -> bool:
    """A worker's report of another generation, or of a node that is out: fenced off."""
    generation = getattr(event, "generation", None)
    if isinstance(event, events.StoreOpened | events.NodeJoined | events.CheckpointCommitted):
        return False  # a checkpoint outlives who committed it
    if generation is not None and generation != state.generation:
        return True
    node = getattr(event, "node", None)
    if isinstance(event, _FROM_ANY_NODE) or node is None:
        return False
    return not state.is_active(node)
