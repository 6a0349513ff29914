"""`everstep drill`: cause a fault on purpose, wait for what everstep makes of it, and say whether it is as expected.

The drill is marked in the journal, so nobody mistakes it for bad luck. Verdict and times are read from the journal.
"""

import argparse
import time
from collections.abc import Callable, Iterable

import msgspec

from everstep.cli.ask import AnswerLostError, post
from everstep.core.drills import NODE_KINDS, RANK_KINDS, RUN_KINDS
from everstep.errors import ConfigError
from everstep.journal.format import Entry
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir, find_run
from everstep.model import actions as act
from everstep.model.events import ControllerStarted, DrillRequested
from everstep.model.record import Record

KINDS = (*RANK_KINDS, *NODE_KINDS, *RUN_KINDS)
EXIT_FAIL = 1
_POLL_S = 0.02

_EXPECTED = {
    "kill-rank": "all ranks restarted, run recovered",
    "exit": "all ranks restarted, run recovered",
    "raise": "all ranks restarted, run recovered",
    "oom": "all ranks restarted, run recovered",
    "stop": "seen as a hang, all ranks restarted, run recovered",
    "python-loop": "seen as a hang, all ranks restarted, run recovered",
    "native-call": "seen as a hang, all ranks restarted, run recovered",
    "kill-agent": "node replaced, all ranks restarted, run recovered",
    "kill-controller": "another controller takes over, no incident",
}


class DrillResult(msgspec.Struct, kw_only=True):
    drill: str
    kind: str
    expected: str
    got: str = ""
    passed: bool = False
    incident: str | None = None
    code: str | None = None
    outcome: str | None = None
    detect_s: float | None = None  # from the fault, as far as is known when it happened, to the opened incident
    recover_s: float | None = None  # from the opened incident to the first new step of the slowest rank
    lost_steps: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("target", nargs="?", metavar="TARGET", help="the rank; for kill-agent the node")
    parser.add_argument("--run", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="how long to wait for the outcome")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(given: argparse.Namespace) -> int:
    """0 when everstep did what is expected, 1 when not."""
    body = _body(given.kind, given.target)
    run_dir = find_run(given.run)
    cursor = Cursor(run_dir.journal)
    cursor.read()  # what was before is not ours
    drill = _ask_for(run_dir, body)
    result = DrillResult(drill=drill, kind=given.kind, expected=_EXPECTED[given.kind])
    _await(run_dir, cursor, _Watch(result), given.timeout)
    if given.json:
        print(msgspec.json.encode(result).decode())
    else:
        print(_text(result))
    return 0 if result.passed else EXIT_FAIL


def _ask_for(run_dir: RunDir, body: dict[str, object]) -> str:
    """The drill's id; "" when the controller died of the drill before it could tell."""
    try:
        return str(post(run_dir, "/api/drill", body)["drill"])
    except AnswerLostError:
        if body["kind"] != "kill-controller":
            raise
        return ""


def _body(kind: str, target: str | None) -> dict[str, object]:
    """Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError(f"no drill {kind!r}; there are: {', '.join(KINDS)}")
    if kind in RANK_KINDS:
        if target is None or not target.isdigit():
            raise ConfigError(f"drill {kind} needs a rank: everstep drill {kind} 0")
        return {"kind": kind, "rank": int(target)}
    if kind == "kill-controller" and target is not None:
        raise ConfigError("drill kill-controller takes no target: there is one controller")
    return {"kind": kind, "node": target}


class _Watch:
    """Reads records until the drill's outcome is clear."""

    def __init__(self, result: DrillResult) -> None:
        self.result = result
        self.is_over = False
        self._opened_at = 0.0
        self._is_ours = False

    def add(self, record: Record) -> None:
        result = self.result
        if isinstance(record.event, DrillRequested) and record.event.kind == result.kind:
            result.drill = result.drill or record.event.drill
            self._is_ours = self._is_ours or record.event.drill == result.drill
        elif result.kind == "kill-controller" and self._is_ours and isinstance(record.event, ControllerStarted):
            self._conclude(record.event.took_over, f"controller {record.event.pid} took over")
        for action in record.actions:
            self._add_action(action, record)

    def _add_action(self, action: act.Action, record: Record) -> None:
        result = self.result
        match action:
            case act.Refused() if action.what.startswith(f"drill {result.drill}"):
                self._conclude(False, f"refused: {action.why}")
            case act.IncidentOpened(drill=drill) if drill == result.drill:
                result.incident, self._opened_at = action.incident, record.event.at
            case act.Concluded() if action.incident == result.incident:
                result.code = action.verdict.code
                result.detect_s = max(0.0, self._opened_at - action.verdict.at)
            case act.IncidentClosed() if action.incident == result.incident:
                self._close(action)
            case act.Finish() if not self.is_over:
                self._conclude(False, f"the run ended: {action.outcome}: {action.why}")
            case _:
                pass

    def _close(self, action: act.IncidentClosed) -> None:
        result = self.result
        result.outcome, result.lost_steps = action.outcome, action.lost_steps
        if action.recovered_at is not None:
            result.recover_s = action.recovered_at - self._opened_at
        self._conclude(action.outcome == "recovered", f"{result.code or 'no verdict'}, {action.outcome}")

    def _conclude(self, passed: bool, got: str) -> None:
        self.result.passed, self.result.got, self.is_over = passed, got, True


def _await(run_dir: RunDir, cursor: Cursor, watch: _Watch, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not watch.is_over:
        _feed(cursor.read(), watch.add)
        if time.monotonic() > deadline:
            waited_for = "the incident to close" if watch.result.incident else "an incident to open"
            if watch.result.kind == "kill-controller":
                waited_for = "another controller"
            watch.result.got = f"waited {limit_s:g} s in vain for {waited_for}"
            return
        time.sleep(_POLL_S)


def _feed(entries: Iterable[Entry], take: Callable[[Record], None]) -> None:
    for entry in entries:
        if isinstance(entry, Record):
            take(entry)


def _text(result: DrillResult) -> str:
    figures = []
    if result.detect_s is not None:
        figures.append(f"detect {result.detect_s:.2f}s")
    if result.recover_s is not None:
        figures.append(f"recover {result.recover_s:.2f}s")
    if result.lost_steps is not None:
        figures.append(f"lost {result.lost_steps} steps")
    got = ", ".join([result.got, *figures])
    verdict = "PASS" if result.passed else "FAIL"
    more = f"      everstep explain {result.incident}" if result.incident else ""
    return f"drill {result.drill} {result.kind}\n expected  {result.expected}\n got       {got}\n {verdict}{more}"
