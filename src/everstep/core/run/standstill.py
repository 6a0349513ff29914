"""A job that stands still and may go on by itself: the incident waits, and the job is left as it is.

Pure. It is on record what is waited for and what will be done when. It ends when the job goes on, when its time is
over, when somebody does not want to wait, or with whatever else ends the generation.
"""

import msgspec

from everstep.core.run.patience import Patience, key_of
from everstep.core.state.phases import Phase
from everstep.core.state.place import Place
from everstep.core.state.schema import Incident, Standstill
from everstep.core.state.timers import Timer, TimerKind
from everstep.core.state.turn import Turn
from everstep.model.actions import Concluded, IncidentClosed
from everstep.model.spec import Mode
from everstep.model.verdict import Certainty, Decision, Refusal, Verdict

RULE = "wait"

LATE_S = 10.0
"""A timer that fires later than this says that nobody looked meanwhile (the machine slept): it starts again."""


def begin(turn: Turn, verdict: Verdict, patience: Patience) -> None:
    """Leave the job as it is, and say until when. The incident stays open."""
    incident = turn.incident
    assert incident.facts.hang is not None
    since = incident.facts.hang.at
    act_at = None if patience.act_after_s is None else max(turn.at, since + patience.act_after_s)
    decision = _decision(turn, verdict, patience, act_at)
    turn.set_incident(verdict=verdict, decision=decision)
    turn.do(Concluded(incident=incident.id, verdict=verdict, decision=decision, why=decision.why))
    standing = Standstill(incident=turn.incident, since=since, act_at=act_at, place=key_of(verdict), step=step_of(turn))
    turn.enter(Phase.RUNNING, incident=None, standstill=standing)
    if act_at is not None:
        turn.start_timer(Timer(TimerKind.ACT, incident.id), act_at - turn.at, decision.why)


def _decision(turn: Turn, verdict: Verdict, patience: Patience, act_at: float | None) -> Decision:
    what = f"restart all {turn.spec.world_size} ranks"
    if act_at is None or turn.spec.mode is not Mode.ACT:
        chosen = "leave the job as it is"
    else:
        chosen = f"leave the job as it is for {_span(act_at - turn.at)}, then {what}"
    chosen = f"{chosen} (`everstep restart` does it now)"
    why = f"{verdict.certainty or Certainty.DOUBTFUL}: {verdict.because or verdict.sentence}; {patience.why}"
    is_certain = verdict.certainty is Certainty.CERTAIN
    hope = "it would come again" if is_certain else "it may continue by itself"
    refused = (Refusal(what=f"{what} now", why=f"{hope}; {patience.why}"),)
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


def is_late(turn: Turn, due_at: float) -> bool:
    return turn.at - due_at > LATE_S


def wait_again(turn: Turn) -> None:
    """Nobody looked while its time passed."""
    standing = turn.state.standstill
    assert standing is not None
    assert standing.act_at is not None
    left_s = max(LATE_S, standing.act_at - standing.since)
    turn.set(standstill=msgspec.structs.replace(standing, act_at=turn.at + left_s, since=turn.at))
    why = "its time passed unwatched (the machine slept, or the controller was gone): it begins again"
    turn.start_timer(Timer(TimerKind.ACT, standing.incident.id), left_s, why)


def note_acted_on(turn: Turn, verdict: Verdict) -> None:
    """A restart is made because of this place."""
    key, step = key_of(verdict), step_of(turn)
    known = turn.state.places.get(key, Place())
    is_progress = (
        verdict.certainty is Certainty.CERTAIN and known.step is not None and step is not None and step > known.step
    )
    times = 1 if is_progress else known.times + 1
    turn.set(places=turn.state.places.updated({key: msgspec.structs.replace(known, times=times, step=step)}))


def step_of(turn: Turn) -> int | None:
    """The newest step that every rank of this generation has done."""
    return turn.state.tally.completed_step


def incident_of(turn: Turn) -> Incident | None:
    return None if turn.state.standstill is None else turn.state.standstill.incident
