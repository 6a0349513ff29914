"""The one table of metrics: name, kind, labels, meaning. Code, docs, alert rules and dashboards are held to it.

Names follow Prometheus' rules: base units, `_total`, ratios from 0 to 1. No rank, incident, pid or message is a label:
their number has no bound. A node is one only where a person would go to that machine.
"""

import enum

import msgspec

PAGE = "docs/metrics.md"


class Kind(enum.StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"
    INFO = "info"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str

    @property
    def help(self) -> str:
        return f"{self.says} {PAGE}#{self.name}"


def _gauge(name: str, labels: str, says: str) -> Family:
    return Family(name=name, kind=Kind.GAUGE, labels=tuple(labels.split()), says=says)


def _counter(name: str, labels: str, says: str) -> Family:
    return Family(name=name, kind=Kind.COUNTER, labels=tuple(labels.split()), says=says)


def _histogram(name: str, labels: str, says: str) -> Family:
    return Family(name=name, kind=Kind.HISTOGRAM, labels=tuple(labels.split()), says=says)


_ALL = (
    Family(name="everstep_build_info", kind=Kind.INFO, labels=("version",), says="Always 1."),
    _gauge("everstep_run_state", "run state", "1 for the state that the run is in, 0 for all others."),
    _gauge("everstep_run_step", "run", "Newest step that every rank has done."),
    _gauge("everstep_run_last_step_timestamp_seconds", "run", "When that step was done."),
    _histogram("everstep_step_duration_seconds", "run", "Mean seconds per step of a rank between two of its reports."),
    _counter("everstep_run_seconds_total", "run bucket", "Seconds of all ranks, by where they went."),
    _gauge("everstep_goodput_ratio", "run window", "Productive seconds / (wall x ranks)."),
    _gauge("everstep_generation", "run", "Number of the worker group's formation."),
    _counter("everstep_restarts_total", "run cause", "Restarts of the workers, by who is blamed."),
    _counter("everstep_incidents_total", "run code", "Incidents that are over, by code of the verdict."),
    _gauge("everstep_incidents_open", "run", "Incidents that are not over."),
    _histogram("everstep_recovery_phase_duration_seconds", "run phase", "How long the phases of recoveries took."),
    _counter("everstep_rollback_steps_total", "run", "Completed steps that had to be done again."),
    _gauge("everstep_checkpoint_step", "run tier", "Newest step that can be restored from this tier."),
    _gauge("everstep_checkpoint_trusted_step", "run", "Newest step after which all replicas held the same."),
    _gauge("everstep_checkpoint_age_seconds", "run tier", "Age of what could be restored from this tier."),
    _gauge("everstep_checkpoint_timestamp_seconds", "run", "When the newest checkpoint on disk was written."),
    _counter("everstep_checkpoint_blocked_seconds_total", "run", "Seconds that ranks stood still for snapshots."),
    _gauge("everstep_steps_lost_if_node_dies", "run", "Steps to do again if the worst node died now."),
    _gauge("everstep_nodes", "run role health", "Nodes by role and health."),
    _gauge("everstep_node_quarantined", "node code", "1 for a node that was put out of the run for a verdict."),
    _gauge("everstep_heartbeat_age_seconds", "node", "Since anything was heard of this node's agent."),
    _gauge("everstep_node_step_time_ratio", "node", "Its slowest rank's own time per step / median of all ranks."),
    _gauge("everstep_probe_up", "probe node", "1: this sense of the node works; 0: not; absent: no such device."),
    _counter("everstep_stale_messages_total", "kind", "Messages that were dropped or turned away."),
    _counter("everstep_worker_errors_total", "kind", "Faults of everstep's own inside ranks, swallowed."),
    _counter("everstep_notices_total", "receiver outcome", "Notices to people, by what became of them."),
    _gauge("everstep_journal_append_seconds", "", "The last append to the journal, disk and all."),
    _gauge("everstep_journal_writable", "", "0 while the journal cannot be written and nothing can be decided."),
    _gauge("everstep_controller_loop_lag_seconds", "", "How late the controller's loop gets round to a timer."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
