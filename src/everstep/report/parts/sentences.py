"""A record as one sentence, for timelines; "" when there is nothing worth telling."""

from collections.abc import Callable
from typing import Any

from everstep.analyzer.observations.words import fold
from everstep.analyzer.rank_exit import describe
from everstep.model import actions, events
from everstep.model.record import Record
from everstep.report.parts.units import plural, written_text

STATE_WARNS = "state: "
"""Prefix of messages of `everstep.State`: they say what was done about it, and are no failure of ours by themselves."""


def event_sentence(event: Any) -> str:  # noqa: ANN401  (any event: the table says which are told)
    tell = _EVENTS.get(type(event))
    return tell(event) if tell is not None else ""


def action_sentences(record: Record) -> list[str]:
    """The decisions on this record; the same action for many nodes is listed once."""
    told = (_ACTIONS[type(action)](action) for action in record.actions if type(action) in _ACTIONS)
    return list(dict.fromkeys(told))


def _drill(event: events.DrillRequested) -> str:
    whom = f" {event.rank}" if event.rank is not None else f" {event.node}" if event.node else ""
    how = "".join(
        f", {name} {value:g}" if not isinstance(value, str) else f", {value}" for name, value in event.options.items()
    )
    return f"drill {event.drill} asked for: {event.kind}{whom}{how}"


def _stopped(event: events.WorkersStopped) -> str:
    killed = f", {event.num_killed} needed SIGKILL" if event.num_killed else ""
    held = {step for item in event.held for step in item.steps}
    kept = f"; snapshots held: {fold(held)}" if held else ""
    stuck = "; ".join(exit_.left_behind for exit_ in event.exits if exit_.left_behind)
    left = f"; left behind, as SIGKILL does not end it: {stuck}" if stuck else ""
    return f"{event.node}: no worker of generation {event.generation} is left{killed}{left}{kept}"


_HOWS = {
    "template": "forked from the template",  # of journals before 0.2
    "twin": "from their twins",
    "fresh": "as fresh interpreters",
    "command": "as commands",
}


def _started(event: events.WorkersStarted) -> str:
    hows: dict[str, int] = {}
    for started in event.started:
        hows[started.how] = hows.get(started.how, 0) + 1
    how = ", ".join(f"{number} {_HOWS.get(name, name)}" for name, number in hows.items())
    return f"{event.node}: {plural(len(event.started), 'worker')} of generation {event.generation} started ({how})"


def _joined(event: events.NodeJoined) -> str:
    rack = f", rack {event.rack}" if event.rack else ""
    return f"node {event.node} joined ({event.host}, pid {event.pid}{rack})"


def _controller(event: events.ControllerStarted) -> str:
    torn = f"; {plural(event.torn_bytes, 'byte')} of a torn record cut off the journal" if event.torn_bytes else ""
    return f"controller {event.pid} {'took over' if event.took_over else 'started'}{torn}"


def _restoring(action: actions.StartWorkers) -> str:
    if action.resume_step is None:
        return ""
    where = f" from {action.restore_path}" if action.restore_path else ""
    return f", restoring step {action.resume_step}{where}"


def _faulted(event: events.RuntimeFaulted) -> str:
    if event.where.startswith(STATE_WARNS):
        return f"rank {event.rank}: {event.why}"
    return f"rank {event.rank}: everstep's own {event.where} failed and was left out: {event.why}"


def _incomplete(event: events.StateIncomplete) -> str:
    return f"rank {event.rank} keeps no snapshots, and none is resumed from: {event.why}"


def _unrestored(event: events.RestoreFailed) -> str:
    whence = f"the copy on {event.where}" if event.source == "peer" else event.where or event.source
    return f"rank {event.rank} on {event.node} could not restore step {event.step} from {whence}: {event.why}"


def _persisted(event: events.SnapshotPersisted) -> str:
    if event.why:
        return f"{event.node}: its part of step {event.step} is not in the persistent tier: {event.why}"
    amount = written_text(event.written_bytes, event.total_bytes)
    return f"{event.node}: its part of step {event.step} is in the persistent tier ({amount}, {event.took_s:.1f}s)"


def _committed(event: events.CheckpointCommitted) -> str:
    if event.checkpoint is None:
        return f"step {event.step} could not be committed: {event.why}"
    dropped = f"; dropped: {fold(event.dropped)}" if event.dropped else ""
    return f"checkpoint of step {event.step} can be restored: {event.checkpoint.path}{dropped}"


def _found(event: events.CheckpointsFound) -> str:
    if event.why:
        return f"the persistent tier cannot be read: {event.why}"
    steps = fold(checkpoint.step for checkpoint in event.checkpoints)
    return f"checkpoints found: {steps}" if event.checkpoints else "no checkpoint found"


def _collected(event: events.EvidenceCollected) -> str:
    whole = sum(not each.unavailable for each in event.gathered)
    missing = "; ".join(f"rank {each.rank}: {why}" for each in event.gathered for why in each.unavailable[:2])
    return (
        f"{event.node}: evidence of {plural(len(event.gathered), 'rank')} in {event.took_s:.1f}s, {whole} complete"
        + (f"; missing of {missing[:400]}" if missing else "")
    )


def _traced(event: events.RankTraced) -> str:
    if not event.file:
        return f"{event.node}: no trace of rank {event.rank}: {event.why}"
    return f"{event.node}: rank {event.rank} was traced for {event.seconds:.1f}s: {event.file} in the run directory"


def _examined(event: events.NodeExamined) -> str:
    result = {True: "passed", False: "failed", None: "could not be examined in"}[event.passed]
    return f"{event.node} {result} {event.exam}: {event.why} ({event.took_s:.1f}s)"


def _changed(event: events.UpdateRequested) -> str:
    words = [event.source] if event.source else []
    words += [f"arguments {' '.join(event.args) or 'none'}"] if event.args is not None else []
    words += [f"{name}={value}" for name, value in event.env.items()]
    words += [f"{name}=..." for name in event.variables]
    return ", ".join([*words, *(["urgent"] if event.is_urgent else []), *([event.why] if event.why else [])])


_EVENTS: dict[type, Callable[[Any], str]] = {
    events.RunStarted: lambda e: f"run {e.run} started (everstep {e.everstep_version}, policy {e.policy})",
    events.RunReopened: lambda e: f"the run was started again, attempt {e.attempt}",
    events.ControllerStarted: _controller,
    events.NodeJoined: _joined,
    events.NodeLost: lambda e: f"node {e.node} is lost: {e.reason}",
    events.NodeInDoubt: lambda e: f"node {e.node} was not heard for {e.silent_s:.1f}s, and asks whether it may go on",
    events.NodeSilent: lambda e: f"nothing was heard of node {e.node} for {e.silent_s:.1f}s",
    events.NodeSpared: lambda e: f"node {e.node} is late and not lost, and is left alone: {e.why}",
    events.NodeRefused: lambda e: f"no node to be had: {e.why}",
    events.TemplateReported: lambda e: (
        f"{e.node}: {'a restart would be warm' if e.usable else f'a restart would be cold: {e.why}'}"
    ),
    events.WorkersStarted: _started,
    events.WorkersFailedToStart: lambda e: f"{e.node} could not make its workers: {e.why}",
    events.WorkerExited: lambda e: f"rank {e.exit.rank} on {e.node} {describe(e.exit)}",
    events.WorkersStopped: _stopped,
    events.HangSuspected: lambda e: f"the job stands still: {e.why}",
    events.StandstillEnded: lambda e: f"the job continues after it stood still for {e.lasted_s:.0f} s",
    events.RestartRequested: lambda e: f"a restart was asked for{f' by {e.by}' if e.by else ''}",
    events.TraceRequested: lambda e: f"asked for a trace of rank {e.rank} ({e.request})",
    events.EvidenceRequested: lambda e: f"asked what all ranks are doing ({e.request})",
    events.EvidenceCollected: _collected,
    events.RankTraced: _traced,
    events.Diagnosed: lambda e: f"the evidence says {e.verdict.code}: {e.verdict.sentence}",
    events.NodeExamined: _examined,
    events.ReplicasAgreed: lambda e: f"all replicas held the same after step {e.step}",
    events.RestoreFailed: _unrestored,
    events.SnapshotsRefused: lambda e: f"rank {e.rank} on {e.node} trains without snapshots: {e.why}",
    events.RuntimeFaulted: _faulted,
    events.StateIncomplete: _incomplete,
    events.GroupsLearned: lambda e: f"the job has {plural(len(e.groups), 'parallel group')} that may go as one",
    events.SizeFixed: lambda e: f"rank {e.rank} can go on with {e.world_size} ranks only: {e.why}",
    events.SnapshotPersisted: _persisted,
    events.CheckpointCommitted: _committed,
    events.CheckpointsFound: _found,
    events.TimerFired: lambda _: "",  # what it led to is said
    events.StopRequested: lambda e: f"asked to stop: {e.why}",
    events.DrillRequested: _drill,
    events.DrillFailed: lambda e: f"drill {e.drill} could not be done: {e.why}",
    events.UpdateRequested: lambda e: f"{e.version} asked for{f' by {e.by}' if e.by else ''}: {_changed(e)}",
    events.UpdateValidated: lambda e: f"{e.node}: {e.version} {'can' if e.is_good else 'cannot'} start: {e.why}",
    events.ProposalApproved: lambda e: f"{e.incident} approved{f' by {e.by}' if e.by else ''}",
}

_ACTIONS: dict[type, Callable[[Any], str]] = {
    actions.Concluded: lambda a: f"concluded {a.verdict.code}: {a.decision.chosen} (rule {a.decision.rule})",
    actions.StartWorkers: lambda a: f"starting generation {a.generation}{_restoring(a)}",
    actions.TrustStep: lambda a: f"step {a.step} is kept: all replicas agreed after it",
    actions.PlaceBackups: lambda _: "copying snapshots to other nodes from now on",
    actions.PersistSnapshot: lambda a: f"step {a.step} goes to {a.root}: {a.why}",
    actions.CollectEvidence: lambda _: "asking for stacks, process states and flight records of all ranks",
    actions.TraceRank: lambda a: f"{a.node} traces rank {a.rank} for {a.seconds:g} s",
    actions.ExamineNode: lambda a: f"examination {a.exam} of machines: {a.kind}",
    actions.UpdateConcluded: lambda a: f"{a.version} {a.stage}{f', back to {a.back_to}' if a.back_to else ''}: {a.why}",
    actions.Resized: lambda a: f"{a.num_before} nodes become {a.num_slots} ({a.world_size} ranks): {a.why}",
    actions.StopWorkers: lambda a: f"ending the workers of generation {a.generation}",
    actions.AcquireNode: lambda a: f"asking for a node: {a.why}",
    actions.IncidentClosed: lambda a: f"{a.incident} {a.outcome}: {a.why}",
    actions.Finish: lambda a: f"the run {a.outcome.replace('-', ' ')}, code {a.exit_code}: {a.why}",
}
