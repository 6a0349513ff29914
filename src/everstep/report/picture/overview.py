"""The whole picture of a run as rows with keys. Pure; what cannot change any more is made once.

head, goodput, checkpoints          one each
incident:i3, generation:2           one per incident and generation
pace:0, pace:1, ...                 32 intervals of step times each
loss:0, loss:1, ...                 64 losses each
fleet:<rack>                        one per rack
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from everstep.journal.view import GenerationView, IncidentView, RunView
from everstep.report.parts.asked import Asked
from everstep.report.parts.json_values import Json
from everstep.report.picture.costs import Costs
from everstep.report.picture.fleet import fleet_rows
from everstep.report.picture.heads import copies_of, head_of, places_of
from everstep.report.picture.incidents import incident_row
from everstep.report.picture.lanes import before_first, generation_row, is_settled, loop_at_of
from everstep.report.picture.losses import loss_rows
from everstep.report.picture.paces import PaceRows

Rows = dict[str, Json]

NODES_PER_S = 200.0
"""Fewer are asked every second; 12,500 every minute, as their own reports are a minute apart or more."""

Made = TypeVar("Made")


class Overview:
    """The overview of one run, for repeated looks."""

    def __init__(self) -> None:
        self.costs = Costs()
        self._settled: Rows = {}
        self._begun: dict[int, float] = {}
        self._paces = PaceRows()
        self._commits: tuple[object, Json] | None = None
        self._loss: tuple[tuple[int, int], Rows] | None = None
        self._made: dict[str, tuple[Any, float, Any]] = {}  # what happened until then, when, what was made

    def settle(self, view: RunView) -> Iterator[None]:
        """Make what cannot change any more and was not made yet, a piece at a time."""
        for incident in list(view.incidents.values()):
            if f"incident:{incident.id}" not in self._settled:
                self._incident(view, incident)
                yield
        for index in range(len(view.generations)):
            if f"generation:{view.generations[index].number}" not in self._settled:
                self._generation(view, index)
                yield
            self.costs.settle(view, index)

    def rows(self, view: RunView, asked: Asked) -> Rows:
        live = asked.at if asked.has_controller and not view.is_over else None
        places = places_of(view)
        happened = _happened(view, places.out)
        copies = self._slowly("copies", happened, view, asked, lambda: copies_of(view, asked))
        return {
            "head": msgspec.to_builtins(head_of(view, asked, copies, places)),
            "goodput": self._slowly("goodput", happened, view, asked, lambda: self.costs.row(view, live)),
            "checkpoints": self._checkpoints(view),
            **self._incidents(view),
            **self._generations(view),
            **self._paces.rows(view.pace),
            **self._losses(view),
            **self._slowly("fleet", happened, view, asked, lambda: _fleet(view)),
        }

    def _slowly(
        self, name: str, happened: tuple[object, ...], view: RunView, asked: Asked, make: Callable[[], Made]
    ) -> Made:
        """For a fleet, the answer of a moment ago, unless something happened: it would take long to compute every
        second."""
        kept = self._made.get(name)
        if kept is not None and kept[0] == happened and 0.0 <= asked.at - kept[1] < len(view.nodes) / NODES_PER_S - 1.0:
            made: Made = kept[2]
            return made
        found = make()
        self._made[name] = happened, asked.at, found
        return found

    def _incidents(self, view: RunView) -> Rows:
        return {f"incident:{incident.id}": self._incident(view, incident) for incident in view.incidents.values()}

    def _incident(self, view: RunView, incident: IncidentView) -> Json:
        key = f"incident:{incident.id}"
        row = self._settled.get(key)
        if row is None:
            row = msgspec.to_builtins(incident_row(view, incident))
            if not incident.is_open and not _restarts_still(view, incident.next_generation):
                self._settled[key] = row
        return row

    def _checkpoints(self, view: RunView) -> Json:
        commits, on_disk = view.kept.commits, tuple(c.step for c in view.kept.checkpoints)
        happened = len(commits), commits[-1] if commits else None, on_disk
        if self._commits is None or self._commits[0] != happened:
            self._commits = happened, checkpoints_row(view)
        return self._commits[1]

    def _losses(self, view: RunView) -> Rows:
        happened = view.loss.num_noted, len(view.generations)
        if self._loss is None or self._loss[0] != happened:
            self._loss = happened, loss_rows(view)
        return self._loss[1]

    def _generations(self, view: RunView) -> Rows:
        found: Rows = {}
        for index, generation in enumerate(view.generations):
            found[f"generation:{generation.number}"] = self._generation(view, index)
        first = before_first(view)
        if first is not None:
            only = [_segment(msgspec.to_builtins(first))]
            found["generation:start"] = {"number": None, "begun_at": first.begin, "segments": only}
        return found

    def _generation(self, view: RunView, index: int) -> Json:
        key = f"generation:{view.generations[index].number}"
        row = self._settled.get(key)
        if row is None:
            row = _compact(msgspec.to_builtins(generation_row(view, index, self._loop_at(view.generations[index]))))
            if is_settled(view, index):
                self._settled[key] = row
        return row

    def _loop_at(self, generation: GenerationView) -> float | None:
        """Asked of every rank until all have begun, and never again."""
        known = self._begun.get(generation.number)
        if known is None and generation.has_begun:
            known = loop_at_of(generation)
            if known is not None:
                self._begun[generation.number] = known
        return known


def _happened(view: RunView, lost: int) -> tuple[object, ...]:
    incident, checkpoints = view.incident, view.kept.checkpoints
    verdict = None if incident is None or incident.verdict is None else incident.verdict.node
    newest = checkpoints[-1].step if checkpoints else None
    return (
        len(view.nodes),
        lost,
        len(view.generations),
        len(view.incidents),
        view.open_incident,
        verdict,
        newest,
        view.finish,
    )


def _fleet(view: RunView) -> Rows:
    return {f"fleet:{key}": msgspec.to_builtins(row) for key, row in fleet_rows(view).items()}


def checkpoints_row(view: RunView) -> Json:
    """Every checkpoint that was written, as far as the view remembers, and those that can be restored."""
    commits = [[round(c.at, 1), c.step, c.is_trusted] for c in view.kept.commits]
    return {"commits": commits, "on_disk": [c.step for c in view.kept.checkpoints]}


def _compact(row: Json) -> Json:
    row["segments"] = [_segment(segment) for segment in row["segments"]]
    return row


def _segment(segment: Json) -> list[float | str | None]:
    """[begin, end, lane, incident]: a long run has thousands of them."""
    end = segment["end"]
    at = round(segment["begin"], 2), None if end is None else round(end, 2)
    return [*at, segment["lane"], *([segment["incident"]] if segment["incident"] else [])]


def _restarts_still(view: RunView, number: int | None) -> bool:
    """Whether the generation after the incident is the last: its ranks may still report their start."""
    if number is None or not view.generations or view.generations[-1].number != number:
        return False
    return not view.generations[-1].has_begun
