"""Does a run that is through end well? Short trainings with DDP, in turns under torchrun and everstep.

A rank may abort while its interpreter ends: a thread of torch's that has just done the last collective then asks for
the interpreter's lock (worker/process/communication.py). Counted: runs with a rank that a signal ended.

    python bench/ends.py [--runs 30] [--nproc 3] [--steps 40] [--json FILE]
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from measuring.figures import table
from measuring.launched import adopt_orphans, end_on_sigterm, launched

SCRIPT = Path(__file__).parent / "programs/ends_script.py"
LAUNCHERS = {
    "torchrun": (sys.executable, "-P", "-m", "torch.distributed.run", "--standalone"),
    "everstep": (sys.executable, "-P", "-m", "everstep", "run"),
}
LIMIT_S = 180.0
SIGNS = ("terminate called", "SIGABRT", "SIGSEGV", "Fatal Python error")


def run_once(name: str, folder: Path, nproc: int, steps: int) -> str:
    """ "well", "badly" (a signal ended a rank), "otherwise" (another failure) or "not in time"."""
    folder.mkdir(parents=True)
    output = folder / "output"
    command = (*LAUNCHERS[name], "--nproc-per-node", str(nproc), str(SCRIPT), str(steps))
    with launched(command, env={**os.environ, "EVERSTEP_HOME": str(folder)}, output=output) as running:
        code = running.wait(LIMIT_S)
    if code is None:
        return "not in time"
    said = output.read_text(errors="replace")
    if any(sign in said for sign in SIGNS):
        return "badly"
    return "well" if code == 0 else "otherwise"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30, help="of each launcher (default 30)")
    parser.add_argument("--nproc", type=int, default=3, help="ranks (default 3)")
    parser.add_argument("--steps", type=int, default=40, help="(default 40)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    adopt_orphans()
    end_on_sigterm()
    ends: dict[str, Counter[str]] = {name: Counter() for name in LAUNCHERS}
    with tempfile.TemporaryDirectory(prefix="everstep-ends-") as folder:
        for number in range(args.runs):
            for name in LAUNCHERS:
                began = time.monotonic()
                how = run_once(name, Path(folder) / f"{name}-{number}", args.nproc, args.steps)
                ends[name][how] += 1
                print(
                    f"run {number + 1} of {args.runs}, {name}: {how}, {time.monotonic() - began:.1f} s", file=sys.stderr
                )
    kinds = ("well", "badly", "otherwise", "not in time")
    rows = [(name, *(str(counts[kind]) for kind in kinds)) for name, counts in ends.items()]
    Console().print(table(("launcher", *(f"ended {kind}" for kind in kinds)), rows))
    if args.json:
        args.json.write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
