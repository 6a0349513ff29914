"""The events that each peer may send: least privilege of the link. An event that is in no list is the controller's own.

Add a new event that comes over the link here; a test requires that none is forgotten.
"""

from everstep.model import events, observations
from everstep.model.events import Event

OF_AGENTS: frozenset[type[Event]] = frozenset(
    {
        events.CheckpointCommitted,
        observations.DigestsReported,
        events.DrillFailed,
        events.EvidenceCollected,
        observations.LinksReported,
        events.MarksReported,
        events.NodeAlerted,
        events.NodeExamined,
        events.NodeInDoubt,
        events.NodeJoined,
        observations.NumbersReported,
        events.ProgressReported,
        events.RankTraced,
        events.RestoreFailed,
        events.StateIncomplete,
        events.SizeFixed,
        observations.RoundReported,
        events.RuntimeFaulted,
        observations.SignalsReported,
        events.SnapshotPersisted,
        events.SnapshotsRefused,
        events.TemplateReported,
        events.UpdateValidated,
        events.WorkerExited,
        events.WorkersFailedToStart,
        events.WorkersStarted,
        events.WorkersStopped,
    }
)
OF_LAUNCHER: frozenset[type[Event]] = frozenset(
    {
        events.CheckpointsFound,
        events.DrillFailed,
        events.NodeAlerted,
        events.NodeLost,
        events.NodeRefused,
        events.NodeSpared,
        events.StopRequested,
        events.StoreOpened,
    }
)
OF_CONTROLLER: frozenset[type[Event]] = frozenset(
    {
        events.AnomalyFound,
        events.ControllerStarted,
        events.Diagnosed,
        events.DrillRequested,
        events.EvidenceRequested,
        events.GroupsLearned,
        events.HangSuspected,
        events.LossNoted,
        events.NodeSilent,
        events.ProposalApproved,
        events.ReplicasAgreed,
        events.RestartRequested,
        events.RunReopened,
        events.RunStarted,
        events.StandstillEnded,
        events.TimerFired,
        events.TraceRequested,
        events.UpdateRequested,
    }
)
"""Never accepted over the link from any peer."""


def objection(role: str, name: str, event: Event) -> str:
    """Why this peer may not say this; "" if it may. Called for every report, so it is two look-ups."""
    if role == "launcher":
        return "" if type(event) in OF_LAUNCHER else f"a launcher may not say {type(event).__name__}"
    if type(event) not in OF_AGENTS:
        return f"an agent may not say {type(event).__name__}"
    if getattr(event, "node", name) != name:
        return f"{name} speaks for another node in {type(event).__name__}"
    return ""
