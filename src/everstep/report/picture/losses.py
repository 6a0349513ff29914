"""Did the restore behave? The loss as rows of the picture, and what it was around an incident. Pure."""

from everstep.journal.losses import LossAt
from everstep.journal.view import IncidentView, RunView
from everstep.report.parts.json_values import Json
from everstep.report.parts.units import count
from everstep.report.picture.schema import Moment

CHUNK = 64


def loss_rows(view: RunView) -> dict[str, Json]:
    """[at, loss, step, 1 where it was trained again later, generation]; a loss that was NaN or infinite is None."""
    points = [
        [round(each.point.at, 1), _short(each.point.loss), each.point.step, int(is_redone), each.generation]
        for each, is_redone in zip(view.loss.points, view.loss.is_redone(_began(view)), strict=True)
    ]
    return {
        f"loss:{first // CHUNK}": {"rank": view.loss.rank, "points": points[first : first + CHUNK]}
        for first in range(0, len(points), CHUNK)
    }


def loss_moments(view: RunView, incident: IncidentView) -> list[Moment]:
    """The last loss before the fault, and the first after the restart beside what it was at that step before."""
    until = incident.fault_at if incident.fault_at is not None else incident.opened_at
    old = [each for each in view.loss.points if each.generation == incident.generation]
    new = [each for each in view.loss.points if each.generation == incident.next_generation]
    before = [each for each in old if each.point.at <= until]
    found = [_moment(before[-1], "the last that was noted before the fault")] if before else []
    if new:
        found.append(_moment(new[0], f"the first of generation {new[0].generation}{_as_before(new[0], old)}"))
    return found


def _as_before(new: LossAt, old: list[LossAt]) -> str:
    step = new.point.step
    known = [each for each in old if each.point.step is not None and each.point.loss is not None]
    if step is None or not known or max(each.point.step or 0 for each in known) < step:
        return ""
    near = min(known, key=lambda each: abs((each.point.step or 0) - step))
    return f"; it had been {_text(near.point.loss)} after step {count(near.point.step)}"


def _moment(each: LossAt, what: str) -> Moment:
    step = "" if each.point.step is None else f" after step {count(each.point.step)}"
    return Moment(at=each.point.at, says=f"loss {_text(each.point.loss)}{step}, {what}", is_key=False, seq=None)


def _text(loss: float | None) -> str:
    return "NaN or infinite" if loss is None else f"{loss:.4g}"


def _began(view: RunView) -> dict[int, int]:
    """Not by the accounts of all ranks of all generations: it is asked every second."""
    return {each.number: each.resume_step + 1 for each in view.generations if each.resume_step is not None}


def _short(value: float | None) -> float | None:
    """Four digits are what a line can show."""
    return None if value is None else float(f"{value:.4g}")
