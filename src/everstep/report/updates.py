"""Updates of the program as text and JSON: which version runs, who changed it, what the change cost. Pure."""

from typing import Any

import msgspec

from everstep.analyzer.observations.words import ranks_text
from everstep.journal.view import GenerationView, RunView, UpdateView
from everstep.model.versions import FIRST, Stage, Version
from everstep.report.parts.ansi import PLAIN, Paint, Style, printable
from everstep.report.parts.layout import field, text_of
from everstep.report.parts.units import NOT_MEASURED, clock, count, duration, plural, stamp

_PAINTS = {Stage.REFUSED: Paint.RED, Stage.ROLLED_BACK: Paint.ORANGE, Stage.TRAINED: Paint.GREEN}


class Cost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of starting a version. None: not known (yet)."""

    begun_at: float | None  # the ranks before were asked to end, or had failed
    stepped_at: float | None  # first new step of the slowest rank
    at_step: int | None  # index of the first step that was done with it
    lost_steps: int | None

    @property
    def took_s(self) -> float | None:
        known = self.begun_at is not None and self.stepped_at is not None
        return max(0.0, self.stepped_at - self.begun_at) if known else None  # type: ignore[operator]


def cost_of(view: RunView, update: UpdateView) -> Cost:
    generation = next((g for g in view.generations if g.number == update.generation), None)
    stepped_at = None if generation is None else _stepped_at(generation)
    at_step = None if generation is None else generation.first_step
    lost = None
    if at_step is not None and update.best_step is not None:
        lost = max(0, update.best_step + 1 - at_step)
    return Cost(begun_at=update.interrupted_at, stepped_at=stepped_at, at_step=at_step, lost_steps=lost)


def version_title(version: Version) -> str:
    """ "v1 (git 3f2c1a9, urgent, by anna)"."""
    words = [version.source] if version.source else []
    words += ["arguments"] if version.args is not None else []
    names = [*version.env, *version.variables]
    words += [f"environment {', '.join(names)}"] if names else []
    words += ["urgent"] if version.is_urgent else []
    words += [f"by {version.by}"] if version.by else []
    return printable(f"{version.id} ({', '.join(words)})" if words else version.id)


def update_line(view: RunView, update: UpdateView) -> str:
    """Describe in one line what became of an update."""
    title = version_title(update.version)
    last = update.history[-1] if update.history else None
    why = printable(last.why) if last is not None else ""
    if update.generation is None:
        doing = "is being looked at" if update.stage is Stage.CHECKING else f"{update.stage}: {why}"
        return f"{title} {doing}"
    is_over = update.stage in (Stage.ROLLED_BACK, Stage.SUPERSEDED)
    line = f"{title} {_applied_text(cost_of(view, update), is_over=is_over)}"
    if update.incident is not None:
        line += f", merged into the restart of {update.incident}"
    if update.stage is Stage.ROLLED_BACK:
        line += f"; rolled back to {update.back_to}: {why}"
    return line


def cold_text(view: RunView, update: UpdateView) -> str:
    """Why its ranks were not forked from twins; empty if they were, or none has started."""
    generation = next((g for g in view.generations if g.number == update.generation), None)
    ranks = [] if generation is None else [rank for rank, each in generation.started.items() if each.how == "fresh"]
    if not ranks:
        return ""
    which = "all ranks" if generation is not None and len(ranks) == len(generation.started) else ranks_text(ranks)
    return (
        f"{which} started cold (fresh interpreters): the twins that were there hold the program as it was before "
        f"{update.version.id}. The next restart is warm again"
    )


def running_text(view: RunView) -> str:
    """The version that runs, and what else is on its way; empty if the program was never changed."""
    if not view.updates:
        return ""
    generation = view.generation
    current = FIRST.id if generation is None else generation.version
    update = view.updates.get(current)
    text = f"{current} (as the run was started)" if update is None else update_line(view, update)
    waiting = [u for u in view.updates.values() if u.stage in (Stage.CHECKING, Stage.WAITING)]
    return "; ".join([text, *(update_line(view, u) for u in waiting)])


def render_updates(view: RunView, style: Style = PLAIN) -> str:
    """All versions, oldest first, the one that runs marked."""
    generation = view.generation
    current = FIRST.id if generation is None else generation.version
    lines = [f"{'*' if current == FIRST.id else ' '} v0 (as the run was started)"]
    for update in view.updates.values():
        mark = "*" if current == update.version.id else " "
        stage = style(str(update.stage), _PAINTS[update.stage]) if update.stage in _PAINTS else str(update.stage)
        lines.append(f"{mark} {update_line(view, update)}   [{stage}]")
    return text_of(lines)


def render_update(view: RunView, update: UpdateView, style: Style = PLAIN) -> str:
    """`everstep explain v1`: its way, with the reasons."""
    lines = [style(update_line(view, update), Paint.BOLD)]
    who = f" by {update.version.by}" if update.version.by else ""
    lines += field(
        "asked", f"{stamp(update.asked_at)}{who}" + (f": {update.version.why}" if update.version.why else "")
    )
    if update.version.code:
        lines += field("code", f"{update.version.code} for {update.version.root}")
    if update.version.args is not None:
        lines += field("args", " ".join(update.version.args) or "none")
    for name, value in update.version.env.items():
        lines += field("env", f"{name}={value}")
    for name, kept_by in update.version.variables.items():
        lines += field("env", f"{name}, its value in variables/{kept_by}.json of the run directory")
    for staged in update.history:
        lines += field("then", f"{clock(staged.at)}  {staged.stage}: {printable(staged.why)}   (seq {staged.seq})")
    if update.generation is not None:
        cost = cost_of(view, update)
        lines += field(
            "cost", f"{duration(cost.took_s)} from the end of the old ranks' last work to the first new step"
        )
        lines += field("first", f"step {count(cost.at_step)}, generation {update.generation}")
    return text_of(lines)


def updates_json(view: RunView) -> list[dict[str, Any]]:
    found = []
    for update in view.updates.values():
        cost = cost_of(view, update)
        found.append(
            {
                **msgspec.to_builtins(update.version),
                "asked_at": update.asked_at,
                "stage": str(update.stage),
                "history": msgspec.to_builtins(update.history),
                "back_to": update.back_to or None,
                "generation": update.generation,
                "incident": update.incident,
                "at_step": cost.at_step,
                "took_s": cost.took_s,
                "lost_steps": cost.lost_steps,
                "text": update_line(view, update),
            }
        )
    return found


def _applied_text(cost: Cost, *, is_over: bool) -> str:
    if cost.stepped_at is None:
        return "did no step" if is_over else "is being started"
    at = "" if cost.at_step is None else f" at step {count(cost.at_step)}"
    lost = f"{NOT_MEASURED} steps" if cost.lost_steps is None else plural(cost.lost_steps, "step")
    return f"applied{at}: {duration(cost.took_s)}, {lost} lost"


def _stepped_at(generation: GenerationView) -> float | None:
    """The slowest rank's first step; None while some rank has done none."""
    marks = [
        generation.accounts[rank].first_step_at if rank in generation.accounts else None for rank in generation.node_of
    ]
    known = [at for at in marks if at is not None]
    return max(known) if known and len(known) == len(marks) else None
