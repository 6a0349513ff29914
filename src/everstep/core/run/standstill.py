"""A job that stands still and may recover by itself: when to act on it, by the price of a mistake.

Pure. What is certain is acted on at once. If a standstill that would end by itself is mistaken for a hang, a job with a
snapshot loses some seconds, and a job without one loses everything. So the first gets half a minute or a minute, the
second the time limit of the collective that its ranks wait in, after which torch itself ends it. A place that was
mistaken before, or was seen to take long, gets more (docs/hang-rule.md, ADR 0018).

The journal records what is awaited and what will be done when. The wait ends when the job continues, when its time is
over, when a user asks for a restart, or with whatever else ends the generation.
"""

import msgspec

from everstep.core.state.phases import Phase
from everstep.core.state.policy import Policy
from everstep.core.state.schema import Place, Standstill
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Concluded, IncidentClosed
from everstep.model.spec import Mode
from everstep.model.verdict import Certainty, Decision, Refusal, Verdict

RULE = "wait"

LATE_S = 10.0
"""A timer that fires later than this was not watched meanwhile (the machine slept), so it starts again."""

LIMIT_SLACK_S = 30.0
"""Slack after the time limit of a collective: torch raises first, and its own message says more than ours."""

SEEN_STRETCH = 2.0
"""A place that was seen to take so long, and recovered by itself, may take so many times as long."""


STOPPED = "ES-H01"
"""Code of a hang: processes were stopped from outside. The program has no part in it: it is never taken for its own."""


AGAIN = 5.0
"""Every time that a place was acted on, it gets so many times as long. Twice would mistake an upload of two minutes
once more."""


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """`act_after_s`: since the job stood still; 0: now, None: never, it is only reported."""

    act_after_s: float | None
    why: str


def key_of(verdict: Verdict) -> str:
    """Under which a place is remembered: the same class at the same line."""
    return f"{verdict.certainty or Certainty.DOUBTFUL} {verdict.place or verdict.code}"


def known_of(turn: Turn, verdict: Verdict) -> Place:
    """Return what is known of the place of this hang. If steps are counted anew after each restart they show no
    progress: a certain hang then counts as another one once the job has trained for long."""
    known = turn.state.places.get(key_of(verdict), Place())
    is_old = not turn.state.has_own_steps and turn.at - known.at > turn.policy.course_s
    return msgspec.structs.replace(known, times=0) if is_old and verdict.certainty is Certainty.CERTAIN else known


def is_repeated(known: Place, step: int | None) -> bool:
    """Return whether a certain hang came again at the same step or an earlier one: the job made no progress in
    between."""
    return known.times > 0 and (step is None or known.step is None or step <= known.step)


def patience(
    verdict: Verdict,
    *,
    known: Place,
    step: int | None,
    has_way_back: bool,
    window_s: float,
    limit_s: float | None,
    policy: Policy,
) -> Patience:
    """For this verdict on a hang. `window_s`: the longest silence that is usual here; `limit_s`: of the collective."""
    limit = policy.hang_limit_s if limit_s is None else limit_s
    name = "the collective's own time limit" if limit_s is not None else "the usual time limit of a collective"
    over = Patience(act_after_s=limit + LIMIT_SLACK_S, why=f"{name} is {limit:g} s")
    if verdict.certainty is Certainty.CERTAIN:
        if is_repeated(known, step) and known.times >= policy.hang_repeats and verdict.code != STOPPED:
            return msgspec.structs.replace(over, why=f"{_so_often(known)} without a new step in between; {over.why}")
        return Patience(act_after_s=0.0, why="nothing can release it")
    if known.times >= policy.hang_repeats:
        return msgspec.structs.replace(over, why=f"{_so_often(known)}, and it came again; {over.why}")
    if not has_way_back and policy.hang_plain_s <= 0:
        return msgspec.structs.replace(over, why=f"nothing is saved, so a mistake costs everything; {over.why}")
    return _of_a_mistake_that_costs_seconds(verdict, known, has_way_back, window_s, over, policy)


def _of_a_mistake_that_costs_seconds(
    verdict: Verdict, known: Place, has_way_back: bool, window_s: float, over: Patience, policy: Policy
) -> Patience:
    if has_way_back:
        usual_s = policy.hang_computing_s if verdict.computes else policy.hang_outside_s
        setting = "hang_computing_s" if verdict.computes else "hang_outside_s"
    else:
        usual_s, setting = policy.hang_plain_s, "hang_plain_s"
    found = max((usual_s * AGAIN**known.times, 0), (window_s, 1), (SEEN_STRETCH * known.longest_s, 2))
    whys = (
        f"policy {setting} = {usual_s:g} s"
        + (f", {AGAIN**known.times:g} times as it came again" if known.times else ""),
        f"up to {window_s:.0f} s are usual here",
        f"this place has taken {known.longest_s:.0f} s before, and continued",
    )
    assert over.act_after_s is not None
    if found[0] > over.act_after_s:
        return over
    return Patience(act_after_s=found[0], why=whys[found[1]])


def _so_often(known: Place) -> str:
    return f"a restart did not help {_times(known.times)}"


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


def begin(turn: Turn, verdict: Verdict, given: Patience) -> None:
    """Leave the job as it is, and say until when. The incident stays open."""
    incident = turn.incident
    assert incident.facts.hang is not None
    since = incident.facts.hang.at
    act_at = None if given.act_after_s is None else max(turn.at, since + given.act_after_s)
    decision = _decision(turn, verdict, given, act_at)
    turn.set_incident(verdict=verdict, decision=decision)
    turn.do(Concluded(incident=incident.id, verdict=verdict, decision=decision, why=decision.why))
    standing = Standstill(
        incident=turn.incident, since=since, act_at=act_at, place=key_of(verdict), step=turn.state.tally.completed_step
    )
    turn.enter(Phase.RUNNING, incident=None, standstill=standing)
    if act_at is not None:
        turn.start_timer(Timer(TimerKind.ACT, incident.id), act_at - turn.at, decision.why)


def _decision(turn: Turn, verdict: Verdict, given: Patience, act_at: float | None) -> Decision:
    what = f"restart all {turn.spec.world_size} ranks"
    if act_at is None or turn.spec.mode is not Mode.ACT:
        chosen = "leave the job as it is"
    else:
        chosen = f"leave the job as it is for {_span(act_at - turn.at)}, then {what}"
    chosen = f"{chosen} (`everstep restart` does it now)"
    why = f"{verdict.certainty or Certainty.DOUBTFUL}: {verdict.because or verdict.sentence}; {given.why}"
    is_certain = verdict.certainty is Certainty.CERTAIN
    hope = "it would come again" if is_certain else "it may continue by itself"
    refused = (Refusal(what=f"{what} now", why=f"{hope}; {given.why}"),)
    return Decision(chosen=chosen, rule=RULE, why=why, refused=refused, act_at=act_at)


def _span(seconds: float) -> str:
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    if not minutes:
        return f"{whole} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def close(turn: Turn, outcome: str, why: str) -> None:
    """It is over, and nothing was done because of it. Nothing where none is."""
    standing = turn.state.standstill
    if standing is None:
        return
    turn.drop_timer(Timer(TimerKind.ACT, standing.incident.id))
    turn.set(standstill=None)
    turn.do(IncidentClosed(incident=standing.incident.id, outcome=outcome, why=why))


def went_on(turn: Turn, lasted_s: float) -> None:
    """By itself: from now on this place is known to take so long."""
    standing = turn.state.standstill
    assert standing is not None
    known = turn.state.places.get(standing.place, Place())
    learnt = msgspec.structs.replace(known, longest_s=max(known.longest_s, lasted_s))
    turn.set(places=turn.state.places.updated({standing.place: learnt}))
    close(turn, "passed", f"it continued by itself after {lasted_s:.0f} s")


def take_up(turn: Turn) -> None:
    """Its time is over: the incident is the current one again, to be acted on."""
    standing = turn.state.standstill
    assert standing is not None
    turn.drop_timer(Timer(TimerKind.ACT, standing.incident.id))
    turn.set(standstill=None, incident=standing.incident)


def wait_again(turn: Turn) -> None:
    """Start the wait again: it passed unwatched."""
    standing = turn.state.standstill
    assert standing is not None
    assert standing.act_at is not None
    left_s = max(LATE_S, standing.act_at - standing.since)
    turn.set(standstill=msgspec.structs.replace(standing, act_at=turn.at + left_s, since=turn.at))
    why = "its time passed unwatched (the machine slept, or the controller was gone): it begins again"
    turn.start_timer(Timer(TimerKind.ACT, standing.incident.id), left_s, why)


def note_acted_on(turn: Turn, verdict: Verdict) -> None:
    """A restart is made because of this place."""
    key, step, known = key_of(verdict), turn.state.tally.completed_step, known_of(turn, verdict)
    is_progress = (
        verdict.certainty is Certainty.CERTAIN and known.step is not None and step is not None and step > known.step
    )
    times = 1 if is_progress else known.times + 1
    learnt = msgspec.structs.replace(known, times=times, step=step, at=turn.at)
    turn.set(places=turn.state.places.updated({key: learnt}))
