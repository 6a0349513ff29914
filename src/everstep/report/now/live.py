"""The one live line of `everstep run` on a terminal: step, rate, last step, what is being done. Pure."""

from collections.abc import Iterable
from statistics import median

from everstep.journal.view import GenerationView, RunView
from everstep.model.events import ProgressReported
from everstep.model.facts import RankAccount
from everstep.report.now.status import doing, step_s
from everstep.report.parts.ansi import printable
from everstep.report.parts.units import NOT_MEASURED, ago, count, duration, plural, size

PATIENCE_S = 2.0
"""What takes no longer is not mentioned."""


def live_text(view: RunView, newest: Iterable[ProgressReported], now: float) -> str:
    """`newest`: what is not in the journal yet. Empty: there is nothing to say."""
    generation = view.generation
    if generation is None or view.is_over:
        return ""
    accounts: dict[int, RankAccount] = dict(generation.accounts)
    for event in newest:
        if event.generation == generation.number:
            accounts |= {account.rank: account for account in event.accounts}
    steps = [account.last_step for account in accounts.values()]
    known = [step for step in steps if step is not None]
    step = min(known) if known and len(known) == len(steps) else None
    at = max((a.last_step_at for a in accounts.values() if a.last_step_at is not None), default=None)
    parts = [f"step {count(step)}", f"{_rate(view, accounts, now)}/step", f"last step {ago(at, now)}", _what(view)]
    parts += [text for text in (_writing(view, step, now), _reading(view, now)) if text]
    return printable("   ".join(parts)).replace("\n", " ").replace("\t", " ")


def _rate(view: RunView, accounts: dict[int, RankAccount], now: float) -> str:
    told = step_s(view, now)[0]
    if told is not None:
        return duration(told)
    means = [
        (a.last_step_at - a.first_step_at) / (a.last_step - a.first_step)
        for a in accounts.values()
        if a.last_step_at is not None and a.first_step_at is not None
        and a.last_step is not None and a.first_step is not None and a.last_step > a.first_step
    ]  # fmt: skip
    return duration(max(means)) if means else NOT_MEASURED


def _what(view: RunView) -> str:
    incident = view.incident
    if incident is not None:
        return f"{incident.id}: {doing(view, incident)}"
    return str(view.status).replace("-", " ")


def _writing(view: RunView, step: int | None, now: float) -> str:
    """A step on its way to the persistent tier. How much of it is there is known node by node."""
    written, last_s = view.kept.written, view.kept.last_write_s
    if written is None or not written.is_under_way or now - written.begun_at < PATIENCE_S:
        return ""
    if not written.is_last and (step is None or step < written.step):
        return ""  # it is still to come
    done, total = len(written.parts), len(written.nodes)
    rate = written.written_bytes / written.took_s if written.took_s else 0.0
    parts = [f"writing step {count(written.step)}: {done} of {plural(total, 'node')}"]
    parts += [f"{size(round(rate))}/s"] if rate else []
    parts.append(f"for {duration(now - written.begun_at)}{_usually(() if last_s is None else (last_s,))}")
    return " ".join(parts)


def _reading(view: RunView, now: float) -> str:
    """Ranks that begin with a checkpoint, until all have stepped."""
    generation = view.generation
    if generation is None or not generation.restores_from or now - generation.begun_at < PATIENCE_S:
        return ""
    stepped = sum(account.first_step is not None for account in generation.accounts.values())
    if stepped >= len(generation.node_of):
        return ""
    step, ranks = count(generation.resume_step), plural(len(generation.node_of), "rank")
    before = [
        took_s
        for other in view.generations
        if other.restores_from and other is not generation and (took_s := _restore_s(other)) is not None
    ]
    return (
        f"restoring step {step} from disk: {stepped} of {ranks} stepped, "
        f"for {duration(now - generation.begun_at)}{_usually(before)}"
    )


def _restore_s(generation: GenerationView) -> float | None:
    firsts = [a.first_step_at for a in generation.accounts.values() if a.first_step_at is not None]
    return max(firsts) - generation.begun_at if firsts else None


def _usually(before: Iterable[float]) -> str:
    known = sorted(before)
    return f", usually {duration(median(known))}" if known else ""
