"""One run as a row of a list of runs. Pure."""

import msgspec

from everstep.goodput.figures import Goodput
from everstep.journal.view import RunView
from everstep.report.parts.asked import Asked
from everstep.report.picture.heads import now_sentence


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """None: not measured, or not read yet."""

    name: str  # of its directory, or the id under which it is registered
    run: str
    status: str  # as `everstep status`, or "damaged", "unread"
    now: str
    program: str = ""
    is_live: bool = False
    needs_you: bool = False
    started_at: float | None = None
    last_at: float | None = None
    step: int | None = None
    world_size: int | None = None
    num_incidents: int | None = None
    ettr: float | None = None


def run_row(name: str, view: RunView, asked: Asked, goodput: Goodput | None) -> RunRow:
    is_gone = asked.is_gone(view)
    return RunRow(
        name=name,
        run=view.run,
        status=str(view.status),
        now=now_sentence(view, asked),
        program="" if view.spec is None else " ".join((view.spec.program, *view.spec.args)),
        is_live=asked.has_controller and not view.is_over,
        needs_you=is_gone or str(view.status) in ("failed", "gave-up", "waiting-for-approval"),
        started_at=view.started_at,
        last_at=view.finished_at if view.finished_at is not None else view.last_at,
        step=None if view.stepped is None else view.stepped.last_step,
        world_size=None if view.spec is None else view.spec.world_size,
        num_incidents=len(view.incidents),
        ettr=None if goodput is None else goodput.ettr,
    )


def unread_row(name: str, why: str, *, is_damaged: bool, last_at: float | None = None) -> RunRow:
    """`why`: in a sentence. A damaged journal hides no other run."""
    status = "damaged" if is_damaged else "unread"
    return RunRow(name=name, run=name, status=status, now=why, needs_you=is_damaged, last_at=last_at)
