"""The fault matrix: every drill on several layouts, and how soon everstep saw it, whom it blamed, and what it cost.

Ends everything it started, also on Ctrl-C. bench/healthy.py does the opposite: irregular trainings without any fault.

    python bench/faults.py [--only KIND,...] [--seeds N] [--layout dp,2x2] [--json FILE]
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from matrix.faults_matrix import KINDS, LAYOUTS, LOUD, SEEDS_OF_SLOW, Fault, plan, run_matrix
from matrix.faults_report import fault_row, matrix_document, matrix_report, write
from measuring.display import progress
from measuring.launched import adopt_orphans, end_on_sigterm


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        root = args.keep or Path(scratch)
        return _matrix(root, args, console)


def _matrix(root: Path, args: argparse.Namespace, console: Console) -> int:
    slow_seeds = args.seeds if args.only else SEEDS_OF_SLOW
    faults = plan(args.only or KINDS, args.layout, args.seeds, args.nproc, slow_seeds=slow_seeds)
    with progress(console) as bar:
        task = bar.add_task("starting", total=len(faults))

        def told(fault: Fault) -> None:
            console.print("  " + "  ".join(fault_row(fault)), soft_wrap=True)
            bar.update(task, advance=1, description=f"after {fault.kind} on {fault.layout}")

        results = run_matrix(root, faults, args.nproc, args.policy, told)
    print(matrix_report(results))
    write(args.json, matrix_document(results))
    good = all(fault.ended_well and fault.right_group is not False for fault in results.faults)
    return 0 if good and not results.false_alarms else 1


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=_names, default=[], metavar="KIND,...", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=4, help="faults of each kind and layout (default %(default)s)")
    parser.add_argument("--layout", type=_layouts, default=list(LAYOUTS), metavar="NAME,...", help="of dp, 2x2")
    parser.add_argument("--nproc", type=int, default=4, help="ranks of each training (default %(default)s)")
    parser.add_argument("--policy", default="", metavar="TOML", help="lines of the section [policy]")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    known = (*KINDS, *LOUD)
    for name in args.only:
        if name not in known:
            parser.error(f"no kind {name!r}; there are: {', '.join(known)}")
    if "2x2" in args.layout and args.nproc != 4:
        parser.error("the layout 2x2 has four ranks")
    return args


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _layouts(text: str) -> list[str]:
    names = _names(text)
    if unknown := [name for name in names if name not in LAYOUTS]:
        raise argparse.ArgumentTypeError(f"no layout {unknown[0]!r}; there are: {', '.join(LAYOUTS)}")
    return names


if __name__ == "__main__":
    raise SystemExit(main())
