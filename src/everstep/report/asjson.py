"""Objects that the reading commands print with --json. Pure; the keys are documented in docs/reading-a-run.md and only
grow.

Times are seconds since the epoch, durations end in `_s`, what is not known is null and never 0.
"""

import msgspec

from everstep.goodput.buckets import Bucket
from everstep.goodput.figures import Goodput
from everstep.journal.view import IncidentView, RunView
from everstep.report import checkpoints
from everstep.report.incidents.traced import trace_json
from everstep.report.now.status import at_risk, notes, step_s
from everstep.report.parts.asked import Asked
from everstep.report.parts.codes import CODES
from everstep.report.parts.evidence import evidence_seq
from everstep.report.parts.json_values import Json
from everstep.report.parts.noted import last_progress
from everstep.report.parts.phases import times_of
from everstep.report.picture.heads import now_sentence
from everstep.report.updates import updates_json


def status_json(view: RunView, goodput: Goodput, asked: Asked) -> Json:
    as_of = asked.as_of(view)
    generation, stepped = view.generation, view.stepped
    now_s, median_s = step_s(view, as_of)
    held, lost = at_risk(view)
    where = {"where": asked.controller} if asked.controller else {}
    return {
        "run": view.run,
        "status": str(view.status),
        "now": now_sentence(view, asked),
        "as_of": as_of,
        "controller": {
            "alive": asked.has_controller,
            "pid": asked.controller_pid or None,
            "gone_since": view.last_at if asked.is_gone(view) else None,
            "restarts": sum(start.took_over for start in view.controllers),
            **where,
        },
        "mode": None if view.spec is None else str(view.spec.mode),
        "policy": view.policy,
        "world_size": None if view.spec is None else view.spec.world_size,
        "attempt": view.attempt,
        "generation": None if generation is None else generation.number,
        "step": None if stepped is None else stepped.last_step,
        "counts_own_steps": None if stepped is None else stepped.counts_own_steps,
        "last_step_at": None if stepped is None else stepped.last_step_at,
        "step_s": now_s,
        "median_step_s": median_s,
        "snapshot_step": held,
        "steps_at_risk": lost,
        "checkpoints": checkpoints_json(view),
        "version": None if generation is None else generation.version,
        "updates": updates_json(view),
        "ettr": goodput.ettr,
        "restarts_used": view.restarts_used(as_of),
        "restarts_allowed": view.policy.get("max_restarts"),
        "incidents": len(view.incidents),
        "incident": None if view.incident is None else incident_json(view, view.incident),
        "nodes": [_node(view, node) for node in view.nodes],
        "ranks": _ranks(view),
        "started_at": view.started_at,
        "finished_at": view.finished_at,
        "outcome": None if view.finish is None else view.finish.outcome,
        "exit_code": None if view.finish is None else view.finish.exit_code,
        "why": None if view.finish is None else view.finish.why,
        "notes": notes(view),
        "journal_seq": view.last_seq,
        "torn_bytes": view.torn_bytes,
    }


def checkpoints_json(view: RunView) -> Json:
    copies = checkpoints.view(view)
    return {
        "backup_step": copies.backup_step,
        "trusted_step": copies.trusted_step,
        "if_node_dies": msgspec.to_builtins(copies.if_node_dies),
        "if_rack_dies": msgspec.to_builtins(copies.if_rack_dies),
        "racks": msgspec.to_builtins(copies.racks),
        "nodes": [msgspec.to_builtins(node) for node in copies.nodes],
        "dir": None if view.spec is None else view.spec.checkpoint_dir or None,
        "on_disk": [msgspec.to_builtins(checkpoint) for checkpoint in copies.checkpoints],
        "writing_step": None if copies.writing is None else copies.writing.step,
        "last_failure": view.kept.last_failure or None,
    }


def incident_json(view: RunView, incident: IncidentView) -> Json:
    times = times_of(view, incident)
    verdict = incident.verdict
    return {
        "id": incident.id,
        "code": None if verdict is None else verdict.code,
        "name": None if verdict is None or verdict.code not in CODES else CODES[verdict.code].name,
        "outcome": incident.outcome,
        "drill": incident.drill,
        "generation": incident.generation,
        "next_generation": incident.next_generation,
        "fault_at": times.fault,
        "detected_at": times.detected,
        "decided_at": times.decided,
        "stopped_at": times.stopped,
        "started_at": times.started,
        "in_loop_at": times.in_loop,
        "recovered_at": times.recovered,
        "closed_at": incident.closed_at,
        "lost_s": times.lost_s,
        "restore_s": times.restore_s,
        "phases": {phase.name.replace(" ", "_") + "_s": phase.length_s for phase in times.phases},
        "lost_steps": incident.lost_steps,
        "resumed_step": incident.resumed_step,
        "verdict": None if verdict is None else msgspec.to_builtins(verdict),
        "evidence_seqs": [] if verdict is None else [evidence_seq(incident, e) for e in verdict.evidence],
        "decision": msgspec.to_builtins(incident.decision),
        "refused": [msgspec.to_builtins(refused) for refused in incident.refused],
        "why": incident.close_why or None,
        "trace": trace_json(view, incident),
        "seqs": [record.seq for record in incident.records],
    }


def explanation_json(view: RunView, incident: IncidentView) -> Json:
    new = next((g for g in view.generations if g.number == incident.next_generation), None)
    return {
        **incident_json(view, incident),
        "policy": view.policy,
        "resume_step": None if new is None else new.resume_step,
        "started": [] if new is None else [msgspec.to_builtins(started) for started in new.started.values()],
        "templates": {n.node: msgspec.to_builtins(n.template) for n in view.nodes.values() if n.template is not None},
    }


def goodput_json(view: RunView, goodput: Goodput, asked: Asked) -> Json:
    whole_s = goodput.wall_s * goodput.num_ranks
    return {
        "run": view.run,
        "as_of": asked.as_of(view),
        "definition": "ettr = productive / (wall_s * num_ranks)",
        "wall_s": goodput.wall_s,
        "num_ranks": goodput.num_ranks,
        "ettr": goodput.ettr,
        "window_s": goodput.window_s,
        "window_ettr": goodput.window_ettr,
        "seconds": {str(bucket): goodput.seconds[bucket] for bucket in Bucket},
        "shares": {str(b): goodput.seconds[b] / whole_s if whole_s > 0 else None for b in Bucket},
        "ranks": [{str(bucket): seconds for bucket, seconds in rank.items()} for rank in goodput.ranks],
        "incidents": {i: {str(b): s for b, s in cost.items()} for i, cost in goodput.incidents.items()},
        "invalid": msgspec.to_builtins(goodput.invalid),
    }


def _node(view: RunView, name: str) -> Json:
    node = view.nodes[name]
    return {
        "node": node.node,
        "host": node.host,
        "rack": node.rack or None,
        "pid": node.pid,
        "slot": node.slot,
        "role": "out" if node.lost is not None else "active" if node.slot is not None else "standby",
        "lost": None if node.lost is None else node.lost.reason,
        "drained": node.drained or None,
        "template_usable": None if node.template is None else node.template.usable,
        "template_why": None if node.template is None else node.template.why,
    }


def _ranks(view: RunView) -> list[Json]:
    generation = view.generation
    if generation is None:
        return []
    rows = []
    for rank, node in sorted(generation.node_of.items()):
        started, account = generation.started.get(rank), generation.accounts.get(rank)
        rows.append(
            {
                "rank": rank,
                "node": node,
                "pid": None if started is None else started.pid,
                "how": None if started is None else started.how,
                "why": None if started is None else started.why,
                "last_step": None if account is None else account.last_step,
                "last_step_at": None if account is None else account.last_step_at,
                "progress": None if account is None else last_progress(account)[0] or None,
                "progress_at": None if account is None else last_progress(account)[1],
                "note": None if account is None or account.note is None else msgspec.to_builtins(account.note),
                "snapshot_step": None if account is None else account.published_step,
                "ended": rank in generation.exits,
            }
        )
    return rows
