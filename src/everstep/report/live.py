"""The one live line of `everstep run` on a terminal: step, rate, last step, what is being done. Pure."""

from collections.abc import Iterable

from everstep.journal.view import RunView
from everstep.model.events import ProgressReported
from everstep.model.facts import RankAccount
from everstep.report.parts.ansi import printable
from everstep.report.parts.units import NOT_MEASURED, ago, count, duration
from everstep.report.status import doing, step_s


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
