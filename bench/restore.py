"""How long `everstep.State(...)` takes to restore a rank, beside a plain copy of the same bytes in the same process.

    python bench/restore.py [--state-mb 500] [--ranks 2] [--kills 5] [--json FILE] [--tree PATH ...]

One launch is one training of gloo ranks; rank 0 kills itself, everybody starts again, and after the restore the ranks
copy the same bytes back and forth. Of each generation the slowest rank counts, for both. The yardstick is `copy_` into
memory that is warm; a new process has none, so a copy into memory that was never touched is shown beside it. With
several `--tree`, launches of these checkouts (each with its own `.venv`) alternate.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring.figures import table
from measuring.launched import adopt_orphans, end_on_sigterm, launched

SCRIPT = Path(__file__).parent / "programs/restore_script.py"
_LAUNCH_TIMEOUT_S = 300.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--state-mb", type=float, default=500)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--kills", type=int, default=5, help="per launch")
    parser.add_argument("--rounds", type=int, default=1, help="launches of each tree")
    parser.add_argument("--tree", type=Path, nargs="+", default=[Path(__file__).resolve().parent.parent])
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    adopt_orphans()
    end_on_sigterm()
    found: dict[str, list[dict[str, float]]] = {str(tree): [] for tree in args.tree}
    for _ in range(args.rounds):
        for tree in args.tree:
            found[str(tree)] += _launch(tree, args)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{args.ranks} ranks x {args.state_mb:g} MB; medians of the slowest rank of each restart (least to most)")
    head = ("tree", "restarts", "restore", "plain copy", "into fresh memory", "to the copy")
    print(table(head, [_row(name, records) for name, records in found.items()]))
    return 0 if all(found.values()) else 1


def _launch(tree: Path, args: argparse.Namespace) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        line = [str(tree / ".venv/bin/everstep"), "run", "--run-dir", str(folder / "run"), "--max-restarts", "100"]
        what = [str(SCRIPT), str(args.state_mb), str(args.kills), scratch]
        env = {**os.environ, "EVERSTEP_HOME": scratch, "TMPDIR": scratch, "PYTHONWARNINGS": "ignore"}
        command = [*line, "--nproc-per-node", str(args.ranks), *what]
        with launched(command, env=env, output=folder / "output.log") as running:
            deadline = time.monotonic() + _LAUNCH_TIMEOUT_S
            while running.wait(0.2) is None:
                if time.monotonic() > deadline:
                    break
            if running.exit_code() != 0:
                print(running.last_output(3000))
        by_rank = [_records(folder / f"rank-{rank}.jsonl") for rank in range(args.ranks)]
    shared = set.intersection(*(set(records) for records in by_rank))
    return [_slowest([records[generation] for records in by_rank]) for generation in sorted(shared)]


def _records(path: Path) -> dict[int, dict[str, Any]]:
    if not path.exists():
        return {}
    return {record["generation"]: record for record in map(json.loads, path.read_text().splitlines())}


def _slowest(records: list[dict[str, Any]]) -> dict[str, float]:
    return {name: max(record[name] for record in records) for name in ("restore_s", "copy_s", "fresh_s")}


def _row(name: str, records: list[dict[str, float]]) -> tuple[str, ...]:
    if not records:
        return name, "0", "", "", "", ""
    spans = [_span([record[key] for record in records]) for key in ("restore_s", "copy_s", "fresh_s")]
    ratio = statistics.median(record["restore_s"] / record["copy_s"] for record in records)
    return name, str(len(records)), *spans, f"{ratio:.2f}"


def _span(values: list[float]) -> str:
    return f"{statistics.median(values):.3f} s ({min(values):.3f} to {max(values):.3f})"


if __name__ == "__main__":
    raise SystemExit(main())
