"""Random programs under torchrun and under everstep, without any fault: same output, same files, same exit code.

Each program comes from a seed and runs in the same folder under both. What draws random numbers without a seed is
compared by how many of its values differ between the ranks. Programs that differ are kept with both outcomes.
--self-check compares torchrun with torchrun: what differs there is the benchmark's own fault.

    python bench/same_programs.py [--count 300] [--seed 0] [--jobs 2] [--keep DIR] [--json FILE]
    python bench/same_programs.py --only 17,40 --show         these seeds; print the programs
"""

import argparse
import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import msgspec
from rich.console import Console

from measuring.figures import table
from measuring.launched import end_on_sigterm, launched
from measuring.side_by_side import side_by_side
from sameness.same_compare import Outcome, differences, outcome
from sameness.same_generator import Program, program

LIMIT_S = 150.0
TORCHRUN = (sys.executable, "-P", "-m", "torch.distributed.run")
EVERSTEP = (sys.executable, "-P", "-m", "everstep", "run")


@dataclass(frozen=True, kw_only=True)
class Compared:
    seed: int
    pieces: tuple[str, ...]
    found: dict[str, list[str]]  # which run under everstep -> its differences
    torchrun_s: float
    everstep_s: float


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    seeds = args.only or list(range(args.seed, args.seed + args.count))
    if args.show:
        print("\n".join(_shown(program(seed)) for seed in seeds))
        return 0
    end_on_sigterm()
    console = Console(stderr=True)
    results: list[Compared] = []
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        compare = partial(_compare, root=Path(scratch), args=args)
        with contextlib.suppress(KeyboardInterrupt, SystemExit):
            for one in side_by_side(compare, seeds, args.jobs, "programs", console):
                results.append(one)
                for run, found in one.found.items():
                    text = "\n      ".join(found)
                    console.print(f"  {one.seed} ({run}): {text}", soft_wrap=True, markup=False)
    print(report(results))
    is_whole = len(results) == len(seeds)
    if not is_whole:
        print(f"INTERRUPTED after {len(results)} of {len(seeds)}: no result of the whole")
    if args.json is not None:
        args.json.write_text(json.dumps([asdict(one) for one in results], indent=1) + "\n")
    return 1 if any(one.found for one in results) or not is_whole else 0


def _compare(seed: int, *, root: Path, args: argparse.Namespace) -> Compared:
    made = program(seed)
    place = root / str(seed)
    place.mkdir()
    expected = _expected(made, place, args.truth)
    others = {"torchrun again": TORCHRUN} if args.self_check else {"first run": EVERSTEP}
    if made.again and not args.self_check:
        others["second run"] = EVERSTEP
    found, took_s = {}, 0.0
    for name, launcher in others.items():
        got = _run(made, place, launcher)
        took_s = max(took_s, got.took_s)
        if differs := differences(expected, got):
            found[name] = differs
            if args.keep is not None:
                _keep(args.keep / str(seed), made, {"torchrun": expected, name: got}, differs)
    shutil.rmtree(place, ignore_errors=True)
    return Compared(seed=seed, pieces=made.pieces, found=found, torchrun_s=expected.took_s, everstep_s=took_s)


def _expected(made: Program, place: Path, truth: Path | None) -> Outcome:
    """What torchrun makes of it: from an earlier run of this benchmark, if it was kept."""
    if truth is None:
        return _run(made, place, TORCHRUN)
    kept = truth / f"{made.seed}.json"
    text = msgspec.json.encode(asdict(made)).decode()
    if kept.exists():
        known = msgspec.json.decode(kept.read_bytes(), type=dict[str, msgspec.Raw])
        if msgspec.json.decode(known["program"], type=str) == text:
            return msgspec.json.decode(known["outcome"], type=Outcome)
    fresh = _run(made, place, TORCHRUN)
    truth.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(msgspec.json.encode({"program": text, "outcome": fresh}))
    return fresh


def _run(made: Program, place: Path, launcher: Sequence[str]) -> Outcome:
    """In the same folder each time, because programs print where they are; the folder is gone afterwards."""
    folder, logs = place / "work", place / "logs"
    for path in (folder, logs):
        shutil.rmtree(path, ignore_errors=True)
    for name, text in made.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    options = (*made.options, *(("--log-dir", str(logs), "-r", "3") if made.logged else ()))
    env = {**os.environ, **made.env, "EVERSTEP_HOME": str(place / "home"), "TMPDIR": str(place)}
    stdout, stdin = place / "stdout", place / "stdin"
    stdout.unlink(missing_ok=True)
    stdin.write_text(made.stdin or "")
    begun = time.monotonic()
    command = [*launcher, *options, *made.target]
    files = {"stdout": stdout, "stdin": stdin, "cwd": folder}
    with launched(command, env=env, output=place / "stderr", **files) as running:
        code = running.wait(LIMIT_S)
    took_s = time.monotonic() - begun
    return outcome(folder, logs if made.logged else None, stdout.read_bytes(), code, took_s)


def _keep(folder: Path, made: Program, outcomes: dict[str, Outcome], found: list[str]) -> None:
    for name, text in made.files.items():
        (folder / "work" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "work" / name).write_text(text)
    lines = [
        f"options: {' '.join((*made.options, *made.target))}",
        f"env: {made.env}",
        f"stdin: {made.stdin!r}",
        *found,
    ]
    (folder / "differences").write_text("\n".join(lines) + "\n")
    for name, each in outcomes.items():
        for stream, text in each.streams.items():
            (folder / f"{name} {stream}".replace(" ", "-")).write_bytes(text)


def report(results: Sequence[Compared]) -> str:
    """By piece: how many programs have it, and how many of those differ."""
    count = Counter(piece for one in results for piece in one.pieces)
    bad = Counter(piece for one in results if one.found for piece in one.pieces)
    rows = [[piece, str(number), str(bad[piece])] for piece, number in sorted(count.items())]
    results = sorted(results, key=lambda one: one.seed)
    differ = [one for one in results if one.found]
    lines = [table(["piece", "programs", "that differ"], rows), ""]
    for one in differ:
        lines += [f"{one.seed} ({run}): {line}" for run, found in one.found.items() for line in found]
    runs = sum(one.torchrun_s for one in results), sum(one.everstep_s for one in results)
    lines.append(f"{len(results)} programs, {len(differ)} differ; torchrun {runs[0]:.0f} s, everstep {runs[1]:.0f} s")
    return "\n".join(lines)


def _shown(made: Program) -> str:
    files = "\n".join(f"--- {name}\n{text}" for name, text in made.files.items() if name != "witness.py")
    return f"=== {made.seed}: {' '.join((*made.options, *made.target))}\n{files}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="programs (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first one (default %(default)s)")
    parser.add_argument("--only", type=lambda text: [int(part) for part in text.split(",")], metavar="SEED,...")
    parser.add_argument("--jobs", type=int, default=2, help="programs at once (default %(default)s)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave programs that differ here")
    parser.add_argument("--truth", type=Path, metavar="DIR", help="keep torchrun's outcomes here, and use those there")
    parser.add_argument("--self-check", action="store_true", help="torchrun beside torchrun")
    parser.add_argument("--show", action="store_true", help="print the programs, run nothing")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
