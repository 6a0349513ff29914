"""Programs that hang, plain and with `State`: how soon is each seen, who is named, and when is something done?

Certain hangs (nothing can release them) have to be acted on within seconds. Doubtful ones (somebody could still answer,
something still works) with State within 45 s, or 90 s where something computes; a plain program is to be told about
within 10 s and left alone until its collective's own time limit, which is 50 s here. Times are from the stamp that the
program writes when it hangs. Kinds that end loudly (gloo raises) are shown, and count for the median like the others.

    python bench/certain.py [--kinds A,B] [--modes plain,state] [--repeat 1] [--jobs 2] [--load 6] [--json FILE]
    python bench/certain.py --doubtful [...]       the doubtful kinds
    python bench/certain.py --list
"""

import argparse
import contextlib
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from healthy import burners
from jobs.certain_names import CERTAIN, COMPUTES, DOUBTFUL
from jobs.certain_run import GROUP_LIMIT_S, Found, Hang, run_hang
from measuring.figures import NEVER, quantile, seconds, table
from measuring.late_server import late_server
from measuring.launched import end_on_sigterm
from measuring.side_by_side import side_by_side

MODES = ("plain", "state")
MEDIAN_S, P95_S = 3.0, 5.0
REPORT_S = 10.0


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join([*CERTAIN, *(f"{kind} (doubtful)" for kind in DOUBTFUL)]))
        return 0
    kinds = args.kinds or (DOUBTFUL if args.doubtful else CERTAIN)
    hangs = [
        Hang(kind=kind, certain=kind in CERTAIN, mode=mode, number=number)
        for number, kind, mode in itertools.product(range(args.repeat), kinds, args.modes)
    ]
    end_on_sigterm()
    console = Console(stderr=True)
    results: list[Found] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        with late_server() as server, burners(args.load), contextlib.suppress(KeyboardInterrupt, SystemExit):
            run = partial(_run, root=Path(args.keep or scratch), server=server)
            for one in side_by_side(run, hangs, args.jobs, "hangs", console):
                console.print("  " + "  ".join(row(one)), soft_wrap=True, markup=False)
                results.append(one)
    print(report(results))
    is_whole = len(results) == len(hangs)
    if not is_whole:
        print(f"INTERRUPTED after {len(results)} of {len(hangs)}: no result of the whole")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return 1 if failures(results) or not is_whole else 0


def _run(hang: Hang, *, root: Path, server: str) -> Found:
    return run_hang(hang, root / hang.name, server)


HEADINGS = ("kind", "mode", "said", "code", "right", "reported", "verdict", "action", "trains again", "load")


def row(one: Found) -> list[str]:
    times = [seconds(value) for value in (one.report_s, one.verdict_s, one.action_s, one.again_s)]
    said = "loud" if one.loud else one.certainty or "—"
    right = "—" if not one.code else "yes" if one.right else f"no: {','.join(map(str, one.ranks)) or 'nobody'}"
    return [one.hang.kind, one.hang.mode, said, one.code or "—", right, *times, f"{one.load:.0f}"]


def failures(results: Sequence[Found]) -> list[str]:
    """What breaks the contract, in words. A doubtful plain program that is touched before its time is the worst."""
    found = [f"{one.hang.name}: {one.trouble}" for one in results if one.trouble]
    for mode in MODES:
        times = _action_times([one for one in results if one.hang.certain and one.hang.mode == mode])
        median_s, p95_s = quantile(times, 0.5), quantile(times, 0.95)
        if median_s is not None and p95_s is not None and (median_s > MEDIAN_S or p95_s > P95_S):
            found.append(f"certain, {mode}: median {seconds(median_s)}, p95 {seconds(p95_s)}")
    return found + [f"{one.hang.name}: {why}" for one in results if (why := _doubtful_failure(one))]


def _doubtful_failure(one: Found) -> str:
    if one.hang.certain or one.loud:
        return ""
    action_s = NEVER if one.action_s is None else one.action_s
    if one.hang.mode == "state":
        limit_s = 90.0 if one.hang.kind in COMPUTES else 45.0
        return f"acted on after {seconds(action_s)}, allowed {limit_s:g} s" if action_s > limit_s else ""
    if action_s < GROUP_LIMIT_S["plain"]:
        return f"a plain program was restarted after {seconds(action_s)}"
    report_s = NEVER if one.report_s is None else one.report_s
    return f"reported after {seconds(report_s)}, allowed {REPORT_S:g} s" if report_s > REPORT_S else ""


def _action_times(results: Sequence[Found]) -> list[float]:
    """To the action; what never came counts as infinitely long."""
    return [NEVER if one.action_s is None else one.action_s for one in results]


def report(results: Sequence[Found]) -> str:
    ordered = sorted(results, key=lambda one: (not one.hang.certain, one.hang.kind, one.hang.mode))
    lines = [table(HEADINGS, [row(one) for one in ordered]), ""]
    for is_certain, mode in itertools.product((True, False), MODES):
        some = [one for one in results if (one.hang.certain, one.hang.mode) == (is_certain, mode)]
        if some:
            lines.append(f"{'certain' if is_certain else 'doubtful'}, {mode}: {_summary(some)}")
    lines += failures(results)
    return "\n".join([*lines, f"load {os.getloadavg()[0]:.1f} at the end", "FAIL" if failures(results) else "PASS"])


def _summary(some: Sequence[Found]) -> str:
    quiet = [one for one in some if not one.loud]
    all_s, quiet_s = _action_times(some), _action_times(quiet)
    verdicts = [NEVER if one.verdict_s is None else one.verdict_s for one in quiet]
    return (
        f"{len(some)} hangs of {len({one.hang.kind for one in some})} kinds, {len(some) - len(quiet)} loud; "
        f"action after {seconds(quantile(all_s, 0.5))} (median), {seconds(quantile(all_s, 0.95))} (p95); silent ones "
        f"{seconds(quantile(quiet_s, 0.5))}, {seconds(quantile(quiet_s, 0.95))}; verdict "
        f"{seconds(quantile(verdicts, 0.5))}; right rank {sum(one.right for one in quiet)} of {len(quiet)}"
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=_names, default=[], metavar="NAME,...", help="default: all certain ones")
    parser.add_argument("--doubtful", action="store_true", help="all doubtful kinds instead")
    parser.add_argument("--list", action="store_true", help="the kinds")
    parser.add_argument("--modes", type=_names, default=list(MODES), metavar="NAME,...", help="of plain, state")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="times (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="programs side by side (default %(default)s)")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="processes that burn a processor besides")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    for name in args.kinds:
        if name not in (*CERTAIN, *DOUBTFUL):
            parser.error(f"no kind {name!r}; there are: {', '.join((*CERTAIN, *DOUBTFUL))}")
    for name in args.modes:
        if name not in MODES:
            parser.error(f"no mode {name!r}; there are: {', '.join(MODES)}")
    return args


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


if __name__ == "__main__":
    sys.exit(main())
