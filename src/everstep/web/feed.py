"""Rows with keys, and which of them changed since a reader last looked: a reconnect neither doubles nor loses a row.

Pure. A reader holds rows by key and the version of the last message. Given a version, the feed answers with every row
that changed since, whole; given none, or one of another feed, with all rows and the order to drop the old ones.
"""

from typing import Any

import msgspec

Row = dict[str, Any]

_RESTLESS = frozenset({"as_of", "wall_s", "window_s"})
"""Changes with every look; alone it is no news."""


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """`rows`: None for one that is gone. `reset`: it is everything, whatever the reader had."""

    version: str
    reset: bool
    rows: dict[str, Row | None]


class Feed:
    """`epoch` distinguishes this feed from the one of a controller before it."""

    def __init__(self, epoch: str) -> None:
        self._epoch = epoch
        self._number = 0
        self._rows: dict[str, Row] = {}
        self._changed: dict[str, int] = {}  # key -> number of the version; also of rows that are gone

    @property
    def version(self) -> str:
        return f"{self._epoch}.{self._number}"

    def update(self, rows: dict[str, Row]) -> Patch | None:
        """Store the rows and return those that changed; None: none did."""
        changed: dict[str, Row | None] = {
            key: row for key, row in rows.items() if not _is_same(row, self._rows.get(key))
        }
        changed |= dict.fromkeys(self._rows.keys() - rows.keys())
        if not changed:
            return None
        self._number += 1
        self._changed |= dict.fromkeys(changed, self._number)
        self._rows = rows
        return Patch(version=self.version, reset=False, rows=changed)

    def since(self, version: str) -> Patch:
        epoch, _, number = version.partition(".")
        if (
            epoch != self._epoch
            or not (number.isascii() and number.isdecimal())
            or len(number) > 18
            or int(number) > self._number
        ):
            return Patch(version=self.version, reset=True, rows=dict(self._rows))
        known = int(number)
        rows = {key: self._rows.get(key) for key, at in self._changed.items() if at > known}
        return Patch(version=self.version, reset=False, rows=rows)


def _is_same(row: Row, before: Row | None) -> bool:
    if row is before:
        return True
    if before is None or row.keys() != before.keys():
        return False
    return all(row[name] == before[name] for name in row if name not in _RESTLESS)
