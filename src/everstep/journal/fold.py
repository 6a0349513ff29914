"""Records to a `RunView`, one after the other. Pure; keeps no record but those that belong to an incident.

Called by the reading verbs (through `load`) and by followers of a live journal. It trusts what is recorded and decides
nothing: a decision that it would have to guess is missing from the journal, not from here.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from everstep.journal.format import Entry, UnknownRecord
from everstep.journal.kept import note
from everstep.journal.view import (
    ControllerStart,
    DrillView,
    Gap,
    GenerationView,
    IncidentView,
    NodeView,
    RefusedView,
    RunView,
    Staged,
    UpdateView,
)
from everstep.model import actions, events
from everstep.model.facts import DRAINED, RankAccount
from everstep.model.record import Header, Record
from everstep.model.verdict import DRAIN_RULE
from everstep.model.versions import FIRST, Stage, Version

MAX_STEP_TIMES = 2000
"""Enough for an hour of reports every two seconds; older ones do not describe the job as it is."""

_GENERATION_GOES_ON = ("dismissed", "observed", "passed")
"""Outcomes of an incident that did not end its generation: another one will."""

_PERIODIC = (events.ProgressReported, events.MarksReported, events.LossNoted)


class Fold:
    def __init__(self, header: Header) -> None:
        self.view = RunView(
            run=header.run,
            everstep_version=header.everstep_version,
            policy=header.policy,
        )

    def add_live(self, event: events.ProgressReported) -> None:
        """Progress of the current generation that is not on record (yet)."""
        view, generation = self.view, _generation(self.view, event.generation)
        if view.is_over or generation is None or generation is not view.generation:
            return
        if event.at > generation.reported_at.get(event.node, 0.0):
            view.last_at = max(event.at, view.last_at or 0.0)
            _take_accounts(view, generation, event.node, event.accounts, event.at)

    def add(self, entry: Entry) -> None:
        view = self.view
        previous_at = view.last_at
        view.last_at = entry.at if previous_at is None else max(previous_at, entry.at)
        view.last_seq = entry.seq
        if isinstance(entry, UnknownRecord):
            view.num_unknown[entry.type] = view.num_unknown.get(entry.type, 0) + 1
            return
        if isinstance(entry.event, events.RunReopened) and previous_at is not None:
            view.gaps.append(Gap(begin=previous_at, end=max(previous_at, entry.event.at)))
        handle = _EVENTS.get(type(entry.event))
        if handle is not None:
            handle(view, entry, entry.event)
        for action in entry.actions:
            act = _ACTIONS.get(type(action))
            if act is not None:
                act(view, entry, action)
        note(view.kept, entry)
        _keep_for_incident(view, entry)


def fold(
    header: Header, entries: Iterable[Entry], torn_bytes: int = 0, live: Iterable[events.ProgressReported] = ()
) -> RunView:
    folding = Fold(header)
    for entry in entries:
        folding.add(entry)
    for event in live:
        folding.add_live(event)
    folding.view.torn_bytes = torn_bytes
    return folding.view


def _keep_for_incident(view: RunView, record: Record) -> None:
    touched = [a.incident for a in record.actions if isinstance(a, actions.IncidentOpened | actions.IncidentClosed)]
    incidents = dict.fromkeys([*touched, *([view.open_incident] if view.open_incident else [])])
    for incident in incidents:
        if incident in view.incidents and (incident in touched or not isinstance(record.event, _PERIODIC)):
            view.incidents[incident].records.append(record)


def _generation(view: RunView, number: int) -> GenerationView | None:
    return next((g for g in reversed(view.generations) if g.number == number), None)


def _run_started(view: RunView, record: Record, event: events.RunStarted) -> None:
    view.spec = event.spec
    view.started_at = event.at


def _run_reopened(view: RunView, record: Record, event: events.RunReopened) -> None:
    view.attempt = event.attempt
    view.stop_requested = view.finish = view.finished_at = None
    for node in view.nodes.values():
        node.slot = None


def _resized(view: RunView, record: Record, action: actions.Resized) -> None:
    if view.spec is not None:
        view.spec = msgspec.structs.replace(view.spec, num_slots=action.num_slots)
    for node in view.nodes.values():
        node.slot = None  # those that hold one get their ranks next


def _controller_started(view: RunView, record: Record, event: events.ControllerStarted) -> None:
    start = ControllerStart(
        at=event.at, pid=event.pid, took_over=event.took_over, torn_bytes=event.torn_bytes, attempt=view.attempt
    )
    view.controllers.append(start)


def _node_joined(view: RunView, record: Record, event: events.NodeJoined) -> None:
    known = view.nodes.get(event.node)
    if known is None:
        known = NodeView(node=event.node, host=event.host, pid=event.pid, joined_at=event.at)
        view.nodes[event.node] = known
    known.rack = event.rack


def _node_lost(view: RunView, record: Record, event: events.NodeLost) -> None:
    node = view.nodes.get(event.node)
    if node is None:
        return
    node.slot = None
    if node.lost is None:  # the engine may report the end once more, and later
        node.lost = event
        view.losses.append(event)


def _node_alerted(view: RunView, record: Record, event: events.NodeAlerted) -> None:
    node = view.nodes.get(event.node)
    for alert in event.alerts:
        if node is not None and alert.code == DRAINED:
            node.drained = alert.sentence if alert.severity == "error" else ""


def _template_reported(view: RunView, record: Record, event: events.TemplateReported) -> None:
    node = view.nodes.get(event.node)
    if node is not None:
        node.template = event


def _workers_started(view: RunView, record: Record, event: events.WorkersStarted) -> None:
    generation = _generation(view, event.generation)
    if generation is not None:
        for started in event.started:
            generation.started[started.rank] = started
            if generation.node_of.get(started.rank) != event.node:
                generation.node_of.place(started.rank, 1, event.node)


def _accounts(view: RunView, record: Record, event: events.MarksReported | events.ProgressReported) -> None:
    generation = _generation(view, event.generation)
    if generation is not None:
        _take_accounts(view, generation, event.node, event.accounts, record.at)


def _worker_exited(view: RunView, record: Record, event: events.WorkerExited) -> None:
    generation = _generation(view, event.generation)
    if generation is not None:
        generation.exits.setdefault(event.exit.rank, event.exit)
        if event.account is not None:
            _take_accounts(view, generation, event.node, (event.account,), record.at)


def _workers_stopped(view: RunView, record: Record, event: events.WorkersStopped) -> None:
    generation = _generation(view, event.generation)
    if generation is None:
        return
    for exit_ in event.exits:
        generation.exits.setdefault(exit_.rank, exit_)
    _take_accounts(view, generation, event.node, event.accounts, record.at)
    generation.stopped_at = record.at
    incident = view.incident
    if incident is not None and incident.next_generation is None:
        incident.stopped_at = record.at


def _take_accounts(
    view: RunView, generation: GenerationView, node: str, accounts: tuple[RankAccount, ...], at: float
) -> None:
    slowest_s = 0.0
    for account in accounts:
        before = generation.accounts.get(account.rank)
        if before is not None and _is_older(account, before):
            continue  # arrived late
        generation.accounts[account.rank] = account
        step_s = _step_s(before, account)
        if account is accounts[0]:
            known = None if before is None else before.last_step_at
            since = account.first_step_at if known is None else known
            view.pace.note_since(None if since is None else max(since, generation.begun_at), at, step_s)
        view.pace.note(at, step_s)
        slowest_s = max(slowest_s, step_s)
    if accounts:
        generation.reported_at[node] = at
    if slowest_s > 0.0:
        view.step_times.append((at, slowest_s))
        if len(view.step_times) >= 2 * MAX_STEP_TIMES:
            del view.step_times[:MAX_STEP_TIMES]


def _is_older(account: RankAccount, known: RankAccount) -> bool:
    return known.last_step is not None and (account.last_step is None or account.last_step < known.last_step)


def _step_s(before: RankAccount | None, after: RankAccount) -> float:
    """Seconds per step between two accounts of a rank, or within the first one; 0 when there is nothing to compare."""
    if after.last_step is None or after.last_step_at is None or after.first_step is None:
        return 0.0
    step, at = after.first_step, after.first_step_at
    if before is not None and before.last_step is not None:
        step, at = before.last_step, before.last_step_at
    if at is None or after.last_step <= step:
        return 0.0
    return max(0.0, after.last_step_at - at) / (after.last_step - step)


def _snapshots_refused(view: RunView, record: Record, event: events.SnapshotsRefused) -> None:
    view.snapshots_refused.append(event)


def _state_incomplete(view: RunView, record: Record, event: events.StateIncomplete) -> None:
    view.incomplete = event


def _runtime_faulted(view: RunView, record: Record, event: events.RuntimeFaulted) -> None:
    view.runtime_faults.append(event)


def _loss_noted(view: RunView, record: Record, event: events.LossNoted) -> None:
    view.loss.note(event.generation, event.rank, event.points)


def _stop_requested(view: RunView, record: Record, event: events.StopRequested) -> None:
    view.stop_requested = event


def _drill_requested(view: RunView, record: Record, event: events.DrillRequested) -> None:
    view.drills[event.drill] = DrillView(drill=event.drill, kind=event.kind, at=event.at, record=record)


def _drill_failed(view: RunView, record: Record, event: events.DrillFailed) -> None:
    if event.drill in view.drills:
        view.drills[event.drill].failed = event.why


def _approved(view: RunView, record: Record, event: events.ProposalApproved) -> None:
    incident = view.incidents.get(event.incident)
    if incident is not None and incident.is_open:
        incident.approved_at = event.at


def _start_workers(view: RunView, record: Record, action: actions.StartWorkers) -> None:
    generation = _generation(view, action.generation)
    if generation is None:
        generation = GenerationView(
            number=action.generation, begun_at=record.at, seq=record.seq, resume_step=action.resume_step, why=action.why
        )
        generation.restores_from = action.restore_path
        generation.version = FIRST.id if action.version is None else action.version.id
        _note_first_run(view, generation)
        view.generations.append(generation)
        incident = view.incident
        if incident is not None:
            incident.next_generation = action.generation
            if incident.decision is None or incident.decision.rule != DRAIN_RULE:
                view.restarts.append(record.at)
    generation.node_of.place(action.first_rank, action.num_ranks, action.node)
    before = view.nodes.get(view.holders.get(action.slot, ""))
    if before is not None and before.slot == action.slot:
        before.slot = None
    if action.node in view.nodes:
        view.nodes[action.node].slot = action.slot
        view.holders[action.slot] = action.node


def _update_requested(view: RunView, record: Record, event: events.UpdateRequested) -> None:
    version = Version(
        id=event.version,
        source=event.source,
        code=event.code,
        root=event.root,
        args=event.args,
        env=event.env,
        variables=event.variables,
        is_urgent=event.is_urgent,
        by=event.by,
        why=event.why,
        at=event.at,
    )
    view.updates.setdefault(event.version, UpdateView(version=version, asked_at=event.at))


def _update_concluded(view: RunView, record: Record, action: actions.UpdateConcluded) -> None:
    update = view.updates.get(action.version)
    if update is None:
        return
    update.history.append(Staged(at=record.at, seq=record.seq, stage=action.stage, why=action.why))
    update.stage, update.back_to = action.stage, action.back_to or update.back_to
    generation, incident = view.generation, view.incident
    if action.stage is Stage.RUNNING and generation is not None:
        update.incident = None if incident is None or incident.next_generation is not None else incident.id
        fault_at = incident.fault_at if incident is not None and update.incident is not None else None
        update.interrupted_at = generation.stop_asked_at if fault_at is None else fault_at
        update.best_step = generation.last_step if generation.counts_own_steps else None


def _note_first_run(view: RunView, generation: GenerationView) -> None:
    update = view.updates.get(generation.version)
    if update is not None and update.generation is None:
        update.generation = generation.number


def _stop_workers(view: RunView, record: Record, action: actions.StopWorkers) -> None:
    generation = _generation(view, action.generation)
    if generation is not None and generation.stop_asked_at is None:
        generation.stop_asked_at = record.at


def _incident_opened(view: RunView, record: Record, action: actions.IncidentOpened) -> None:
    incident = IncidentView(
        id=action.incident, opened_at=record.at, seq=record.seq, generation=record.gen, drill=action.drill
    )
    if action.drill in view.drills:
        incident.records.append(view.drills[action.drill].record)
    view.incidents[action.incident] = incident
    view.open_incident = action.incident
    generation = view.generation
    if generation is not None and generation.incident is None:
        generation.incident = action.incident


def _concluded(view: RunView, record: Record, action: actions.Concluded) -> None:
    incident = view.incidents.get(action.incident)
    if incident is None:
        return
    incident.verdict, incident.decision = action.verdict, action.decision
    incident.concluded_at = record.at
    if incident.decided_at is None:
        incident.decided_at = record.at


def _trace_rank(view: RunView, record: Record, action: actions.TraceRank) -> None:
    incident = view.incidents.get(action.incident)
    if incident is not None:
        incident.trace_asked = action


def _rank_traced(view: RunView, record: Record, event: events.RankTraced) -> None:
    """Take the trace of the node that was asked, and of no other."""
    incident = view.incidents.get(event.incident)
    asked = None if incident is None else incident.trace_asked
    if incident is None or asked is None or incident.trace is not None:
        return
    if (event.node, event.rank, event.generation) == (asked.node, asked.rank, asked.generation):
        incident.trace = event


def _refused(view: RunView, record: Record, action: actions.Refused) -> None:
    refused = RefusedView(at=record.at, seq=record.seq, what=action.what, why=action.why, incident=action.incident)
    view.refused.append(refused)
    incident = view.incidents.get(action.incident) if action.incident else view.incident
    if incident is not None and incident.is_open:
        incident.refused.append(refused)


def _incident_closed(view: RunView, record: Record, action: actions.IncidentClosed) -> None:
    incident = view.incidents.get(action.incident)
    if incident is None:
        return
    incident.closed_at, incident.outcome, incident.close_why = record.at, action.outcome, action.why
    incident.recovered_at, incident.lost_steps = action.recovered_at, action.lost_steps
    incident.resumed_step = action.resumed_step
    if view.open_incident == action.incident:
        view.open_incident = None
    generation = _generation(view, incident.generation)
    goes_on = action.outcome in _GENERATION_GOES_ON or (action.outcome == "superseded" and incident.is_left_alone)
    if goes_on and generation is not None and generation.incident == incident.id:
        generation.incident = None


def _finish(view: RunView, record: Record, action: actions.Finish) -> None:
    view.finish, view.finished_at = action, record.at


_Handler = Callable[[RunView, Record, Any], None]

_EVENTS: dict[type, _Handler] = {
    events.RunStarted: _run_started,
    events.RunReopened: _run_reopened,
    events.ControllerStarted: _controller_started,
    events.NodeJoined: _node_joined,
    events.NodeLost: _node_lost,
    events.NodeAlerted: _node_alerted,
    events.TemplateReported: _template_reported,
    events.WorkersStarted: _workers_started,
    events.MarksReported: _accounts,
    events.ProgressReported: _accounts,
    events.WorkerExited: _worker_exited,
    events.WorkersStopped: _workers_stopped,
    events.RankTraced: _rank_traced,
    events.SnapshotsRefused: _snapshots_refused,
    events.RuntimeFaulted: _runtime_faulted,
    events.StateIncomplete: _state_incomplete,
    events.LossNoted: _loss_noted,
    events.StopRequested: _stop_requested,
    events.DrillRequested: _drill_requested,
    events.DrillFailed: _drill_failed,
    events.ProposalApproved: _approved,
    events.UpdateRequested: _update_requested,
}

_ACTIONS: dict[type, _Handler] = {
    actions.StartWorkers: _start_workers,
    actions.StopWorkers: _stop_workers,
    actions.UpdateConcluded: _update_concluded,
    actions.Resized: _resized,
    actions.IncidentOpened: _incident_opened,
    actions.Concluded: _concluded,
    actions.TraceRank: _trace_rank,
    actions.Refused: _refused,
    actions.IncidentClosed: _incident_closed,
    actions.Finish: _finish,
}
