"""Healthy programs that look odd from outside, under `everstep run`: is any of them hurt?

More than eighty kinds: one rank, some or all wait or compute for long while the others stand in a collective; plain and
with `State`; each until its irregularity has come as often as asked. PASS: no plain program was restarted, none
with State more than once, no node evicted. At the end of each a rank is stopped: silence is worth something only where
a hang would have been seen. By default each kind runs once plain and once with State, ranks and seconds drawn from the
seed; --all runs every combination.

    python bench/healthy.py [--kinds A,B] [--seconds 5,30,60] [--times 5] [--jobs 6] [--load N] [--json FILE]
    python bench/healthy.py --list
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from jobs.healthy_kinds import ONCE, STATE_ONLY, kinds_listed
from jobs.healthy_run import Case, Told, as_json, run_case
from measuring.containers import containers
from measuring.figures import seconds, table
from measuring.late_server import late_server
from measuring.launched import end_on_sigterm
from measuring.side_by_side import side_by_side

WHO = ("one", "some", "all")
MODES = ("plain", "state")


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join(kinds_listed()))
        return 0
    cases = plan(args.kinds or kinds_listed(), args.seconds, args.modes, args.times, seed=args.seed, whole=args.all)
    end_on_sigterm()
    console = Console(stderr=True)
    results: list[Told] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        beside = containers() if args.containers else contextlib.nullcontext()
        with late_server() as server, burners(args.load), beside:
            root = Path(args.keep or scratch)
            run = partial(_run, root=root, server=server, prove=not args.no_proof)
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                for one in side_by_side(run, cases, args.jobs, "healthy programs", console):
                    console.print(f"  {line(one)}", soft_wrap=True, markup=False)
                    results.append(one)
    print(report(results))
    is_whole = len(results) == len(cases)
    if not is_whole:
        print(f"INTERRUPTED after {len(results)} of {len(cases)}: no result of the whole")
    if args.json is not None:
        args.json.write_text(json.dumps([as_json(one) for one in results], indent=1) + "\n")
    return 1 if any(one.hurt or one.trouble for one in results) or not is_whole else 0


def _run(case: Case, *, root: Path, server: str, prove: bool) -> Told:
    return run_case(case, root / case.name, server, prove)


def plan(
    kinds: Sequence[str], durations: Sequence[float], modes: Sequence[str], times: int, *, seed: int, whole: bool
) -> list[Case]:
    """In an order by the seed: a run that was interrupted is a fair sample, and those that compute are spread."""
    cases = []
    for number, kind in enumerate(kinds):
        dice = random.Random(f"{seed} {kind}")
        for mode in [mode for mode in modes if mode != "plain" or kind not in STATE_ONLY]:
            who = WHO[(number + MODES.index(mode) + seed) % len(WHO)]
            chosen = list(itertools.product(WHO, durations)) if whole else [(who, dice.choice(durations))]
            num = 1 if kind in ONCE else times
            cases += [
                Case(kind=kind, who=each, mode=mode, seconds=long_s, times=num, once=kind in ONCE)
                for each, long_s in chosen
            ]
    random.Random(seed).shuffle(cases)
    return cases


@contextlib.contextmanager
def burners(number: int) -> Iterator[None]:
    """So many processes that use a processor without a pause."""
    code = "import os\nwhile os.getppid() != 1: sum(range(99999))"
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(number)]
    try:
        time.sleep(0.1)
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


HEADINGS = ("kind", "mode", "who", "each", "times", "restarts", "evicted", "incidents", "reported", "proof", "took")


def row(one: Told) -> list[str]:
    case = one.case
    counts = [str(number) for number in (one.times, one.restarts, one.evictions, len(one.incidents), len(one.doubts))]
    return [case.kind, case.mode, case.who, f"{case.seconds:g} s", *counts, seconds(one.proof_s), seconds(one.took_s)]


def line(one: Told) -> str:
    said = "  ".join(row(one))
    for incident in one.incidents if one.hurt else ():
        said += f"\n      {incident}"
    return said + (f"\n      TROUBLE {one.trouble}" if one.trouble else "")


def report(results: Sequence[Told]) -> str:
    ordered = sorted(results, key=lambda one: (one.case.kind, one.case.mode, one.case.who))
    lines = [table(HEADINGS, [row(one) for one in ordered]), ""]
    for mode in MODES:
        of_mode = [one for one in results if one.case.mode == mode]
        kinds = len({one.case.kind for one in of_mode})
        lines.append(
            f"{mode}: {len(of_mode)} programs of {kinds} kinds, {sum(one.times for one in of_mode)} irregularities, "
            f"{sum(one.restarts for one in of_mode)} restarts, {sum(one.evictions for one in of_mode)} evictions, "
            f"{sum(len(one.doubts) for one in of_mode)} reported, {sum(bool(one.hurt) for one in of_mode)} hurt"
        )
    lines += [f"HURT {one.case.name}: {one.hurt}: {'; '.join(one.incidents)}" for one in results if one.hurt]
    lines += [f"TROUBLE {one.case.name}: {one.trouble}" for one in results if one.trouble]
    bad = any(one.hurt or one.trouble for one in results)
    return "\n".join([*lines, f"load {os.getloadavg()[0]:.1f} at the end", "FAIL" if bad else "PASS"])


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=_names, default=[], metavar="NAME,...", help="default: all")
    parser.add_argument("--list", action="store_true", help="the kinds")
    parser.add_argument(
        "--seconds", type=_numbers, default=[5.0, 30.0, 60.0], metavar="S,...", help="of each irregularity"
    )
    parser.add_argument("--modes", type=_names, default=list(MODES), metavar="NAME,...", help="of plain, state")
    parser.add_argument("--times", type=int, default=5, metavar="N", help="irregularities (default %(default)s)")
    parser.add_argument("--jobs", type=int, default=6, metavar="N", help="programs side by side (default %(default)s)")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="processes that burn a processor besides")
    parser.add_argument("--containers", action="store_true", help="containers come and go meanwhile (root, iproute2)")
    parser.add_argument("--seed", type=int, default=0, help="of who and how long (default %(default)s)")
    parser.add_argument("--all", action="store_true", help="every combination of who and seconds")
    parser.add_argument("--no-proof", action="store_true", help="do not stop a rank at the end")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    for name in args.kinds:
        if name not in kinds_listed():
            parser.error(f"no kind {name!r}; there are: {', '.join(kinds_listed())}")
    for name in args.modes:
        if name not in MODES:
            parser.error(f"no mode {name!r}; there are: {', '.join(MODES)}")
    return args


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
