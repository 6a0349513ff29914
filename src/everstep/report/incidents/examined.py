"""Examinations of an incident: which nodes were examined, with which check and result. View to lines; pure."""

from collections import Counter

from everstep.analyzer.observations.words import names_text
from everstep.journal.view import IncidentView
from everstep.model.actions import ExamineNode
from everstep.model.events import NodeExamined
from everstep.report.parts.ansi import printable

_RESULTS = {True: "passed", False: "failed", None: "not known"}
_DIFFERS = "differs"  # it saw nothing wrong itself, and computed something else than most


def examined_lines(incident: IncidentView) -> list[str]:
    """One line per examination and result; nothing if there was none."""
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
    answers = [answer for node in actions if (answer := said.get((exam, node))) is not None]
    usual = Counter(answer.digest for answer in answers if answer.digest).most_common(1)
    whys: dict[tuple[str, str], list[str]] = {}
    took_s = max((answer.took_s for answer in answers), default=0.0)
    for node, action in actions.items():
        answer = said.get((exam, node))
        result, why = _RESULTS[answer.passed if answer is not None else None], ""
        if answer is None or not answer.passed:
            why = "no answer" if answer is None else answer.why
        elif answer.digest and answer.digest != usual[0][0]:
            result, why = _DIFFERS, answer.why
        group = "+".join(action.group)
        names = whys.setdefault((result, why), [])
        if group not in names:
            names.append(group)
    first = f"{exam} {kind}"
    lines = []
    for (result, why), groups in sorted(whys.items(), key=lambda item: item[0][0] == _RESULTS[True]):
        because = f": {printable(why)}" if why else f"   ({took_s:.1f} s)"
        lines.append(f"{first:<20} {result:<9} {names_text(groups)}{because}")
    return lines
