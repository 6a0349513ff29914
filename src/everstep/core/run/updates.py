"""Changes of the user's program: recorded, looked at by a node, started at the next interruption or now, and taken back
when they do worse than what was there before.

The state of a change is its candidate's `Stage`. What is to be done is read off the state after every event (`look`),
so it does not matter what else happened meanwhile. An update is no fault: it opens no incident and uses up no restart.
"""

import msgspec

from everstep.core.run import failures, stopping
from everstep.core.state.frozenmap import Names
from everstep.core.state.phases import Phase
from everstep.core.state.schema import Candidate, Role, State
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Refused, UpdateConcluded, ValidateUpdate
from everstep.model.events import UpdateRequested, UpdateValidated
from everstep.model.spec import Launch
from everstep.model.verdict import Blame, Verdict
from everstep.model.versions import FIRST, Stage, Version

CHECK_LIMIT_S = 120.0
"""From ValidateUpdate to its answer. A first import of torch on a cold disk is within it."""

_ASKED_FOR = (Stage.CHECKING, Stage.WAITING)
_INNOCENT = (Blame.MACHINE, Blame.NETWORK, Blame.STORAGE, Blame.SCHEDULER)
SAME_PLACE = 2
"""Failures at one place without a new step in between after which a version that has not trained is gone back from."""


def on_update_requested(turn: Turn, event: UpdateRequested) -> None:
    what = f"update to {event.version}"
    if find(turn.state, event.version) is not None:
        turn.do(Refused(what=what, why="there is a version of that name; asked for once, it is done once"))
        return
    version = _made_of(turn, event)
    candidate = Candidate(version=version, stage=Stage.CHECKING)
    turn.set(candidates=(*turn.state.candidates, candidate))
    why_not = _why_not(turn, event)
    if why_not:
        _conclude(turn, version.id, Stage.REFUSED, why_not)


def on_update_validated(turn: Turn, event: UpdateValidated) -> None:
    candidate = find(turn.state, event.version)
    if candidate is None or candidate.stage is not Stage.CHECKING:
        return
    turn.drop_timer(Timer(TimerKind.UPDATE_CHECK, event.version))
    if not event.is_good:
        _conclude(turn, event.version, Stage.REFUSED, event.why)
        return
    for other in turn.state.candidates:
        if other.stage is Stage.WAITING:
            _conclude(turn, other.version.id, Stage.SUPERSEDED, f"{event.version} came before it could be started")
    when = "now" if candidate.version.is_urgent else f"at the next interruption, or {_limit_text(turn)}"
    _conclude(turn, event.version, Stage.WAITING, f"{event.why}; it is started {when}")
    due_s = candidate.version.at + turn.policy.update_after_s - turn.at
    if not candidate.version.is_urgent and due_s > 0.0:
        why = f"{event.version} waits for an interruption no longer"
        turn.start_timer(Timer(TimerKind.UPDATE_DUE, event.version), due_s, why)


def on_check_timer(turn: Turn, version: str, _due_at: float) -> None:
    candidate = find(turn.state, version)
    if candidate is not None and candidate.stage is Stage.CHECKING:
        why = f"{candidate.checked_on or 'no node'} has not said within {CHECK_LIMIT_S:g} s whether it can start"
        _conclude(turn, version, Stage.REFUSED, why)


def look(turn: Turn) -> None:
    """Advance updates from the state as it is now. Called after every event while a version is open."""
    state = turn.state
    if state.is_over:
        return
    current = find(state, state.version)
    if current is not None and current.stage is Stage.RUNNING and _has_trained(turn):
        _note_trained(turn, current)
    for candidate in state.candidates:
        if candidate.stage is Stage.CHECKING:
            _have_checked(turn, candidate)
        elif candidate.stage is Stage.WAITING and _is_due(turn, candidate.version):
            _interrupt(turn, candidate.version)


def merge(turn: Turn) -> Version | None:
    """Return the version that the coming generation runs, now that it is formed: the newest version that waits, else
    what ran before. None: what the run was started with, where the user has it."""
    waiting = waiting_version(turn.state)
    if waiting is not None:
        current = find(turn.state, turn.state.version)
        if current is not None and current.stage is Stage.RUNNING:
            _conclude(turn, current.version.id, Stage.SUPERSEDED, f"{waiting.id} took its place before it had trained")
        _begin(turn, waiting.id)
        at = "before the first step" if turn.state.best_step is None else f"after step {turn.state.best_step}"
        how = "urgent" if waiting.is_urgent else "merged into a restart that came anyway"
        if not waiting.is_urgent and _is_due(turn, waiting):
            how = _limit_text(turn)
        _conclude(turn, waiting.id, Stage.RUNNING, f"{how}, {at}")
    return running(turn.state)


def running(state: State) -> Version | None:
    """The version that ranks are started with; None: what the run was started with, where the user has it."""
    candidate = find(state, state.version)
    if candidate is None or candidate.version.id != FIRST.id:
        return None if candidate is None else candidate.version
    spec = state.spec
    if not state.has_returned or spec is None or not spec.code_copy:
        return None
    return msgspec.structs.replace(FIRST, code=spec.code_copy, root=spec.code_root)


def waiting_version(state: State) -> Version | None:
    """A version that can start and has not been started."""
    return next((c.version for c in state.candidates if c.stage is Stage.WAITING), None)


def find(state: State, version: str) -> Candidate | None:
    return next((candidate for candidate in state.candidates if candidate.version.id == version), None)


def back_to(state: State) -> str:
    """The version that would be gone back to: the last one that trained, other than the one that runs. Or empty."""
    trained = [c.version.id for c in state.candidates if c.stage is Stage.TRAINED and c.version.id != state.version]
    return trained[-1] if trained else ""


def why_not_roll_back(turn: Turn) -> str:
    """Empty if there is a version of the program to go back to."""
    if back_to(turn.state):
        return ""
    if turn.state.version == FIRST.id:
        return "there is no older version of the code: what runs is what the run was started with"
    return "no older version of the code has trained in this run"


def why_to_blame(turn: Turn, verdict: Verdict) -> str:
    """Why this fault is laid at the door of the version that runs; empty if it is not."""
    state = turn.state
    if verdict.blame in _INNOCENT or verdict.node in turn.incident.evicting:
        return ""
    current = find(state, state.version)
    is_trained = current is not None and current.stage is Stage.TRAINED
    if not is_trained and not _has_new_step(turn):
        if verdict.blame is Blame.USER or verdict.place:
            return f"{state.version} failed before its first new step"
        if state.generation > state.version_generation:
            return f"{state.version} failed again before its first new step"
    if not verdict.place:
        return ""
    count = failures.times(turn, verdict.place)
    if count < (turn.policy.max_same_failure if is_trained else SAME_PLACE):
        return ""
    return f"{state.version} failed {count} times at {verdict.place} without a new step in between"


def roll_back(turn: Turn, version: str, why: str) -> None:
    """The coming generation runs this older version; the one that ran is never started again by itself."""
    bad = turn.state.version
    candidate = find(turn.state, bad)
    if candidate is None or bad == version:
        return
    _begin(turn, version)
    turn.set(has_returned=True)
    _conclude(turn, bad, Stage.ROLLED_BACK, why, back_to=version)


def _made_of(turn: Turn, event: UpdateRequested) -> Version:
    """The version that this change makes of the newest one before it."""
    asked_for = [c.version for c in turn.state.candidates if c.stage in _ASKED_FOR]
    base = asked_for[-1] if asked_for else running(turn.state) or FIRST
    return Version(
        id=event.version,
        source=event.source,
        code=event.code or base.code,
        root=event.root if event.code else base.root,
        args=base.args if event.args is None else event.args,
        env={name: value for name, value in {**base.env, **event.env}.items() if name not in event.variables},
        variables={name: kept for name, kept in base.variables.items() if name not in event.env} | event.variables,
        is_urgent=event.is_urgent,
        by=event.by,
        why=event.why,
        at=event.at,
    )


def _why_not(turn: Turn, event: UpdateRequested) -> str:
    """Why this change is refused without a look at it."""
    if turn.state.ending is not None:
        return "the run is ending"
    if event.code and turn.spec.launch is Launch.COMMAND:
        return "the program is not run by our interpreter (--no-python): only arguments and environment can be changed"
    if not event.code and event.args is None and not event.env and not event.variables:
        return "nothing is changed: neither code, nor arguments, nor environment"
    return ""


def _have_checked(turn: Turn, candidate: Candidate) -> None:
    """Some node looks at it; another one, if that is gone."""
    members = turn.state.members
    asked = members.get(candidate.checked_on)
    if asked is not None and asked.role is not Role.OUT:
        return
    alive = [m for m in members.values() if m.role is not Role.OUT and not m.suspected]
    chosen = next((m for m in alive if m.role is Role.STANDBY), alive[0] if alive else None)
    if chosen is None:
        return
    version = candidate.version
    _replace(turn, msgspec.structs.replace(candidate, checked_on=chosen.node))
    turn.do(check_action(turn.state, version, chosen.node, f"{version.id} must be able to start before it may"))
    why = f"{chosen.node} has to say whether it can start"
    turn.start_timer(Timer(TimerKind.UPDATE_CHECK, version.id), CHECK_LIMIT_S, why)


def check_action(state: State, version: Version, node: str, why: str) -> ValidateUpdate:
    member = state.members.get(node)
    is_idle = member is not None and member.role is Role.STANDBY
    return ValidateUpdate(node=node, version=version, can_start=is_idle, limit_s=CHECK_LIMIT_S, why=why)


def pending_checks(state: State, why: str) -> list[ValidateUpdate]:
    """List the checks that were asked of nodes and not answered."""
    checking = [c for c in state.candidates if c.stage is Stage.CHECKING and c.checked_on]
    return [check_action(state, c.version, c.checked_on, why) for c in checking]


def _interrupt(turn: Turn, version: Version) -> None:
    """End the generation in order, snapshots first; nodes, standbys and twins stay."""
    state = turn.state
    nodes = state.active_nodes
    if state.phase not in (Phase.FORMING, Phase.RUNNING) or state.ending is not None or not nodes:
        return
    turn.enter(Phase.STOPPING, waiting=Names(nodes), updating=version.id)
    why = f"{version.id} is {'urgent' if version.is_urgent else 'due'}: all ranks end, and start again with it"
    turn.do(*stopping.stops(turn, nodes, why, grace_s=turn.policy.stop_grace_s, save_s=turn.policy.save_s))


def _is_due(turn: Turn, version: Version) -> bool:
    return version.is_urgent or turn.at >= version.at + turn.policy.update_after_s


def _limit_text(turn: Turn) -> str:
    return f"after {turn.policy.update_after_s:g} s without one (policy update_after_s)"


def _begin(turn: Turn, version: str) -> None:
    state = turn.state
    turn.set(
        version=version,
        version_since=state.best_step,
        version_generation=state.generation + 1,
        failure=None,  # of other code
        proposed_version="",
    )


def _has_new_step(turn: Turn) -> bool:
    """Whether every rank has made a new step since the version was started. A program that does not count its steps
    begins at 0 each time."""
    state = turn.state
    if not state.has_own_steps:
        return state.tally.completed_step is not None
    return state.best_step is not None and (state.version_since is None or state.best_step > state.version_since)


def _has_trained(turn: Turn) -> bool:
    state, needed = turn.state, turn.policy.trained_steps
    if state.phase is not Phase.RUNNING:
        return False
    if not state.has_stepped:
        return state.formation is not None and turn.at - state.formation.at >= turn.policy.trained_s
    if state.has_own_steps:
        since = -1 if state.version_since is None else state.version_since
        return state.best_step is not None and state.best_step >= since + needed
    done = state.tally.completed_step
    return done is not None and done + 1 >= needed


def _note_trained(turn: Turn, candidate: Candidate) -> None:
    if candidate.version.id == FIRST.id:  # the first version was not requested, so there is nothing to report
        _replace(turn, msgspec.structs.replace(candidate, stage=Stage.TRAINED))
    else:
        _conclude(turn, candidate.version.id, Stage.TRAINED, _trained_text(turn))


def _trained_text(turn: Turn) -> str:
    if not turn.state.has_stepped:
        return f"every rank runs for {turn.policy.trained_s:g} s (policy trained_s)"
    return f"{turn.policy.trained_steps} new steps on every rank (policy trained_steps)"


def _conclude(turn: Turn, version: str, stage: Stage, why: str, back_to: str = "") -> None:
    candidate = find(turn.state, version)
    assert candidate is not None
    _replace(turn, msgspec.structs.replace(candidate, stage=stage))
    turn.do(UpdateConcluded(version=version, stage=stage, why=why, back_to=back_to))


def _replace(turn: Turn, candidate: Candidate) -> None:
    name = candidate.version.id
    turn.set(candidates=tuple(candidate if c.version.id == name else c for c in turn.state.candidates))
