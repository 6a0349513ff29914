"""Which alerts are passed on, and as what: pure, so that the same alerts at the same times always come out the same.

Three rules. The first network alert of a source and device within five minutes is only a warning: links bounce. What
repeats is folded into a count and told again after a minute, five minutes, fifty. And one node passes on a bounded
number per minute, worst first. Called by `agent.senses.sensing`.
"""

from collections.abc import Sequence

import msgspec

from everstep.knowledge.signature import Action
from everstep.model.facts import Alert
from everstep.model.verdict import Blame
from everstep.probes.sense import alert

NETWORK_WINDOW_S = 300.0
NETWORK_ALERTS = 2
"""Baige's rule: two alerts in five minutes. One: every bounce of a link moves a job. More: a dying link takes long."""
REPEAT_S = (60.0, 300.0, 3000.0)
"""After how long what goes on is told again; the last one is for ever, and less than the hour for which the controller
remembers alerts: what goes on is not news."""
EXPLAINS_S = 10.0
"""A cause and the end of a rank that are so close together belong together: no repeat is folded then."""
FORGET_S = 2 * 3600.0
"""Not seen for so long: the next time is the first time."""
MAX_PER_MINUTE = 20
MAX_WARNINGS_PER_MINUTE = 12
"""So that warnings never use up the room of what somebody has to act on."""
MAX_FAULTS_PER_MINUTE = 60
"""Faults go out above the limit: a node has no more devices that can fail than this."""
_MAX_KEYS = 2000
_MAX_FOLDED = 16

_RANKING = {"fault": 2, "error": 1, "warning": 0}
_Key = tuple[str, str, int | None, str]


class _Known(msgspec.Struct):
    """What was told of one code, device and rank."""

    told_at: float
    seen_at: float
    severity: str
    num_told: int = 1
    num_folded: int = 0


class Debounce:
    """Feed alerts in the order of their time; take what is to be reported."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._network: dict[tuple[str, str, str], list[float]] = {}
        self._folded: list[tuple[float, Alert]] = []  # causes of the last seconds that were not told
        self._minute_at = float("-inf")
        self._num_told = self._num_warned = self._num_left_out = 0

    def take(self, now: float, alerts: Sequence[Alert], *, has_died: bool = False) -> list[Alert]:
        """Worst first. `has_died`: a rank of this node has ended a moment ago, so a cause is news however often it was
        told, also one that was folded just before."""
        self._begin_minute(now)
        self._folded = [(at, one) for at, one in self._folded[-_MAX_FOLDED:] if 0 <= now - at <= EXPLAINS_S]
        if has_died:
            again, self._folded = [one for _, one in self._folded], []
            causes = [one for one in alerts if _is_cause(one)]
            told = [self._tell(now, one) for one in (*again, *causes) if self._has_room(one)]
            return [*told, *self.take(now, [one for one in alerts if not _is_cause(one)])]
        softened = sorted((self._soften(now, one) for one in alerts), key=lambda one: -_RANKING.get(one.severity, 0))
        summary = self._summary(now)
        return [*summary, *(self._tell(now, one) for one in softened if self._is_due(now, one) and self._has_room(one))]

    def _soften(self, now: float, one: Alert) -> Alert:
        if one.blame != Blame.NETWORK or one.severity == "warning":
            return one
        key = (one.source, one.device, one.code)
        times = [at for at in self._network.get(key, []) if 0 <= now - at <= NETWORK_WINDOW_S]
        times += [now] * min(one.count, NETWORK_ALERTS)
        self._network[key] = times[-NETWORK_ALERTS:]
        _bound(self._network)
        if len(times) >= NETWORK_ALERTS:
            return _as_machines(one)
        sentence = f"{one.sentence} (the first in five minutes; a second one counts as {one.severity})"
        return msgspec.structs.replace(one, severity="warning", sentence=sentence)

    def _is_due(self, now: float, one: Alert) -> bool:
        """False when it is folded into the report before it."""
        known = self._known.get(_key(one))
        if known is None or now - known.seen_at > FORGET_S or now < known.told_at:
            return True
        known.seen_at = now
        if _RANKING.get(one.severity, 0) > _RANKING.get(known.severity, 0):
            return True
        if now - known.told_at >= REPEAT_S[min(known.num_told, len(REPEAT_S)) - 1]:
            return True
        known.num_folded += one.count
        if _is_cause(one):
            self._folded.append((now, one))
        return False

    def _has_room(self, one: Alert) -> bool:
        warns = one.severity == "warning"
        limit = MAX_FAULTS_PER_MINUTE if one.severity == "fault" else MAX_PER_MINUTE
        if self._num_told >= limit or (warns and self._num_warned >= MAX_WARNINGS_PER_MINUTE):
            self._num_left_out += one.count
            return False
        self._num_told += 1
        self._num_warned += warns
        return True

    def _tell(self, now: float, one: Alert) -> Alert:
        before = self._known.pop(_key(one), None)
        told, folded = (before.num_told, before.num_folded) if before is not None else (0, 0)
        if before is not None and now - before.seen_at > FORGET_S:
            told = folded = 0
        self._known[_key(one)] = _Known(told_at=now, seen_at=now, severity=one.severity, num_told=told + 1)
        _bound(self._known)
        return msgspec.structs.replace(one, count=one.count + folded) if folded else one

    def _begin_minute(self, now: float) -> None:
        if not 0 <= now - self._minute_at < 60.0:
            self._minute_at = now
            self._num_told = self._num_warned = 0

    def _summary(self, now: float) -> list[Alert]:
        """Said once there is room again, so that the number is final."""
        if not self._num_left_out or self._num_told:
            return []
        number, self._num_left_out = self._num_left_out, 0
        self._num_told += 1
        sentence = f"{number} more alerts were left out: at most {MAX_PER_MINUTE} are passed on in a minute"
        return [alert("ES-M00", sentence, at=now, source="everstep", count=number)]


def _is_cause(one: Alert) -> bool:
    """Of a device or a machine, by its own word. What a network does counts only the second time, rank or no rank."""
    return one.role == "root" and one.severity in ("fault", "error") and one.blame != Blame.NETWORK


def _as_machines(one: Alert) -> Alert:
    """A card or port of this node that goes bad again within minutes goes with its machine: ByteRobust evicts then."""
    is_own = one.component == "nic" and one.device and one.action == Action.CHECK_NETWORK
    return msgspec.structs.replace(one, action=str(Action.DRAIN_AND_RESTART_NODE)) if is_own else one


def _key(one: Alert) -> _Key:
    return (one.code, one.device, one.rank, one.blame)


def _bound(table: dict[_Key, _Known] | dict[tuple[str, str, str], list[float]]) -> None:
    """Least recently told goes first; a node that names thousands of devices is making them up."""
    while len(table) > _MAX_KEYS:
        del table[next(iter(table))]  # type: ignore[arg-type]
