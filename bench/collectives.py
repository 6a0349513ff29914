"""Does `everstep collectives` say what a stopwatch says, and who came late? Real gloo runs of a program that knows
nothing of Everstep (`programs/collectives_script.py`), compared with the stopwatch around its own calls: mean time by
operation and size, and the rank that was delayed before each of many small collectives. A delay is judged by what was
injected; where another rank came even later by its own clock, as on a busy machine, that is counted apart.

    python bench/collectives.py [--runs 4] [--ranks 4] [--repeats 6] [--delays 250] [--seed 1] [--json FILE]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean

from measuring.figures import table

SCRIPT = Path(__file__).parent / "programs" / "collectives_script.py"
LINGER_S = 14.0
"""Longer than a round of the agents."""

LIMIT_S = 400.0
EVERSTEP = [sys.executable, "-m", "everstep"]


def main() -> int:
    given = _arguments()
    rows, late = [], []
    for number in range(given.runs):
        with tempfile.TemporaryDirectory(prefix="everstep-bench-") as name:
            found = _run(Path(name), given, given.seed + number)
            rows += found[0]
            late += found[1]
    print(table(("run", "operation", "bytes", "ops", "stopwatch ms", "table ms", "off"), [_cells(row) for row in rows]))
    off = sorted(abs(row["off"]) for row in rows if row["off"] is not None)
    seen = [each for each in late if each["said"] is not None]
    print(
        f"{len(off)} of {len(rows)} rows measured; off at most {max(off):.2%}, {sum(o <= 0.05 for o in off)} within 5 %"
    )
    right = sum(e["said"] == e["whose"] for e in late)
    print(
        f"{len(late)} delays, {len(seen)} seen; the delayed rank named in {right}; "
        f"the rank that came last by its own clock in {sum(e['said'] == e['last'] for e in late)}; "
        f"another rank came even later in {sum(e['last'] != e['whose'] for e in late)}"
    )
    if given.json:
        Path(given.json).write_text(json.dumps({"rows": rows, "late": late}))
    return 0


def _run(place: Path, given: argparse.Namespace, seed: int) -> tuple[list[dict], list[dict]]:
    environ = {**os.environ, "EVERSTEP_HOME": str(place / "home")}
    program = [str(SCRIPT), str(place), str(given.repeats), str(given.delays), str(seed), str(LINGER_S)]
    command = [*EVERSTEP, "run", "--nproc-per-node", str(given.ranks), *program]
    subprocess.run(command, env=environ, check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
    said = subprocess.run(
        [*EVERSTEP, "collectives", "--json"], env=environ, check=True, timeout=60, capture_output=True
    )
    told = json.loads(said.stdout)
    own = [json.loads((place / f"rank-{rank}.json").read_text()) for rank in range(given.ranks)]
    return _rows(told, own, seed), _late(told, own)


def _rows(told: dict, own: list[dict], seed: int) -> list[dict]:
    stopwatch = defaultdict(list)
    for rank in own:
        for op, num_bytes, took_s in rank["timed"]:
            stopwatch[op, num_bytes].append(took_s)
    known = {(row["op"], row["num_bytes"]): row for row in told["groups"][0]["rows"]}
    rows = []
    for (op, num_bytes), times in sorted(stopwatch.items()):
        row = known.get((op, num_bytes))
        mean_s = row["mean_s"]["value"] if row is not None else None
        rows.append(
            {
                "run": seed,
                "op": op,
                "bytes": num_bytes,
                "num": (row["count"] if row is not None else 0, len(times) // len(own)),
                "stopwatch_s": fmean(times),
                "table_s": mean_s,
                "off": fmean(times) / mean_s - 1 if mean_s else None,  # of the bandwidth
            }
        )
    return rows


def _late(told: dict, own: list[dict]) -> list[dict]:
    said = {each["seq"]: each["rank"] for each in told["late"] if each["group"] == 0}
    found = []
    for entries in zip(*(rank["delayed"] for rank in own), strict=True):
        seq, whose, _ = entries[0]
        last = max(range(len(own)), key=lambda rank: entries[rank][2])
        found.append({"seq": seq, "whose": whose, "last": last, "said": said.get(seq)})
    return found


def _cells(row: dict) -> tuple[str, ...]:
    times = [f"{1e3 * row[name]:.3f}" if row[name] is not None else "unknown" for name in ("stopwatch_s", "table_s")]
    off = f"{row['off']:+.2%}" if row["off"] is not None else "-"
    return str(row["run"]), row["op"], f"{row['bytes']:,}", f"{row['num'][0]} of {row['num'][1]}", *times, off


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=6, help="calls of each operation and size")
    parser.add_argument("--delays", type=int, default=250, help="in each run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
