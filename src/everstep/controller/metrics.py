"""/metrics: Prometheus text. A series that is not known is absent, never 0. Pure: a view of the run to text.

Names follow docs/api.md. No rank, incident or message text is a label: their number has no bound.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from everstep.goodput.figures import Goodput
from everstep.journal.view import IncidentView, RunStatus, RunView
from everstep.report import checkpoints, status
from everstep.version import __version__

Labels = dict[str, str]
Sample = tuple[Labels, float]


class Ourselves(msgspec.Struct, frozen=True, kw_only=True):
    """Figures about the controller, which no journal has."""

    dropped: dict[str, int]  # messages of peers, by kind
    roles: dict[str, int]  # nodes by role
    append_seconds: float | None = None
    lag_seconds: float | None = None


def render_metrics(view: RunView, goodput: Goodput | None, ourselves: Ourselves) -> str:
    run = {"run": view.run}
    families = [_gauge("everstep_build_info", "Always 1.", [({"version": __version__}, 1)])]
    families += _run(view, run)
    families += _incidents(view, run)
    families += _checkpoints(view, run)
    if goodput is not None:
        families += _goodput(goodput, run)
    roles = [({**run, "role": role}, number) for role, number in ourselves.roles.items()]
    families.append(_gauge("everstep_nodes", "Nodes by role.", roles))
    families += _ourselves(ourselves)
    return "".join(families)


def _run(view: RunView, run: Labels) -> list[str]:
    states = [({**run, "state": str(status)}, float(status is view.status)) for status in RunStatus]
    generation, stepped = view.generation, view.stepped
    step = None if stepped is None else stepped.last_step
    step_at = None if stepped is None else stepped.last_step_at
    number = None if generation is None else generation.number
    return [
        _gauge("everstep_run_state", "1 for the state that the run is in.", states),
        _gauge("everstep_run_step", "Newest step that every rank has done.", _one(run, step)),
        _gauge("everstep_run_last_step_timestamp_seconds", "When it was done.", _one(run, step_at)),
        _gauge("everstep_generation", "Formation of the worker group.", _one(run, number)),
    ]


def _incidents(view: RunView, run: Labels) -> list[str]:
    closed = [incident for incident in view.incidents.values() if not incident.is_open]
    codes = Counter(_code(incident) for incident in closed)
    restarted = [incident for incident in view.incidents.values() if incident.next_generation is not None]
    causes = Counter(_cause(incident) for incident in restarted)
    faults = Counter(fault.where.partition(":")[0] for fault in view.runtime_faults)
    lost = [incident.lost_steps for incident in closed if incident.lost_steps is not None]
    return [
        _counter("everstep_restarts_total", "Restarts of the workers, by who is blamed.", _by(run, "cause", causes)),
        _counter("everstep_incidents_total", "Incidents over, by code of the verdict.", _by(run, "code", codes)),
        _gauge("everstep_incidents_open", "Incidents not over.", _one(run, float(view.open_incident is not None))),
        _counter(
            "everstep_rollback_steps_total",
            "Completed steps that had to be done again.",
            _one(run, sum(lost) if lost else None),
        ),
        _counter("everstep_worker_errors_total", "Our own faults in workers, swallowed.", _by({}, "kind", faults)),
    ]


def _checkpoints(view: RunView, run: Labels) -> list[str]:
    copies, held = checkpoints.view(view), status.at_risk(view)[0]
    newest = copies.checkpoint
    tiers = {"memory": held, "peer": copies.backup_step, "disk": None if newest is None else newest.step}
    known = [({**run, "tier": tier}, float(step)) for tier, step in tiers.items() if step is not None]
    at = None if newest is None else newest.at
    generation = view.generation
    stalls = [a.stall_s for a in generation.accounts.values()] if generation is not None else []
    return [
        _gauge("everstep_checkpoint_step", "Newest step that can be restored from this tier.", known),
        _gauge("everstep_checkpoint_trusted_step", "Newest trusted step.", _one(run, copies.trusted_step)),
        _gauge("everstep_checkpoint_timestamp_seconds", "When the newest one on disk was written.", _one(run, at)),
        _gauge(
            "everstep_steps_lost_if_node_dies",
            "Steps to do again if the worst node died now.",
            _one(run, copies.if_node_dies.steps),
        ),
        _gauge(
            "everstep_checkpoint_blocked_seconds",
            "Seconds that training waited for snapshots in this generation, of the rank that waited most.",
            _one(run, max(stalls, default=None)),
        ),
    ]


def _goodput(goodput: Goodput, run: Labels) -> list[str]:
    seconds = [({**run, "bucket": str(bucket)}, value) for bucket, value in goodput.seconds.items()]
    ratios = [*_one({**run, "window": "run"}, goodput.ettr), *_one({**run, "window": "1h"}, goodput.window_ettr)]
    return [
        _counter("everstep_run_seconds_total", "Seconds of all ranks, by where they went.", seconds),
        _gauge("everstep_goodput_ratio", "Productive seconds / (wall x ranks).", ratios),
    ]


def _ourselves(ourselves: Ourselves) -> list[str]:
    return [
        _counter("everstep_stale_messages_total", "Messages dropped.", _by({}, "kind", ourselves.dropped)),
        _gauge("everstep_journal_append_seconds", "The last append, disk and all.", _one({}, ourselves.append_seconds)),
        _gauge("everstep_controller_loop_lag_seconds", "How late a timer fired.", _one({}, ourselves.lag_seconds)),
    ]


def _code(incident: IncidentView) -> str:
    return incident.verdict.code if incident.verdict is not None else "none"


def _cause(incident: IncidentView) -> str:
    return str(incident.verdict.blame) if incident.verdict is not None else "unknown"


def _one(labels: Labels, value: float | None) -> list[Sample]:
    return [] if value is None else [(labels, value)]


def _by(labels: Labels, name: str, numbers: dict[str, int]) -> list[Sample]:
    return [({**labels, name: key}, number) for key, number in sorted(numbers.items())]


def _gauge(name: str, doc: str, samples: Iterable[Sample]) -> str:
    return _family(name, "gauge", doc, samples)


def _counter(name: str, doc: str, samples: Iterable[Sample]) -> str:
    return _family(name, "counter", doc, samples)


def _family(name: str, kind: str, doc: str, samples: Iterable[Sample]) -> str:
    lines = [f"{name}{_labels(labels)} {_number(value)}\n" for labels, value in samples]
    if not lines:
        return ""
    return f"# HELP {name} {doc}\n# TYPE {name} {kind}\n" + "".join(lines)


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{key}="{_escape(value)}"' for key, value in labels.items()) + "}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))
