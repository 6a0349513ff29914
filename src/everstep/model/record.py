"""One line of the journal: an event, and what was decided because of it. Journal first, then act."""

import msgspec

from everstep.model.actions import Action
from everstep.model.events import Event

SCHEMA_VERSION = 1
"""Grows only when an old reader would misread a new journal."""


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`seq` starts at 1 and has no holes. (`source`, `source_seq`) identify a report of an agent or the launcher:
    a report that is sent again after a lost connection is recognised by it and dropped."""

    v: int = SCHEMA_VERSION
    seq: int
    at: float  # controller's clock when it was written
    gen: int  # generation before the event
    event: Event
    actions: tuple[Action, ...] = ()
    source: str = ""
    source_seq: int = 0


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """First line of a journal, before any record."""

    v: int = SCHEMA_VERSION
    kind: str = "everstep-journal"
    run: str
    everstep_version: str
    policy: dict[str, float | int | str | bool]
