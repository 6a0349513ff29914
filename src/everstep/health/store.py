"""The memory of machines across runs: one small SQLite file, `$EVERSTEP_HOME/nodes.db`, keyed by host name.

Only what happened is stored; what it means is judged anew by `health.rules` each time it is read. Each call opens the
file, does one transaction and closes it, so several runs can write at once and none holds it. Raises HealthError;
`everstep.health` is the face for callers that must not be stopped by it. Written by the controller's shell and by
`everstep check`, read by `everstep node`.
"""

import contextlib
import os
import sqlite3
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from everstep.errors import ConfigError, EverstepError
from everstep.health.rules import DEFAULT, HealthEvent, Judgement, Kind, Rules, State, judge, why_not_readmit
from everstep.journal.runs import home
from everstep.linux.files import make_own
from everstep.linux.mounts import is_shared, mounts_of_this_process
from everstep.model.names import MachineName, is_name

FILE = "nodes.db"
BUSY_S = 0.2
"""How long a writer waits for another one. The controller writes between two decisions."""
KEPT_PER_HOST = 200
"""Newest events kept for each host. Checks and readmissions stand among them."""

_SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE events (
    id INTEGER PRIMARY KEY,
    host TEXT NOT NULL,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    why TEXT NOT NULL,
    code TEXT NOT NULL,
    blame TEXT NOT NULL,
    severity TEXT NOT NULL,
    action TEXT NOT NULL,
    run TEXT NOT NULL,
    incident TEXT NOT NULL,
    "by" TEXT NOT NULL
);
CREATE INDEX events_by_host ON events (host, at);
"""
_FIELDS = ("host", "at", "kind", "why", "code", "blame", "severity", "action", "run", "incident", "by")
_COLUMNS = ", ".join(f'"{name}"' for name in _FIELDS)
_INSERT = f"INSERT INTO events ({_COLUMNS}) VALUES ({', '.join('?' * len(_FIELDS))})"
_SELECT = f"SELECT {_COLUMNS} FROM events"
_MAX_TEXT = 2000
_SHOWN_CHARS = 80


class HealthError(EverstepError):
    """The store cannot be used, or a machine may not be readmitted."""


class NodeHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The record of one machine. `since`: time of the event that brought this state; None: suspicion faded by
    itself."""

    host: str
    state: State
    why: str
    score: float
    since: float | None
    by: str
    events: tuple[HealthEvent, ...]  # oldest first


def default_path() -> Path:
    """Raises HealthError."""
    try:
        return home() / FILE
    except ConfigError as error:
        raise HealthError(str(error)) from error


class Store:
    """One file. Every method raises HealthError."""

    def __init__(self, path: Path | None = None, busy_s: float = BUSY_S) -> None:
        self.path = path or default_path()
        self._busy_s = busy_s

    def record(self, event: HealthEvent) -> None:
        """Refuses a host that is not the name of a machine: what the store says of one goes to a scheduler."""
        if not is_name(event.host):
            raise HealthError(f"not remembered: {event.host[:_SHOWN_CHARS]!a} is not the name of a machine")
        with self._write() as connection:
            self._insert(connection, event)

    def hosts(self, now: float) -> list[NodeHealth]:
        """All machines of which something is known, by name."""
        by_host: dict[str, list[HealthEvent]] = {}
        for event in self._read(f"{_SELECT} ORDER BY host, at, id", ()):
            by_host.setdefault(event.host, []).append(event)
        return [health_of(host, events, now) for host, events in by_host.items()]

    def host(self, host: str, now: float) -> NodeHealth | None:
        """None: nothing is on record, which is not the same as healthy."""
        events = self._read(f"{_SELECT} WHERE host = ? ORDER BY at, id", (host,))
        return health_of(host, events, now) if events else None

    def quarantine(self, host: MachineName, *, at: float, why: str, by: str) -> None:
        self.record(HealthEvent(host=host, at=at, kind=Kind.QUARANTINED, why=why, by=by))

    def readmit(self, host: str, *, at: float, by: str, why: str = "", force: bool = False) -> None:
        """Ends a quarantine. Without a check that passed since the last fault only by force, with a reason."""
        with self._write() as connection:
            rows = connection.execute(f"{_SELECT} WHERE host = ? ORDER BY at, id", (host,)).fetchall()
            events = _events(rows)
            if not events:
                raise HealthError(f"nothing is on record about {host}; everstep node ls lists the machines that are")
            judgement = judge(events, at, DEFAULT)
            if judgement.state is not State.QUARANTINED:
                raise HealthError(f"{host} is {judgement.state}, not quarantined; there is nothing to end")
            refusal = why_not_readmit(events)
            if refusal and not (force and why):
                raise HealthError(
                    f"{host} is not readmitted: {refusal} (quarantined because: {judgement.why}). "
                    f"Run `everstep check` there, or say --force with --why"
                )
            why = f"forced: {why}" if refusal else why or "a check passed since its last fault"
            # Not before what it answers, whatever the clocks of the hosts say.
            at = max(at, events[-1].at + 0.001)
            self._insert(connection, HealthEvent(host=host, at=at, kind=Kind.READMITTED, why=why, by=by))

    def _insert(self, connection: sqlite3.Connection, event: HealthEvent) -> None:
        values = [getattr(event, name) for name in _FIELDS]
        connection.execute(_INSERT, [v[:_MAX_TEXT] if isinstance(v, str) else v for v in values])
        connection.execute(
            "DELETE FROM events WHERE host = :host AND id NOT IN "
            "(SELECT id FROM events WHERE host = :host ORDER BY at DESC, id DESC LIMIT :kept)",
            {"host": event.host, "kept": KEPT_PER_HOST},
        )

    def _read(self, query: str, values: tuple[str, ...]) -> list[HealthEvent]:
        with _told(self.path):
            if not self.path.exists():
                return []
        with self._open(f"{self.path.absolute().as_uri()}?mode=ro") as connection, _told(self.path):
            if _version_of(connection, self.path) == 0:
                return []
            return _events(connection.execute(query, values).fetchall())

    @contextlib.contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        with _told(self.path):
            make_own(self.path.parent)
            if not self.path.exists():
                os.close(os.open(self.path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        with self._open(self.path.absolute().as_uri()) as connection, _told(self.path):
            connection.execute("PRAGMA synchronous = NORMAL")
            if _version_of(connection, self.path) == 0:
                mode = "DELETE" if is_shared(self.path, mounts_of_this_process()) else "WAL"
                with contextlib.suppress(sqlite3.OperationalError):
                    connection.execute(f"PRAGMA journal_mode = {mode}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                if _version_of(connection, self.path) == 0:
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _open(self, uri: str) -> Iterator[sqlite3.Connection]:
        with _told(self.path):
            if self.path.exists() and not stat.S_ISREG(self.path.stat().st_mode):
                raise HealthError(f"{self.path} is not a file")
            connection = sqlite3.connect(uri, uri=True, timeout=self._busy_s, isolation_level=None)
        with contextlib.closing(connection):
            yield connection


def health_of(host: str, events: Sequence[HealthEvent], now: float, rules: Rules = DEFAULT) -> NodeHealth:
    """Judged now, with the event that brought the machine into its state."""
    judgement = judge(events, now, rules)
    since, by = _since(events, judgement, now, rules)
    return NodeHealth(
        host=host,
        state=judgement.state,
        why=judgement.why,
        score=judgement.score,
        since=since,
        by=by,
        events=tuple(events),
    )


def _since(events: Sequence[HealthEvent], judgement: Judgement, now: float, rules: Rules) -> tuple[float | None, str]:
    """The first of the newest events after all of which the state was that of now; None when time alone brought it."""
    found: HealthEvent | None = None
    for number in range(len(events), 0, -1):
        event = events[number - 1]
        if judge(events[:number], event.at, rules).state is not judgement.state:
            break
        found = event
    return (found.at, found.by) if found is not None else (None, "everstep")


def _version_of(connection: sqlite3.Connection, path: Path) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _SCHEMA_VERSION):
        raise HealthError(f"{path} is of another version ({version}; this everstep knows {_SCHEMA_VERSION})")
    return int(version)


def _events(rows: Sequence[tuple[object, ...]]) -> list[HealthEvent]:
    """Valid rows; one that another program wrote is left out."""
    found = []
    for row in rows:
        with contextlib.suppress(msgspec.ValidationError):
            found.append(msgspec.convert(dict(zip(_FIELDS, row, strict=True)), HealthEvent))
    return found


@contextlib.contextmanager
def _told(path: Path) -> Iterator[None]:
    """SQLite's and the system's errors as one message that says what can be done."""
    try:
        yield
    except sqlite3.OperationalError as error:
        hint = "another process holds it" if "locked" in str(error) or "busy" in str(error) else "see the cause"
        raise HealthError(f"node store {path} cannot be used: {error} ({hint})") from error
    except sqlite3.Error as error:
        raise HealthError(f"node store {path} is damaged: {error}; move it away to begin a new one") from error
    except OSError as error:
        raise HealthError(f"node store {path} cannot be used: {error.strerror}") from error
