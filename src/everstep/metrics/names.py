"""The one table of metrics: name, kind, labels, meaning. Code, docs, alert rules and dashboards are held to it.

Names follow Prometheus' rules: base units, `_total`, ratios from 0 to 1. No rank, incident, pid or message is a label:
their number has no bound. A node is a label only if an operator would go to that machine.
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
    _gauge("everstep_run_last_step_timestamp_seconds", "run", "Time at which that step was done."),
    _histogram("everstep_step_duration_seconds", "run", "Mean seconds per step of a rank between two of its reports."),
    _counter("everstep_run_seconds_total", "run bucket", "Seconds of all ranks, by bucket."),
    _gauge("everstep_goodput_ratio", "run window", "Productive seconds / (wall x ranks)."),
    _gauge("everstep_generation", "run", "Generation of the worker group."),
    _counter("everstep_restarts_total", "run cause", "Restarts of the workers, by blamed party."),
    _counter("everstep_incidents_total", "run code", "Closed incidents, by code of the verdict."),
    _gauge("everstep_incidents_open", "run", "Open incidents."),
    _histogram("everstep_recovery_phase_duration_seconds", "run phase", "Duration of the phases of recoveries."),
    _counter("everstep_rollback_steps_total", "run", "Completed steps that had to be repeated."),
    _gauge("everstep_checkpoint_step", "run tier", "Newest step that can be restored from this tier."),
    _gauge("everstep_checkpoint_trusted_step", "run", "Newest step after which all replicas had the same state."),
    _gauge("everstep_checkpoint_age_seconds", "run tier", "Age of the state that can be restored from this tier."),
    _gauge("everstep_checkpoint_timestamp_seconds", "run", "Time of the newest checkpoint on disk."),
    _counter("everstep_checkpoint_blocked_seconds_total", "run", "Seconds that snapshots blocked ranks."),
    _gauge("everstep_steps_lost_if_node_dies", "run", "Steps to repeat if the worst node died now."),
    _gauge("everstep_nodes", "run role health", "Nodes by role and health."),
    _gauge("everstep_node_quarantined", "node code", "1 for a node that was evicted for a verdict."),
    _gauge("everstep_heartbeat_age_seconds", "node", "Time since the last message of this node's agent."),
    _gauge("everstep_node_step_time_ratio", "node", "Its slowest rank's own time per step / median of all ranks."),
    _gauge("everstep_probe_up", "probe node", "1: this sense works; 0: it does not; absent: no such device."),
    _counter("everstep_stale_messages_total", "kind", "Messages that were dropped or rejected."),
    _counter("everstep_worker_errors_total", "kind", "Errors of Everstep itself inside ranks, caught."),
    _counter("everstep_notices_total", "receiver outcome", "Notices to people, by outcome."),
    _gauge("everstep_journal_append_seconds", "", "Duration of the last append to the journal, including the disk."),
    _gauge("everstep_journal_writable", "", "0 while the journal is not writable and no decision is possible."),
    _gauge("everstep_controller_loop_lag_seconds", "", "Delay of the controller's loop at its timers."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
