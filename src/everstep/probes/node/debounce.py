"""Decides which alerts go on, and with which severity. Pure: the same alerts at the same times give the same result.

Three rules. The first network alert of a source and device within five minutes is only a warning, because links bounce.
A repeated alert is folded into a count and reported again after a minute, five minutes, fifty. And one node reports a
bounded number of alerts per minute, worst first. Called by `agent.senses.sensing`.
"""

from collections.abc import Sequence

import msgspec

from everstep.knowledge.signature import Action
from everstep.model.facts import Alert
from everstep.model.verdict import Blame
from everstep.probes.sense import alert

NETWORK_WINDOW_S = 300.0
NETWORK_ALERTS = 2
"""Baige's rule: two alerts in five minutes. With one, every bounce of a link would move a job. With more, a dying link
would be found late."""
REPEAT_S = (60.0, 300.0, 3000.0)
"""Seconds after which an alert that continues is reported again. The last one repeats for ever, and is shorter than the
hour for which the controller remembers alerts, so a continuing alert is not a new one."""
EXPLAINS_S = 10.0
"""A cause and the end of a rank this close together belong together: then no repeat is folded."""
FORGET_S = 2 * 3600.0
"""After this time without the alert, the next one counts as the first."""
MAX_PER_MINUTE = 20
MAX_WARNINGS_PER_MINUTE = 12
"""So that warnings never take the room of alerts that need action."""
MAX_FAULTS_PER_MINUTE = 60
"""Faults may exceed the limit: a node has no more devices that can fail than this."""
_MAX_KEYS = 2000
_MAX_FOLDED = 16

_RANKING = {"fault": 2, "error": 1, "warning": 0}
_Key = tuple[str, str, int | None, str]


class _Known(msgspec.Struct):
    """The history of reports for one code, device and rank."""

    told_at: float
    seen_at: float
    severity: str
    num_told: int = 1
    num_folded: int = 0


class Debounce:
    """Takes alerts in order of time and returns those to report."""

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._network: dict[tuple[str, str, str], list[float]] = {}
        self._folded: list[tuple[float, Alert]] = []  # causes of the last seconds that were not reported
        self._minute_at = float("-inf")
        self._num_told = self._num_warned = self._num_left_out = 0

    def take(self, now: float, alerts: Sequence[Alert], *, has_died: bool = False) -> list[Alert]:
        """Alerts to report, worst first. `has_died`: a rank of this node has just ended, so a cause is reported however
        often it was reported before, also one that was folded just now."""
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
        """Whether to report it; False: it is folded into the previous report."""
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
        """A count of left-out alerts, once there is room again, so that the number is final."""
        if not self._num_left_out or self._num_told:
            return []
        number, self._num_left_out = self._num_left_out, 0
        self._num_told += 1
        sentence = f"{number} more alerts were left out: at most {MAX_PER_MINUTE} are passed on in a minute"
        return [alert("ES-M00", sentence, at=now, source="everstep", count=number)]


def _is_cause(one: Alert) -> bool:
    """Whether an alert of a device or a machine is a cause by itself. A network alert counts only the second time, also
    if a rank ended."""
    return one.role == "root" and one.severity in ("fault", "error") and one.blame != Blame.NETWORK


def _as_machines(one: Alert) -> Alert:
    """A card or port of this node that fails again within minutes is a fault of the machine: ByteRobust evicts then."""
    is_own = one.component == "nic" and one.device and one.action == Action.CHECK_NETWORK
    return msgspec.structs.replace(one, action=str(Action.DRAIN_AND_RESTART_NODE)) if is_own else one


def _key(one: Alert) -> _Key:
    return (one.code, one.device, one.rank, one.blame)


def _bound(table: dict[_Key, _Known] | dict[tuple[str, str, str], list[float]]) -> None:
    """Drop the least recently reported entry first; a node that names thousands of devices invents them."""
    while len(table) > _MAX_KEYS:
        del table[next(iter(table))]  # type: ignore[arg-type]
