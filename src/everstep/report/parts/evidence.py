"""An incident's evidence, with the journal record that holds each piece; the same said of many ranks is one. Pure."""

import msgspec

from everstep.analyzer.observations.words import fold
from everstep.journal.view import IncidentView
from everstep.model.events import NodeLost, WorkerExited, WorkersStopped
from everstep.model.verdict import Evidence


class EvidenceGroup(msgspec.Struct, frozen=True, kw_only=True):
    first: Evidence
    says: str
    seqs: str  # "41" or "41-43"; "" when it is in no record of the incident


def evidence_seq(incident: IncidentView, evidence: Evidence) -> int | None:
    """The journal record in which this was reported, if it is one of the incident's."""
    for record in incident.records:
        event = record.event
        if isinstance(event, WorkerExited) and evidence.rank == event.exit.rank:
            return record.seq
        if isinstance(event, WorkersStopped) and any(evidence.rank == exit_.rank for exit_ in event.exits):
            return record.seq
        if isinstance(event, NodeLost) and evidence.rank is None and evidence.node == event.node:
            return record.seq
    return None


def evidence_groups(incident: IncidentView) -> list[EvidenceGroup]:
    """In the order of the verdict, strongest first."""
    if incident.verdict is None:
        return []
    groups: dict[tuple[str, str], list[Evidence]] = {}
    for evidence in incident.verdict.evidence:
        same = evidence.says if evidence.rank is None else evidence.says.removeprefix(f"rank {evidence.rank} ")
        groups.setdefault((evidence.source, same), []).append(evidence)
    return [_group(incident, same, found) for (_, same), found in groups.items()]


def _group(incident: IncidentView, same: str, found: list[Evidence]) -> EvidenceGroup:
    first = found[0]
    ranks = [e.rank for e in found if e.rank is not None]
    says = first.says if len(found) == 1 else f"{len(found)} ranks ({fold(ranks)}): {same}"
    seqs = [seq for e in found if (seq := evidence_seq(incident, e)) is not None]
    return EvidenceGroup(first=first, says=says, seqs=fold(seqs))
