"""/metrics: Prometheus text. A series that is not known is absent, never 0. Pure: a snapshot of figures to text.

Names follow docs/api.md. No rank, incident or message text is a label: their number has no bound.
"""

from collections.abc import Iterable

from everstep.controller.ledger import Ledger
from everstep.controller.tally import Tally
from everstep.core.state import Phase, Role
from everstep.version import __version__

Labels = dict[str, str]
Sample = tuple[Labels, float]


def render_metrics(
    ledger: Ledger, dropped: dict[str, int], append_seconds: float | None, lag_seconds: float | None
) -> str:
    state, tally = ledger.state, ledger.tally
    run = {"run": state.run}
    nodes = {str(role): sum(m.role is role for m in state.members.values()) for role in Role}
    families = [
        _gauge("everstep_build_info", "Always 1.", [({"version": __version__}, 1)]),
        _gauge(
            "everstep_run_state",
            "1 for the state that the run is in.",
            [({**run, "state": str(phase)}, float(phase is state.phase)) for phase in Phase],
        ),
        *_progress(tally, run),
        _gauge("everstep_generation", "Formation of the worker group.", [(run, state.generation)])
        if state.generation >= 0
        else "",
        _counter(
            "everstep_restarts_total",
            "Restarts of the workers, by who is blamed.",
            [({**run, "cause": cause}, number) for cause, number in sorted(tally.restarts.items())],
        ),
        _counter(
            "everstep_incidents_total",
            "Incidents that ended, by code of the final verdict.",
            [({**run, "code": code}, number) for code, number in sorted(tally.incidents.items())],
        ),
        _gauge("everstep_incidents_open", "Incidents not over yet.", [(run, float(bool(tally.open_incident)))]),
        _counter(
            "everstep_rollback_steps_total",
            "Completed steps that had to be done again.",
            [(run, tally.rollback_steps)] if tally.rollback_steps is not None else [],
        ),
        _gauge(
            "everstep_nodes",
            "Nodes by role.",
            [({**run, "role": role}, number) for role, number in nodes.items()],
        ),
        *_ourselves(tally, dropped, append_seconds, lag_seconds),
    ]
    return "".join(families)


def _progress(tally: Tally, run: Labels) -> list[str]:
    if tally.last_step is None:
        return []
    return [
        _gauge("everstep_run_step", "Newest step that every rank has done.", [(run, tally.last_step)]),
        _gauge(
            "everstep_run_last_step_timestamp_seconds",
            "When it was done.",
            [(run, tally.last_step_at)] if tally.last_step_at is not None else [],
        ),
    ]


def _ourselves(
    tally: Tally, dropped: dict[str, int], append_seconds: float | None, lag_seconds: float | None
) -> list[str]:
    return [
        _counter(
            "everstep_stale_messages_total",
            "Messages of peers that were dropped, by kind.",
            [({"kind": kind}, number) for kind, number in sorted(dropped.items())],
        ),
        _counter(
            "everstep_worker_errors_total",
            "Faults of our own inside workers, swallowed, by place.",
            [({"kind": kind}, number) for kind, number in sorted(tally.worker_errors.items())],
        ),
        _gauge(
            "everstep_journal_append_seconds",
            "The last append, disk included.",
            [({}, append_seconds)] if append_seconds is not None else [],
        ),
        _gauge(
            "everstep_controller_loop_lag_seconds",
            "How late a timer fired, last time.",
            [({}, lag_seconds)] if lag_seconds is not None else [],
        ),
    ]


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
