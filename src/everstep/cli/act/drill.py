"""`everstep drill`: cause a fault on purpose, wait for what everstep makes of it, and say whether it is as expected.

The drill is marked in the journal, so it is not mistaken for a real fault. Verdict and times are read from the journal.
"""

import argparse
import time
from collections.abc import Callable, Iterable

import msgspec

from everstep.analyzer.codes import CODES
from everstep.analyzer.observations.words import ranks_text
from everstep.cli.ask import AnswerLostError, named, post
from everstep.core.faults.drills import (
    ANOMALY_KINDS,
    AWAY_KINDS,
    KINDS,
    LINK_KINDS,
    MACHINE_KINDS,
    PATTERNS,
    RACK_KINDS,
    RANK_KINDS,
    RESULTS,
    why_bad_options,
)
from everstep.errors import ConfigError
from everstep.journal.format import Entry
from everstep.journal.reader import Cursor
from everstep.journal.runs import RunDir, find_run
from everstep.model import actions as act
from everstep.model.events import ControllerStarted, DrillRequested
from everstep.model.record import Record
from everstep.report.parts.ansi import printable, safe_json

EXIT_FAIL = 1
_SEEN_LATER = (*ANOMALY_KINDS, *LINK_KINDS, *MACHINE_KINDS)
_POLL_S = 0.02


class Expected(msgspec.Struct, frozen=True):
    """Reaction to a fault that everstep is expected to show."""

    text: str
    codes: tuple[str, ...] = ()  # of these; empty: whatever it is called
    outcomes: tuple[str, ...] = ("recovered",)
    names_rank: tuple[str, ...] = ()  # codes with which the rank has to be among the suspects


_RESTARTED = Expected("all ranks restarted, run recovered")
_LEFT = ("observed", "recovered")
_HANGS = tuple(code for code in CODES if code.startswith("ES-H"))


def _hang(*codes: str) -> Expected:
    text = f"seen as a hang ({', '.join(codes)}), the rank named, all ranks restarted, run recovered"
    return Expected(text, codes, names_rank=codes)


EXPECTED = {
    "kill-rank": _RESTARTED,
    "exit": _RESTARTED,
    "raise": _RESTARTED,
    "oom": _RESTARTED,
    "stop": _hang("ES-H01"),
    "python-loop": _hang("ES-H07"),
    "native-call": _hang("ES-H08"),
    "skip-collective": _hang("ES-H02", "ES-H03", "ES-H05"),
    "mismatched-shape": Expected(
        "a hang of which the rank is named, or a loud error of the library; run recovered", names_rank=_HANGS
    ),
    "opposite-order": _hang("ES-H05"),
    "blocked-loader": _hang("ES-H06", "ES-H09"),
    "slow": Expected(
        "the slow rank is named; its machine replaced where there is a standby, else left alone",
        ("ES-S01", "ES-S02"),
        _LEFT,
        ("ES-S01", "ES-S02"),
    ),
    "flip-bit": Expected(
        "the replica that differs is named (of two, neither can be named), and all ranks go back to a trusted step",
        ("ES-N04", "ES-N05"),
        _LEFT,
        ("ES-N04",),
    ),
    "nan": Expected("the loss is reported as NaN from then on", ("ES-N01",), _LEFT),
    "kill-agent": Expected("node replaced, all ranks restarted, run recovered"),
    "lose-node": Expected("node replaced, its ranks restored from copies or from disk, run recovered"),
    "lose-rack": Expected("all its nodes replaced, their ranks restored from copies or from disk, run recovered"),
    "cut-node": Expected(
        "declared lost within 5 s, replaced, and nothing that it does afterwards counts; run recovered"
    ),
    "flap-link": Expected(
        "the second flap is the machine's: it is replaced where there is a standby, else left alone",
        ("ES-M13", "ES-M14"),
        _LEFT,
    ),
    "freeze-node": Expected("declared lost within 5 s, replaced, and it never runs again; run recovered"),
    "miscompute": Expected(
        "the wrong numbers are seen, and where the job stops for it the machine is found and replaced",
        ("ES-N04", "ES-N05", "ES-N07"),
        ("observed",),  # else it is over when the machine has been found: `_look_for_machine`
    ),
    "kill-controller": Expected("another controller takes over, no incident"),
}


class DrillResult(msgspec.Struct, kw_only=True):
    drill: str
    kind: str
    expected: str
    got: str = ""
    passed: bool = False
    incident: str | None = None
    code: str | None = None
    ranks: tuple[int, ...] = ()  # suspects of the verdict
    outcome: str | None = None
    detect_s: float | None = None  # from the fault, as far as is known when it happened, to the opened incident
    recover_s: float | None = None  # from the opened incident to the first new step of the slowest rank
    lost_steps: int | None = None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", metavar="KIND", help=", ".join(KINDS))
    parser.add_argument(
        "target",
        nargs="?",
        metavar="TARGET",
        help="the rank; for drills of a node (kill-agent, lose-node, cut-node, ...) the node, or one of its ranks; "
        "lose-rack: the rack",
    )
    parser.add_argument("--percent", type=float, metavar="N", help="slow: how much longer its steps take (30)")
    parser.add_argument("--pattern", choices=PATTERNS, help="slow: at once, from nothing to N, or in bursts (steady)")
    parser.add_argument(
        "--seconds",
        type=float,
        metavar="S",
        help="slow: how long it grows (60), or how long it lasts (for ever); cut-node, freeze-node: how long (20)",
    )
    parser.add_argument("--chance", type=float, metavar="P", help="miscompute: of a step to come out wrong (1)")
    parser.add_argument("--seed", type=int, metavar="N", help="miscompute: which steps those are (0)")
    parser.add_argument("--result", choices=RESULTS, help="miscompute: what comes out, one other bit or NaN (bit)")
    parser.add_argument("--run", metavar="RUN", help="id or directory; default: the latest run")
    parser.add_argument("--timeout", type=float, default=120.0, metavar="S", help="how long to wait for the outcome")
    parser.add_argument("--json", action="store_true", help="for programs")


def run(given: argparse.Namespace) -> int:
    """0 when everstep did what is expected, 1 when not."""
    body = _body(given.kind, given.target, _options(given))
    run_dir = find_run(given.run)
    cursor = Cursor(run_dir.journal)
    cursor.read()  # what was before is not ours
    drill = _ask_for(run_dir, body)
    result = DrillResult(drill=drill, kind=given.kind, expected=EXPECTED[given.kind].text)
    _await(run_dir, cursor, _Watch(result, body.get("rank")), given.timeout)
    if given.json:
        print(safe_json(msgspec.json.encode(result).decode()))
    else:
        print(printable(_text(result)))
    return 0 if result.passed else EXIT_FAIL


def _ask_for(run_dir: RunDir, body: dict[str, object]) -> str:
    """The drill's id; "" when the controller died of the drill before it could answer."""
    try:
        return named(post(run_dir, "/api/drill", body), "drill")
    except AnswerLostError:
        if body["kind"] != "kill-controller":
            raise
        return ""


def _options(given: argparse.Namespace) -> dict[str, float | str]:
    named = {name: getattr(given, name) for name in ("percent", "pattern", "seconds", "chance", "seed", "result")}
    return {name: value for name, value in named.items() if value is not None}


def _body(kind: str, target: str | None, options: dict[str, float | str]) -> dict[str, object]:
    """Raises ConfigError."""
    if kind not in KINDS:
        raise ConfigError(f"no drill {kind!r}; there are: {', '.join(KINDS)}")
    if kind in RACK_KINDS:
        if target is None:
            raise ConfigError(f"drill {kind} needs a rack, as `everstep status` names them: everstep drill {kind} a")
        options = {**options, "rack": target}
    if why := why_bad_options(kind, options):
        raise ConfigError(why)
    if kind in RACK_KINDS:
        return {"kind": kind, "options": options}
    if kind in RANK_KINDS:
        if target is None or not target.isdigit():
            raise ConfigError(f"drill {kind} needs a rank: everstep drill {kind} 0")
        return {"kind": kind, "rank": int(target), "options": options}
    if kind == "kill-controller" and target is not None:
        raise ConfigError("drill kill-controller takes no target: there is one controller")
    if target is not None and target.isdigit():
        return {"kind": kind, "rank": int(target), "options": options}  # the node of this rank
    return {"kind": kind, "node": target, "options": options}


class _Watch:
    """Reads records until the drill's outcome is clear."""

    def __init__(self, result: DrillResult, rank: object) -> None:
        self.result = result
        self._rank = rank
        self.is_over = False
        self._asked_at: float | None = None
        self._opened_at = 0.0
        self._is_ours = False
        self._machine: str | None = None  # of a drill of a machine: which one
        self._found = ""  # ... and what happened to it once it was named

    def add(self, record: Record) -> None:
        result = self.result
        if isinstance(record.event, DrillRequested) and record.event.kind == result.kind:
            result.drill = result.drill or record.event.drill
            self._is_ours = self._is_ours or record.event.drill == result.drill
            self._asked_at = record.event.at
        elif result.kind == "kill-controller" and self._is_ours and isinstance(record.event, ControllerStarted):
            self._conclude(record.event.took_over, f"controller {record.event.pid} took over")
        for action in record.actions:
            self._add_action(action, record)

    def _add_action(self, action: act.Action, record: Record) -> None:
        result = self.result
        match action:
            case act.Refused() if f"{action.what} ".startswith(f"drill {result.drill} "):
                self._conclude(False, f"refused: {action.why}")
            case act.Inject(drill=drill) if drill == result.drill:
                self._machine = action.node
            case act.IncidentOpened(drill=drill) if drill == result.drill or self._goes_on():
                result.incident, self._opened_at = action.incident, record.event.at
            case act.EvictNode(node=node) if node == self._machine and self._goes_on():
                self._found = f"{node} was found and replaced"
            case act.Concluded() if action.incident == result.incident:
                result.code, result.ranks = action.verdict.code, action.verdict.ranks
                since = self._asked_at if result.kind in (*_SEEN_LATER, *AWAY_KINDS) else action.verdict.at
                result.detect_s = None if since is None else max(0.0, self._opened_at - since)
                self._look_for_machine(action)
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
        named = f" of {ranks_text(result.ranks)}" if result.ranks else ""
        got = f"{result.code or 'no verdict'}{named}, {action.outcome}"
        if self._found and action.outcome == "recovered":
            self._conclude(True, f"{got}, {self._found}")
        elif self._is_expected() or result.kind not in _SEEN_LATER:
            self._conclude(self._is_expected(), got)
        else:
            self.result.got = got  # a slow rank first makes the job slow; what is expected may still come

    def _goes_on(self) -> bool:
        """A bad machine leads to one incident after the other until it is found; only the first is marked."""
        return self.result.kind in MACHINE_KINDS and self.result.incident is not None

    def _look_for_machine(self, action: act.Concluded) -> None:
        """Named, and left where it was."""
        named = [each for each in action.decision.refused if each.what == f"evict {self._machine}"]
        if self._goes_on() and action.verdict.node == self._machine and named:
            self._found = f"{self._machine} was found and not replaced: {named[0].why}"

    def _is_expected(self) -> bool:
        result, expected = self.result, EXPECTED[self.result.kind]
        is_named = result.code not in expected.names_rank or self._rank in result.ranks
        is_called = not expected.codes or result.code in expected.codes
        return is_named and is_called and result.outcome in expected.outcomes

    def _conclude(self, passed: bool, got: str) -> None:
        self.result.passed, self.result.got, self.is_over = passed, got, True


def _await(run_dir: RunDir, cursor: Cursor, watch: _Watch, limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not watch.is_over:
        _feed(cursor.read(), watch.add)
        if time.monotonic() > deadline:
            waited_for = "the incident to close" if watch.result.incident else "an incident to open"
            if watch.result.got:
                waited_for = "what is expected"
            if watch.result.kind == "kill-controller":
                waited_for = "another controller"
            so_far = f"{watch.result.got}; " if watch.result.got else ""
            watch.result.got = f"{so_far}waited {limit_s:g} s in vain for {waited_for}"
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
