"""Limits on what a peer reports of its machine and of times, by what the controller knows: these claims leave the run,
into the memory of machines and from there to a scheduler. Pure."""

import math

import msgspec

from everstep.model.events import Event, NodeAlerted, NodeJoined
from everstep.model.names import is_name

OLDEST_ALERT_S = 86400.0
"""Age that an alert may have when it arrives. A node that was cut off for a day is lost long before."""


def objection(event: Event, host: str) -> str:
    """Why a report cannot be believed; "" if it can. `host`: the machine that the peer's key is of."""
    if isinstance(event, NodeJoined) and not is_name(host or event.host):
        return f"{event.node} gives no name for its machine"
    return ""


def cut(event: Event, host: str, now: float) -> Event:
    """The report with its machine's name as the launcher knows it, and its alerts within the last day."""
    if isinstance(event, NodeJoined) and host and event.host != host:
        return msgspec.structs.replace(event, host=host)
    if isinstance(event, NodeAlerted):
        alerts = tuple(msgspec.structs.replace(each, at=_recent(each.at, now)) for each in event.alerts)
        return msgspec.structs.replace(event, alerts=alerts)
    return event


def _recent(at: float, now: float) -> float:
    """NaN is now."""
    return now if math.isnan(at) else min(max(now - OLDEST_ALERT_S, at), now)
