"""Show what is known of the machines across runs, and decide which may be used again.

everstep node ls                          all machines on record, worst first
everstep node show [HOST]                 one machine and its past; default: this one
everstep node quarantine HOST --why ...   not to be used until it is readmitted
everstep node readmit HOST                ends a quarantine; needs a check that passed since the last fault
"""

import argparse
import getpass
import socket
import time
from typing import Any

from everstep.cli.reading import show, show_json, style
from everstep.errors import ConfigError
from everstep.health.rules import State
from everstep.health.store import HealthError, NodeHealth, Store
from everstep.model.names import machine_name, own_machine_name
from everstep.report.parts.ansi import Paint, Style, printable
from everstep.report.parts.layout import field, table, text_of
from everstep.report.parts.units import ago, short_stamp, stamp

_ORDER = (State.QUARANTINED, State.SUSPECT, State.HEALTHY)
_PAINTS = {State.QUARANTINED: Paint.RED, State.SUSPECT: Paint.ORANGE, State.HEALTHY: Paint.GREEN}
_SHOWN = 20
_BUSY_S = 5.0
"""A person can wait longer than a controller."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    ls = verbs.add_parser("ls", help="all machines on record, worst first")
    one = verbs.add_parser("show", help="one machine and its past")
    one.add_argument("host", nargs="?", metavar="HOST", help="default: this machine")
    one.add_argument("--all", action="store_true", help=f"its whole past, not only the last {_SHOWN} events")
    quarantine = verbs.add_parser("quarantine", help="not to be used until it is readmitted")
    quarantine.add_argument("host", metavar="HOST")
    quarantine.add_argument("--why", required=True, metavar="TEXT", help="for those who wonder later")
    readmit = verbs.add_parser("readmit", help="end a quarantine")
    readmit.add_argument("host", metavar="HOST")
    readmit.add_argument("--force", action="store_true", help="without a passed check; needs --why")
    readmit.add_argument("--why", default="", metavar="TEXT")
    for verb in (ls, one, quarantine, readmit):
        verb.add_argument("--json", action="store_true", help="for programs; keys in docs/nodes.md")


def run(given: argparse.Namespace) -> int:
    store, now = Store(busy_s=_BUSY_S), time.time()
    if given.what == "ls":
        return _ls(store.hosts(now), now, as_json=given.json)
    host = own_machine_name(socket.gethostname()) if given.host is None else given.host
    if given.what == "quarantine":
        store.quarantine(machine_name(host), at=now, why=_reason(given.why), by=_user())
    elif given.what == "readmit":
        why = _reason(given.why) if given.force else given.why
        store.readmit(host, at=now, by=_user(), why=why, force=given.force)
    found = store.host(host, time.time())
    if found is None:
        raise HealthError(f"nothing is on record about {host}")
    if given.json:
        show_json(_as_json(found))
    elif given.what == "show":
        show(_page(found, now, None if given.all else _SHOWN, style()))
    else:
        show(f"{printable(host)} is {found.state}: {printable(found.why)}\n")
    return 0


def _reason(why: str) -> str:
    if not why.strip():
        raise ConfigError("--why is empty; give a reason: `everstep node` shows it later")
    return why


def _ls(found: list[NodeHealth], now: float, *, as_json: bool) -> int:
    found.sort(key=lambda one: (_ORDER.index(one.state), -one.score, one.host))
    if as_json:
        show_json([_as_json(one) for one in found])
        return 0
    if not found:
        show("Nothing is on record: no machine has had a fault in any run, and none was checked.\n")
        return 0
    paint = style()
    rows = [
        [
            one.host,
            paint(one.state, _PAINTS[one.state]),
            ago(one.since, now),
            f"{one.score:.1f}",
            printable(one.why)[:90],
        ]
        for one in found
    ]
    show(text_of(table(("host", "state", "since", "score", "why"), rows, paint)))
    return 0


def _page(found: NodeHealth, now: float, limit: int | None, paint: Style) -> str:
    lines = [f"{paint(found.host, Paint.BOLD)} is {paint(found.state, _PAINTS[found.state])}", ""]
    lines += field("why", printable(found.why))
    lines += field("since", f"{stamp(found.since)} ({ago(found.since, now)}), by {printable(found.by)}")
    lines += field("score", f"{found.score:.2f}")
    events = found.events if limit is None else found.events[-limit:]
    rows = [
        [short_stamp(one.at), one.kind, one.code or "-", one.run or "-", _short(one.why)] for one in reversed(events)
    ]
    lines += ["", *table(("when", "what", "code", "run", "why"), rows, paint, indent="  ")]
    if len(events) < len(found.events):
        lines.append(f"  ({len(found.events) - len(events)} older ones: --all)")
    return text_of(lines)


def _short(text: str) -> str:
    return printable(" ".join(text.split()))[:100]


def _as_json(found: NodeHealth) -> dict[str, Any]:
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(found)
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return "unknown user"
