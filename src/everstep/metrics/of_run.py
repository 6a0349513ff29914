"""Conversion of a run's view into samples. Pure."""

import re
from collections import Counter

import msgspec

from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import Goodput
from everstep.journal.view import IncidentView, NodeView, RunStatus, RunView
from everstep.metrics.histograms import PHASE_BOUNDS, buckets_of, step_buckets
from everstep.metrics.rising import Rising
from everstep.metrics.samples import Samples
from everstep.report import checkpoints
from everstep.report.now import status
from everstep.report.parts.phases import IncidentTimes, times_of

WINDOWS = {"1h": 3600.0, "24h": 86400.0, "7d": 604800.0}

OTHER = "other"
MAX_KINDS = 50
_KIND = re.compile(r"[A-Za-z_][A-Za-z0-9_. -]{0,47}", re.ASCII)


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput, and its ratio in windows by name. In a large fleet some ranks stand for all. `rising`: the scraper's
    own."""

    goodput: Goodput
    ratios: dict[str, float | None] = {}
    rising: Rising = msgspec.field(default_factory=Rising)


def add_run(samples: Samples, view: RunView, at: float, shares: Shares | None) -> None:
    _progress(samples, view)
    _incidents(samples, view)
    _recoveries(samples, view)
    _checkpoints(samples, view, at)
    _nodes(samples, view)
    if shares is not None:
        _goodput(samples, view, shares)


def _progress(samples: Samples, view: RunView) -> None:
    generation, stepped, run = view.generation, view.stepped, view.run
    for state in RunStatus:
        samples.add("everstep_run_state", float(state is view.status), run=run, state=str(state))
    samples.add("everstep_run_step", None if stepped is None else stepped.last_step, run=run)
    samples.add("everstep_run_last_step_timestamp_seconds", None if stepped is None else stepped.last_step_at, run=run)
    samples.add("everstep_step_duration_seconds", step_buckets(view.pace), run=run)
    samples.add("everstep_generation", None if generation is None else generation.number, run=run)


def _incidents(samples: Samples, view: RunView) -> None:
    run, incidents = view.run, view.incidents.values()
    causes = Counter(_cause(incident) for incident in incidents if incident.next_generation is not None)
    codes = Counter(_code(incident) for incident in incidents if not incident.is_open)
    faults = _few(Counter(_kind(fault.where) for fault in view.runtime_faults))
    lost = [i.lost_steps for i in incidents if not i.is_open and i.lost_steps is not None]
    for cause, number in sorted(causes.items()):
        samples.add("everstep_restarts_total", number, run=run, cause=cause)
    for code, number in sorted(codes.items()):
        samples.add("everstep_incidents_total", number, run=run, code=code)
    samples.add("everstep_incidents_open", float(view.open_incident is not None), run=run)
    samples.add("everstep_rollback_steps_total", sum(lost) if lost else None, run=run)
    for kind, number in sorted(faults.items()):
        samples.add("everstep_worker_errors_total", number, kind=kind)


def _recoveries(samples: Samples, view: RunView) -> None:
    lengths: dict[str, list[tuple[float, int]]] = {}
    for incident in view.incidents.values():
        if incident.outcome == "recovered":
            for phase, length_s in _phases(times_of(view, incident)).items():
                if length_s is not None:
                    lengths.setdefault(phase, []).append((length_s, 1))
    for phase, found in lengths.items():
        buckets = buckets_of(found, PHASE_BOUNDS)
        samples.add("everstep_recovery_phase_duration_seconds", buckets, run=view.run, phase=phase)


def _phases(times: IncidentTimes) -> dict[str, float | None]:
    """`restore` lies within `initialise`."""
    return {phase.name.replace(" ", "_"): phase.length_s for phase in times.phases} | {"restore": times.restore_s}


def _checkpoints(samples: Samples, view: RunView, at: float) -> None:
    run, copies, held = view.run, checkpoints.view(view), status.at_risk(view)[0]
    newest, stepped = copies.checkpoint, view.stepped
    disk_step = None if newest is None else newest.step
    for tier, step in (("memory", held), ("peer", copies.backup_step), ("disk", disk_step)):
        samples.add("everstep_checkpoint_step", step, run=run, tier=tier)
        if tier != "disk" and stepped is not None and step is not None and step == stepped.last_step:
            done_at = stepped.last_step_at  # the end of an older step is not on record
            samples.add("everstep_checkpoint_age_seconds", _age(at, done_at), run=run, tier=tier)
    samples.add("everstep_checkpoint_age_seconds", _age(at, newest.at if newest else None), run=run, tier="disk")
    samples.add("everstep_checkpoint_timestamp_seconds", newest.at if newest is not None else None, run=run)
    samples.add("everstep_checkpoint_trusted_step", copies.trusted_step, run=run)
    samples.add("everstep_steps_lost_if_node_dies", copies.if_node_dies.steps, run=run)


def _age(at: float, since: float | None) -> float | None:
    return None if since is None else max(0.0, at - since)


def _nodes(samples: Samples, view: RunView) -> None:
    named = _named(view)
    suspect = view.incident.verdict.node if view.incident is not None and view.incident.verdict is not None else None
    counts = Counter(_place(node, suspect) for node in view.nodes.values())
    for role, health in (("active", "ok"), ("active", "suspect"), ("standby", "ok"), ("out", "lost")):
        samples.add("everstep_nodes", counts[role, health], run=view.run, role=role, health=health)
    for node in view.nodes.values():
        if node.lost is not None and node.node in named:
            samples.add("everstep_node_quarantined", 1.0, node=node.node, code=named[node.node])


def _named(view: RunView) -> dict[str, str]:
    """Node -> code of the newest verdict that named it."""
    verdicts = (incident.verdict for incident in view.incidents.values())
    return {verdict.node: verdict.code for verdict in verdicts if verdict is not None and verdict.node}


def _place(node: NodeView, suspect: str | None) -> tuple[str, str]:
    if node.lost is not None:
        return "out", "lost"
    if node.slot is None:
        return "standby", "ok"
    return "active", "suspect" if node.node == suspect else "ok"


def _goodput(samples: Samples, view: RunView, shares: Shares) -> None:
    goodput, run = shares.goodput, view.run
    num_ranks = view.spec.world_size if view.spec is not None else goodput.num_ranks
    for_all = num_ranks / goodput.num_ranks if goodput.num_ranks else 0.0
    seconds = {bucket: shares.rising.of(bucket, found * for_all) for bucket, found in goodput.seconds.items()}
    for bucket, found in seconds.items():
        samples.add("everstep_run_seconds_total", found, run=run, bucket=str(bucket))
    samples.add("everstep_checkpoint_blocked_seconds_total", seconds[Bucket.CHECKPOINT_STALL], run=run)
    samples.add("everstep_goodput_ratio", goodput.ettr, run=run, window="run")
    for window, ratio in shares.ratios.items():
        samples.add("everstep_goodput_ratio", ratio, run=run, window=window)


def _kind(where: str) -> str:
    """Where it was, as our own code says it. A rank can say anything, and a label is kept for ever."""
    kind = where.partition(":")[0]
    return kind if _KIND.fullmatch(kind) else OTHER


def _few(counts: Counter[str]) -> Counter[str]:
    """The first kinds; later ones are counted together."""
    found = Counter(dict(list(counts.items())[:MAX_KINDS]))
    rest = counts.total() - found.total()
    return found + Counter({OTHER: rest})


def _code(incident: IncidentView) -> str:
    return incident.verdict.code if incident.verdict is not None else "none"


def _cause(incident: IncidentView) -> str:
    return str(incident.verdict.blame) if incident.verdict is not None else "unknown"
