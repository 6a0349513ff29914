"""Search for the alert that explains a fault, if any does, among what nodes noticed about themselves. Pure; used by
`exits`.

A rank that dies of a broken GPU says "CUDA error"; the kernel of its node says which GPU and why. The alert is the
cause when it came around that time, from the same node, and names a cause and not a consequence. A rank's own Python
exception that has nothing to do with hardware is believed before any alert.
"""

from collections.abc import Collection, Sequence

import msgspec

from everstep.model.facts import DRAINED, Alert
from everstep.model.verdict import Blame, Confidence, Evidence, Verdict

BEFORE_S = 120.0
"""How long before the fault an alert may have come. A GPU that fell off the bus is noticed by the next kernel launch; a
link that goes down by a time-out of up to two minutes."""

AFTER_S = 10.0
"""How long after: the kernel log is read within a second, counters every ten."""

TIERS = ("fault", "error")
"""Severities that explain something; warnings and information are only on record."""

_ORDER = {"fault": 0, "error": 1}
_USER_OR_GPU = ("ES-G13", "ES-G31")
"""Xid 13 and 31: on different GPUs it is the code, on the same GPU again it is that GPU."""


class SeenAlert(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    alert: Alert


def is_cause(alert: Alert) -> bool:
    """Whether it can be the cause of anything."""
    return alert.role in ("root", "either") and alert.severity in TIERS


def cause_among(seen: Sequence[SeenAlert], at: float, nodes: Collection[str]) -> SeenAlert | None:
    """The alert that explains a fault of this time. `nodes`: where it happened; empty if unknown."""
    near = [
        each
        for each in seen
        if is_cause(each.alert)
        and each.alert.code != DRAINED  # the operator who drains a machine has not broken it
        and at - BEFORE_S <= each.alert.at <= at + AFTER_S
        and (not nodes or each.node in nodes)
    ]
    return min(near, key=_rank, default=None)


def verdict_on(chosen: SeenAlert, seen: Sequence[SeenAlert], at: float, ranks: tuple[int, ...], then: str) -> Verdict:
    """The verdict that an alert is the cause. `then`: what it led to; empty when nothing has happened yet."""
    alert = chosen.alert
    again = _seen_before(chosen, seen)
    blame = Blame.MACHINE if again else blame_of(alert)
    device = f" on {alert.device}" if alert.device and alert.device not in alert.sentence else ""
    noted = ", on the same device as before, so it is the device and not the code" if again else ""
    return Verdict(
        code=alert.code,
        sentence=f"{chosen.node}: {alert.sentence.removesuffix('.')}{device}{noted}" + (f"; {then}" if then else ""),
        blame=blame,
        confidence=Confidence.HIGH if alert.role == "root" else Confidence.MEDIUM,
        ranks=ranks,
        node=chosen.node,
        at=min(at, alert.at),
        action="RESET_GPU" if again and alert.action == "CHECK_USER_CODE" else alert.action,
        evidence=evidence_of([chosen, *(each for each in seen if each != chosen and each.node == chosen.node)], at),
    )


def evidence_of(seen: Sequence[SeenAlert], at: float) -> tuple[Evidence, ...]:
    """Return the alerts around that time as evidence, 16 at most, in the order of the list."""
    return tuple(
        Evidence(
            at=each.alert.at,
            source=each.alert.source or "node",
            says=f"{each.alert.code} {each.alert.sentence}"
            + (f" ({each.alert.count} times)" if each.alert.count > 1 else ""),
            rank=each.alert.rank,
            node=each.node,
            detail=each.alert.line,
        )
        for each in seen
        if at - BEFORE_S <= each.alert.at <= at + AFTER_S
    )[:16]


def _rank(seen: SeenAlert) -> tuple[int, bool, bool, float]:
    alert = seen.alert
    return _ORDER[alert.severity], alert.blame == "user", alert.role != "root", alert.at


def _seen_before(chosen: SeenAlert, seen: Sequence[SeenAlert]) -> bool:
    """Whether the same device had the same alert before, long enough ago for it to have been another fault."""
    alert = chosen.alert
    if alert.code not in _USER_OR_GPU or not alert.device:
        return False
    return any(
        each.node == chosen.node
        and is_cause(each.alert)  # not what an unrelated program did there
        and (each.alert.code, each.alert.device) == (alert.code, alert.device)
        and each.alert.at < alert.at - BEFORE_S / 4
        for each in seen
    )


def blame_of(alert: Alert) -> Blame:
    try:
        return Blame(alert.blame)
    except ValueError:
        return Blame.UNKNOWN
