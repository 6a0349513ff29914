"""Rules that judge a machine by its past: healthy, suspect or quarantined. Pure: the same past gives the same answer.

Nothing here reads a clock or a file. Called by `health.store`, which keeps the past, and explained in docs/nodes.md.
"""

import enum
from collections.abc import Sequence

import msgspec

from everstep.model.verdict import Blame

DAY_S = 86400.0


class State(enum.StrEnum):
    HEALTHY = "healthy"  # nothing that still counts
    SUSPECT = "suspect"  # had a fault not long ago; in use, watched
    QUARANTINED = "quarantined"  # not to be used until a check passed and a user readmitted it


class Kind(enum.StrEnum):
    """Events in the life of a machine."""

    INCIDENT = "incident"  # a verdict named it
    ALERT = "alert"  # it noticed something about itself
    EVICTION = "eviction"  # a run gave it up
    CHECK_FAILED = "check failed"
    CHECK_PASSED = "check passed"
    QUARANTINED = "quarantined"
    READMITTED = "readmitted"


class HealthEvent(msgspec.Struct, frozen=True, kw_only=True):
    host: str = ""  # filled in where the machine of a node is known
    at: float
    kind: Kind
    why: str
    code: str = ""
    blame: str = ""  # value of verdict.Blame; empty: not said, counts as the machine's
    severity: str = ""  # "fault", "error", "warning"; empty counts as an error
    action: str = ""  # what its signature suggests, of the closed list in `knowledge`
    run: str = ""
    incident: str = ""
    by: str = "everstep"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers. Suspicion fades with time; a machine that comes back again and again is quarantined."""

    half_life_days: float = 7.0
    """Too short: a machine that fails every week is new each time. Too long: one bad day follows it for months."""

    max_faults: int = 3
    """Faults within `window_days` that quarantine a machine: once is chance, twice a coincidence."""

    window_days: float = 7.0

    suspect_score: float = 0.4
    """A fresh error counts 0.5, a fresh fault 1."""

    episode_s: float = 600.0
    """One fault arrives several times: as alert, incident and eviction. Events this near count once."""

    goes_on_s: float = 7800.0
    """An alert of the same code within this time is the same fault going on: agents repeat it every fifty minutes, and
    treat it as new after two hours without it."""

    network_weight: float = 0.5
    """Weight of a fault of the network among `max_faults`: the other end of the cable may be to blame as well."""

    forgiven: float = 0.5
    """Weight of faults from before a readmission: a repaired machine is trusted, not blindly."""


DEFAULT = Rules()
_POINTS = {"fault": 1.0, "error": 0.5, "": 0.5, "warning": 0.0}
_NOT_THE_MACHINE = (Blame.USER, Blame.STORAGE, Blame.ENVIRONMENT, Blame.SCHEDULER, Blame.OPERATOR, Blame.UNKNOWN)
_FAULTS = (Kind.INCIDENT, Kind.ALERT, Kind.EVICTION, Kind.CHECK_FAILED)


class Episode(msgspec.Struct, frozen=True, kw_only=True):
    """One fault, however often it was reported."""

    at: float
    until: float
    points: float
    events: tuple[HealthEvent, ...]

    @property
    def worst(self) -> HealthEvent:
        return max(self.events, key=points_of)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    state: State
    why: str
    score: float


def points_of(event: HealthEvent) -> float:
    """How much one event speaks against the machine itself."""
    if event.kind not in _FAULTS or event.blame in _NOT_THE_MACHINE:
        return 0.0
    if event.kind in (Kind.EVICTION, Kind.CHECK_FAILED):
        return 1.0
    return _POINTS.get(event.severity, 0.5)


def episodes_of(events: Sequence[HealthEvent], rules: Rules = DEFAULT) -> list[Episode]:
    """Faults, oldest first."""
    found: list[Episode] = []
    for event in sorted(events, key=lambda one: one.at):
        points = points_of(event)
        if not points:
            continue
        last = found[-1] if found else None
        if last is not None and _belongs(event, last, rules):
            found[-1] = Episode(
                at=last.at, until=event.at, points=max(last.points, points), events=(*last.events, event)
            )
        else:
            found.append(Episode(at=event.at, until=event.at, points=points, events=(event,)))
    return found


def _belongs(event: HealthEvent, episode: Episode, rules: Rules) -> bool:
    gap_s = event.at - episode.until
    if event.kind is Kind.ALERT and event.code and any(one.code == event.code for one in episode.events):
        return gap_s <= rules.goes_on_s
    return gap_s <= rules.episode_s


def score(events: Sequence[HealthEvent], now: float, rules: Rules = DEFAULT) -> float:
    """Suspicion now: fades by half in `half_life_days`, and by `forgiven` with the last readmission."""
    readmitted_at = _last(events, Kind.READMITTED)
    total = 0.0
    for episode in episodes_of(events, rules):
        age_s = max(0.0, now - episode.until)
        weight = rules.forgiven if episode.until <= readmitted_at else 1.0
        total += weight * episode.points * 0.5 ** (age_s / (rules.half_life_days * DAY_S))
    return total


def judge(events: Sequence[HealthEvent], now: float, rules: Rules = DEFAULT) -> Judgement:
    """Judge the machine by its whole past. Quarantine ends only by a readmission."""
    total = score(events, now, rules)
    quarantine = _quarantine(events, rules)
    if quarantine:
        return Judgement(state=State.QUARANTINED, why=quarantine, score=total)
    cleared_at = max(_last(events, Kind.READMITTED), _last(events, Kind.CHECK_PASSED))
    counts = [episode for episode in episodes_of(events, rules) if episode.until > cleared_at]
    if counts and total >= rules.suspect_score:
        worst = counts[-1].worst
        return Judgement(state=State.SUSPECT, why=_told(worst), score=total)
    if cleared_at > float("-inf"):
        return Judgement(state=State.HEALTHY, why="no fault since it was last checked or readmitted", score=total)
    return Judgement(state=State.HEALTHY, why="no fault that still counts", score=total)


def why_not_readmit(events: Sequence[HealthEvent]) -> str:
    """Why a machine is not taken back without force; empty when it may be."""
    faults = [event.at for event in events if points_of(event) or event.kind is Kind.QUARANTINED]
    passed_at = _last(events, Kind.CHECK_PASSED)
    if passed_at == float("-inf"):
        return "no check has passed on it"
    if faults and passed_at <= max(faults):
        return "no check has passed on it since its last fault"
    return ""


def _quarantine(events: Sequence[HealthEvent], rules: Rules) -> str:
    """Why the machine is quarantined; empty when it is not. Each fault is judged as it came: what was decided once is
    not undone by time."""
    readmitted_at = _last(events, Kind.READMITTED)
    for event in events:
        if event.at > readmitted_at and event.kind is Kind.QUARANTINED:
            return event.why
    episodes = episodes_of(events, rules)
    for index, episode in enumerate(episodes):
        if episode.until <= readmitted_at:
            continue
        worst = episode.worst
        if worst.severity == "fault" and worst.action == "REPLACE_NODE":
            return f"needs replacing: {_told(worst)}"
        window = [e for e in episodes[: index + 1] if episode.until - e.until <= rules.window_days * DAY_S]
        if sum(_weight(each, readmitted_at, rules) for each in window) >= rules.max_faults:
            return f"{len(window)} faults within {rules.window_days:g} days, last: {_told(worst)}"
    return ""


def _weight(episode: Episode, readmitted_at: float, rules: Rules) -> float:
    """The weight of one fault among those that quarantine. From before the readmission it counts at a discount."""
    weight = rules.network_weight if episode.worst.blame == Blame.NETWORK else 1.0
    return weight * (rules.forgiven if episode.until <= readmitted_at else 1.0)


def _told(event: HealthEvent) -> str:
    return f"{event.code} {event.why}" if event.code else event.why


def _last(events: Sequence[HealthEvent], kind: Kind) -> float:
    return max((event.at for event in events if event.kind is kind), default=float("-inf"))
