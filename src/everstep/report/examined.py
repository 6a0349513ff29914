"""Examinations of an incident: who was examined, at what, with what result. View to lines; pure."""

from everstep.analyzer.words import names_text
from everstep.journal.view import IncidentView
from everstep.model.actions import ExamineNode
from everstep.model.events import NodeExamined
from everstep.report.ansi import printable

_RESULTS = {True: "passed", False: "failed", None: "not known"}


def examined_lines(incident: IncidentView) -> list[str]:
    """One line per examination and result; nothing when nobody was examined."""
    asked: dict[str, dict[str, ExamineNode]] = {}
    said: dict[tuple[str, str], NodeExamined] = {}
    for record in incident.records:
        for action in record.actions:
            if isinstance(action, ExamineNode):
                asked.setdefault(action.exam, {})[action.node] = action
        if isinstance(record.event, NodeExamined):
            said[record.event.exam, record.event.node] = record.event
    return [line for exam, actions in asked.items() for line in _exam_lines(exam, actions, said)]


def _exam_lines(exam: str, actions: dict[str, ExamineNode], said: dict[tuple[str, str], NodeExamined]) -> list[str]:
    kind = next(iter(actions.values())).kind
    whys: dict[tuple[bool | None, str], list[str]] = {}
    took_s = 0.0
    for node, action in actions.items():
        answer = said.get((exam, node))
        passed, why = (None, "no answer") if answer is None else (answer.passed, answer.why)
        took_s = max(took_s, answer.took_s if answer is not None else 0.0)
        group = "+".join(action.group)
        names = whys.setdefault((passed, "" if passed else why), [])
        if group not in names:
            names.append(group)
    first = f"{exam} {kind}"
    lines = []
    for (passed, why), groups in sorted(whys.items(), key=lambda item: item[0][0] is True):
        because = f": {printable(why)}" if why else f"   ({took_s:.1f} s)"
        lines.append(f"{first:<20} {_RESULTS[passed]:<9} {names_text(groups)}{because}")
    return lines
