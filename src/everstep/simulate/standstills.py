"""Standstills that were recorded: those of the benchmarks, which come with the package, and those of a journal.

Reads one file. The benchmarks' are kinds of hangs and of healthy irregular programs (docs/benchmarks.md). How long the
healthy ones waited was chosen there, so they show which mistakes a rule makes, not how often they come. A journal has
its own: incidents of the hang rule that ended in a restart, and those that went on by themselves.
"""

from collections.abc import Iterable
from importlib.resources import files

import msgspec

from everstep.core.state.policy import Policy
from everstep.core.state.schema import State
from everstep.core.step import step
from everstep.model import actions
from everstep.model.events import Diagnosed, StandstillEnded
from everstep.model.record import Record
from everstep.model.verdict import Certainty, Verdict
from everstep.simulate.price import Standstill

_RESTARTED = ("recovered", "gave-up")


def benchmarked() -> tuple[Standstill, ...]:
    """Return what bench/healthy.py and bench/certain.py recorded, as bench/standstills.py converted it."""
    text = files("everstep.simulate").joinpath("standstills.json").read_bytes()
    return msgspec.json.decode(text, type=tuple[Standstill, ...])


def recorded(records: Iterable[Record], policy: Policy) -> tuple[Standstill, ...]:
    """The standstills of one journal. A verdict without a certainty (an older everstep's) is left out, and so is a hang
    that neither ended by itself nor was acted on, as when the run was stopped meanwhile."""
    state = State.initial()
    open_: dict[str, Standstill] = {}
    found: list[Standstill] = []
    for record in records:
        before = state
        state, _ = step(state, record.event, policy)
        for action in record.actions:
            if isinstance(action, actions.Concluded) and action.incident not in open_:
                limit_s = record.event.limit_s if isinstance(record.event, Diagnosed) else None
                if action.verdict.certainty is not Certainty.UNSTATED:
                    open_[action.incident] = _begun(action.verdict, before, limit_s)
            elif isinstance(action, actions.IncidentClosed) and action.incident in open_:
                begun = open_.pop(action.incident)
                if isinstance(record.event, StandstillEnded):
                    found.append(msgspec.structs.replace(begun, lasted_s=record.event.lasted_s))
                elif action.outcome in _RESTARTED:
                    found.append(begun)
    return tuple(found)


def _begun(verdict: Verdict, state: State, limit_s: float | None) -> Standstill:
    is_saved = _is_saved(state)
    done = state.tally.completed_step
    return Standstill(
        what=verdict.place or verdict.code,
        certain=verdict.certainty is Certainty.CERTAIN,
        computes=verdict.computes,
        saved=is_saved,
        at_risk_steps=0 if is_saved or done is None else done + 1,
        limit_s=limit_s,
    )


def _is_saved(state: State) -> bool:
    """Whether every live rank holds a snapshot or began from one: the question that core.faults.hangs asks."""
    alive = [worker for worker in state.workers.values() if worker.exit is None]
    if alive and all(worker.account is not None and worker.account.published_step is not None for worker in alive):
        return True
    return state.formation is not None and state.formation.resume_step is not None
