"""Whose fault it was: random faults of all parties in real runs, and what everstep said of each.

Programs, ranks, steps and noise in their logs come from the seed. A run has two nodes of two ranks (of one where a
rank is slow, for a core each) and a standby, so that an eviction is possible; one of a program's, a person's or a
limit's fault is the worst answer. "said nothing" is the party `unknown`: it is not right, and it harms nobody. Needs
root. Ends everything it started, also on Ctrl-C.

    python bench/parties.py [--runs 60] [--seed 1] [--kinds A,B] [--jobs 2] [--json FILE] [--list]
    python bench/parties.py --sum FILE FILE ...     several slices as one table
"""

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from matrix import parties_more  # noqa: F401 - adds its faults
from matrix.parties_faults import OWN, PINNED, SPOILING, TRUTH
from matrix.parties_run import NODES, Hurt, Told, ranks_per_node, run_hurts
from measuring.figures import table
from measuring.launched import end_on_sigterm
from measuring.side_by_side import side_by_side

FIRST_STEP, LAST_STEP = 15, 30
IN_A_RUN = 10


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    if args.list:
        print("\n".join(f"{kind}: {party}" for kind, party in TRUTH.items()))
        return 0
    if args.sum:
        print(report([one for file in args.sum for one in read(file)]))
        return 0
    end_on_sigterm()
    console, results = Console(stderr=True), []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        run = partial(_run, root=Path(args.keep or scratch), parts=args.json)
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            for some in side_by_side(run, plan(args.runs, args.seed, args.kinds), args.jobs, "runs", console):
                for one in some:
                    console.print("  " + "  ".join(row(one)), soft_wrap=True, markup=False)
                results += some
    if args.json is not None and args.json.exists():
        results = read(args.json)  # also of runs that were cut short
    print(report(results))
    return 0


def plan(faults: int, seed: int, kinds: Sequence[str]) -> list[list[Hurt]]:
    """Faults by run. All kinds once before any comes again, in an order of the seed; what spoils a run is its last."""
    rng, chosen = random.Random(seed), list(kinds or TRUTH)
    order: list[str] = []
    while len(order) < faults:
        order += rng.sample(chosen, len(chosen))
    order = order[:faults]
    pinned = [kind for kind in order if kind in PINNED]
    ordinary = [kind for kind in order if kind not in PINNED]
    runs = [some[at : at + IN_A_RUN] for some in (ordinary, pinned) for at in range(0, len(some), IN_A_RUN)]
    planned = []
    for number, some in enumerate(runs):
        mode = rng.choice(("plain", "state"))
        some.sort(key=lambda kind: kind in SPOILING)
        hurts = []
        for at, kind in enumerate(some):
            lowest = 0 if kind in (*OWN, *PINNED) else 1  # a collective's root waits for nobody
            rank, step = rng.randrange(lowest, NODES * ranks_per_node(kind)), rng.randint(FIRST_STEP, LAST_STEP)
            seeded = 1000 * seed + number * IN_A_RUN + at
            hurts.append(Hurt(kind=kind, rank=rank, step=step, seed=seeded, mode=mode))
        planned.append(hurts)
    return planned


def _run(hurts: list[Hurt], *, root: Path, parts: Path | None) -> list[Told]:
    return run_hurts(hurts, root / str(hurts[0].seed), partial(_keep, parts=parts))


def _keep(one: Told, *, parts: Path | None) -> None:
    if parts is not None:
        with parts.open("a") as file:
            file.write(json.dumps(asdict(one)) + "\n")


def read(file: Path) -> list[Told]:
    return [told_of(json.loads(line)) for line in file.read_text().splitlines()]


def told_of(one: dict[str, object]) -> Told:
    fields = {**one, "hurt": Hurt(**one["hurt"])}  # type: ignore[arg-type]
    return Told(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})  # type: ignore[arg-type]


def row(one: Told) -> list[str]:
    party = "right" if one.right_party else f"WRONG {one.blame}" if one.blame != "unknown" else "unknown"
    rank = "right" if one.right_rank else f"ranks {list(one.ranks)}, was {one.hurt.rank}"
    after = "-" if one.after_s is None else f"{one.after_s:.1f}"
    evicted = f"EVICTED {','.join(one.evicted)}" if one.wrongly_evicted else ""
    words = [one.hurt.kind, one.hurt.mode, one.code or "none", party, one.confidence, rank, after, evicted]
    return [*words, ",".join(one.others), one.trouble[:160] if one.trouble else one.sentence[:110]]


def report(results: Sequence[Told]) -> str:
    lines = []
    for kind in sorted({one.hurt.kind for one in results}, key=list(TRUTH).index):
        some = [one for one in results if one.hurt.kind == kind]
        codes = ", ".join(f"{code or 'none'} x{n}" for code, n in Counter(one.code for one in some).most_common())
        party, rank = sum(one.right_party for one in some), sum(one.right_rank for one in some)
        unknown = sum(one.blame in ("unknown", "") for one in some)
        evicted = sum(one.wrongly_evicted for one in some)
        numbers = (len(some), party, unknown, len(some) - party - unknown, rank, evicted)
        lines.append([kind, TRUTH[kind], *map(str, numbers), codes])
    head = ["fault", "party", "runs", "right", "unknown", "wrong", "rank", "evicted", "codes"]
    total, party = len(results), sum(one.right_party for one in results)
    unknown, rank = sum(one.blame in ("unknown", "") for one in results), sum(one.right_rank for one in results)
    evicted = sum(one.wrongly_evicted for one in results)
    sure = [one for one in results if one.confidence == "high"]
    summary = (
        f"{total} runs: right party {party}, unknown {unknown}, wrong {total - party - unknown}; right rank {rank}; "
        f"nodes evicted for what no machine did: {evicted}; of {len(sure)} of high confidence the party is right in "
        f"{sum(one.right_party for one in sure)}"
    )
    return f"{table(head, lines)}\n\n{summary}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", type=lambda text: [k for k in text.split(",") if k], default=[], metavar="A,B")
    parser.add_argument("--jobs", type=int, default=2, help="runs side by side (default %(default)s)")
    parser.add_argument("--list", action="store_true", help="the kinds, and whose fault each is")
    parser.add_argument("--sum", type=Path, nargs="+", default=[], metavar="FILE", help="what --json wrote")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="a line for each fault is added here, as it is done")
    args = parser.parse_args(argv)
    for kind in args.kinds:
        if kind not in TRUTH:
            parser.error(f"no kind {kind!r}; --list shows them")
    return args


if __name__ == "__main__":
    sys.exit(main())
