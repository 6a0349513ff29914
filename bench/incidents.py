"""Every row of ByteRobust's incident table in a real run: what was seen, what was decided, which step solved it.

Real runs of three nodes of one rank each and a standby, all on this machine: one for the rows that the flow forgets at
once, one after the other, and one for each of the others. A row has passed when the rules of its decisions are those
that ByteRobust's flow asks for (docs/flow.md), and the job trained again afterwards.
Seconds are those in which the job stood still, all incidents of the row together. Needs root (mounts, namespaces,
cgroups). Ends everything it started, also on Ctrl-C.

    python bench/incidents.py [--only ROW,ROW] [--json FILE] [--list]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from matrix.incidents_rows import ROWS, Row
from matrix.incidents_run import NotSeenError, Seen, running
from measuring.figures import table
from measuring.launched import adopt_orphans, end_on_sigterm

SOLVED_BY = {
    "restart-in-place": "reattempt",
    "reattempt": "reattempt",
    "replace-lost-node": "replacement",
    "evict": "real-time eviction",
    "evict-group": "eviction of a group",
    "go-back": "going back",
    "roll-back": "rollback",
    "explain-only": "nobody: left alone",
}
"""The last rule of a row, in the words of docs/simulate.md."""


@dataclass(frozen=True, kw_only=True)
class Result:
    row: str
    how: str
    passed: bool
    why: str  # of a failure
    seen: Seen | None
    solved_by: str
    took_s: float  # the whole row, starts and ends included


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    wanted = args.only.lower().split(",")
    rows = [row for row in ROWS if any(part in row.name.lower() for part in wanted)]
    if args.list or not rows:
        print("\n".join(f"{row.name}: {row.how}" for row in ROWS))
        return 0 if args.list else 2
    adopt_orphans()
    end_on_sigterm()
    results = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        for number, together in enumerate(_runs(rows)):
            results += _drive(together, Path(scratch) / f"run-{number}")
    results.sort(key=lambda result: [row.name for row in ROWS].index(result.row))
    print(report(results))
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    return 0 if all(result.passed for result in results) else 1


def _runs(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one run each."""
    together = [row for row in rows if not row.is_alone]
    return [*([together] if together else []), *([row] for row in rows if row.is_alone)]


def _drive(rows: Sequence[Row], folder: Path) -> list[Result]:
    """All rows of one run. After one that failed the others are not tried: nobody knows what it left."""
    results: list[Result] = []
    first = rows[0]
    with running(folder, *first.options, policy=first.policy, env=first.env) as job:
        for row in rows:
            began, why = time.monotonic(), ""
            try:
                job.until_trained()
                job.until_standby()
                job.begin_row()
                row.hurt(job)
                job.heal()
                job.until_trained()
            except NotSeenError as error:
                why = str(error)
            results.append(_result(row, job.seen(), why, time.monotonic() - began))
            print(f"{row.name}: {results[-1].why or 'as expected'} ({results[-1].took_s:.0f} s)", file=sys.stderr)
            if why:
                break
    return results


def _result(row: Row, seen: Seen, why: str, took_s: float) -> Result:
    if not why and seen.rules not in (row.expected, *row.also):
        why = f"rules {seen.rules}, expected {row.expected}"
    solved_by = "" if why else solver(seen)
    return Result(row=row.name, how=row.how, passed=not why, why=why, seen=seen, solved_by=solved_by, took_s=took_s)


def solver(seen: Seen) -> str:
    """The step that solved it."""
    if not seen.rules:
        return "update in place" if seen.updated else "nobody: left alone"
    examined = {"examine", "replay"} & set(seen.rules)
    if seen.evicted and examined:
        return "dual-phase replay" if "replay" in examined else "stop-time checks"
    if seen.evicted and seen.rules[-1] == "go-back":
        return "comparison of replicas"
    return SOLVED_BY[seen.rules[-1]]


def report(results: Sequence[Result]) -> str:
    rows = []
    for each in results:
        seen = each.seen
        if seen is None or not each.passed:
            rows.append([each.row, "FAILED", each.why[:60], "", "", ""])
            continue
        stood_still = "none" if seen.stood_still_s is None else f"{seen.stood_still_s:.2f}"
        first = seen.rules[0] if seen.rules else "none"
        codes = ", ".join(dict.fromkeys(seen.codes)) or "none"
        rows.append([each.row, codes, first, each.solved_by, stood_still, str(seen.lost_steps)])
    head = ["row", "seen", "first decision", "solved by", "stood still s", "steps again"]
    text = table(head, rows)
    load = os.getloadavg()[0]
    minutes = sum(each.took_s for each in results) / 60
    return f"{text}\n\n{len(results)} rows in {minutes:.1f} minutes, load {load:.1f} at the end"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="ROW,ROW", default="", help="rows whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="the rows, and how each is made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for programs")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
