"""Can a program tell that it was not started by torchrun? Asks it: some hundred facts, taken inside each rank.

The same program under both launchers, with a kill of rank 1 in the first generation, and again in a second run (by
then everstep may have learned something). A difference that docs/same-program.md does not name fails.

    python bench/census.py [--only bare,transformers] [--quick] [--all] [--json FILE] [--keep DIR]

`--quick`: each launcher once, and the bare program alone if none is named. Exit code 0: no difference but the listed
ones; 1: others; 2: a run failed.
"""

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from measuring.launched import adopt_orphans, end_on_sigterm, launched
from sameness.census_compare import Difference, Facts, Listed, Place, compare, explain, read_listed
from sameness.census_programs import PROGRAMS, Program

PAGE = Path(__file__).parent.parent / "docs/same-program.md"
NUM_RANKS = 2
LIMIT_S = 300.0
LAUNCHERS = {
    "torchrun": (sys.executable, "-m", "torch.distributed.run"),
    "everstep": (sys.executable, "-m", "everstep.cli.main", "run"),
}


class FailedError(Exception):
    """A launcher that did not bring the program to its end."""


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    programs = [each for each in PROGRAMS if each.name in args.only]
    with tempfile.TemporaryDirectory(prefix="census-") as kept:
        folder = args.keep or Path(kept)
        try:
            torchrun, everstep = take(programs, folder, 1 if args.quick else 2)
        except FailedError as failed:
            print(failed, file=sys.stderr)
            return 2
    differences = compare(torchrun, everstep)
    unused = explain(differences, read_listed(args.page.read_text()) if args.page.exists() else [])
    print(report(differences, unused, _counts(everstep), everything=args.all))
    if args.json is not None:
        rows = [
            {"fact": each.name, "where": _where([each]), "torchrun": each.torchrun, "everstep": each.everstep}
            | {"reason": each.reason}
            for each in differences
        ]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if any(each.reason is None for each in differences) else 0


def take(programs: Sequence[Program], folder: Path, num_runs: int) -> tuple[Facts, Facts]:
    """The facts of all programs under torchrun, and under everstep."""
    taken: dict[str, dict[Place, dict[str, str]]] = {name: {} for name in LAUNCHERS}
    for program in programs:
        if program.missing:
            print(f"{program.name}: absent: not installed: {', '.join(program.missing)}", file=sys.stderr)
            continue
        for launcher in LAUNCHERS:
            for run in range(num_runs):
                taken[launcher] |= _run(program, launcher, run, folder)
    return taken["torchrun"], taken["everstep"]


def _run(program: Program, launcher: str, run: int, folder: Path) -> dict[Place, dict[str, str]]:
    """One launch. The program's folder is the same for both launchers and all runs: its path is a fact, too."""
    home, work, out = folder / "home", folder / program.name, folder / f"{program.name}.{launcher}.{run}"
    shutil.rmtree(work, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    for each in (work, out, home):
        each.mkdir(parents=True, exist_ok=True)
    (work / "census_train.py").write_text(program.text())
    for name in ("census_probe.py", "census_kernel.py"):
        shutil.copy(Path(__file__).parent / "sameness" / name, work)
    env = {**os.environ, "CENSUS_OUT": str(out), "EVERSTEP_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # else a second generation of torchrun 2.13 hangs (pytorch#167288)
    env.pop("OMP_NUM_THREADS", None)
    flags = ("--nproc-per-node", str(NUM_RANKS), "--max-restarts", "3", "--standalone")
    command = [
        "sh",
        "-c",
        'cd "$0" && exec "$@"',
        str(work),
        *LAUNCHERS[launcher],
        *flags,
        "census_train.py",
        "--lr",
        "1",
    ]
    began = time.monotonic()
    with launched(command, env=env, output=out / "launcher.log") as launch:
        code = launch.wait(LIMIT_S)
        words = launch.last_output(3000)
    print(f"{program.name}: {launcher}, run {run}: {time.monotonic() - began:.1f} s", file=sys.stderr)
    found = _facts(program.name, run, out, {str(out): "<out>"})
    if code != 0:
        trouble = f"{program.name} under {launcher}, run {run}: exit code {code}:\n{words}"
        if launcher == "torchrun" or not found:
            raise FailedError(trouble)
        print(trouble, file=sys.stderr)
    return {place: {**facts, "launcher/exit code": str(code)} for place, facts in found.items()}


def _facts(program: str, run: int, out: Path, renamed: dict[str, str]) -> dict[Place, dict[str, str]]:
    found = {}
    for path in sorted(out.glob("facts.*.json")):
        _, generation, rank, _ = path.name.split(".")
        facts = {name: _plain(value, renamed) for name, value in json.loads(path.read_text()).items()}
        found[Place(program, run, int(generation), int(rank))] = facts
    diary = [line.split(" ", 1) for line in (out / "diary").read_text().splitlines()]
    for facts in found.values():
        pid = facts.pop("pid")
        of_this = [what for who, what in diary if who == pid]
        counted = Counter(of_this)
        facts |= {f"diary/{what}.times": str(counted[what]) for what in ("began", "imported", "rendezvous")}
        facts["diary/end.order"] = ", ".join(what[5:] for what in of_this if what.startswith("end: "))
    return found


def _plain(value: str, renamed: dict[str, str]) -> str:
    for text, name in renamed.items():
        value = value.replace(text, name)
    return re.sub(r"0x[0-9a-f]{6,}", "0x", value)


def _counts(facts: Facts) -> str:
    names = {name for each in facts.values() for name in each}
    programs = sorted({place.program for place in facts})
    return f"{len(names)} facts in {len(facts)} ranks of {len(programs)} programs: {', '.join(programs)}"


def report(differences: list[Difference], unused: list[Listed], counts: str, *, everything: bool) -> str:
    """One entry for each fact, whatever the points of the program at which it differs."""
    unlisted = [each for each in differences if each.reason is None]
    lines = [f"{counts}. {len(differences)} differ, {len(unlisted)} of them not listed.", ""]
    groups: dict[tuple[str, str | None], list[Difference]] = {}
    for each in differences if everything else unlisted:
        groups.setdefault((each.name.partition("/")[2], each.reason), []).append(each)
    for (fact, reason), several in sorted(groups.items(), key=lambda item: item[0][0]):
        points = " ".join(each.name.partition("/")[0] for each in several)
        first = several[0]
        lines += [f"{fact}  (at {points}; {_where(several)})", f"    torchrun  {_short(first.torchrun)}"]
        lines += [f"    everstep  {_short(first.everstep)}"] + ([f"    because   {reason}"] if reason else [])
    lines += [f"listed, but found nowhere: {row.pattern}" for row in unused]
    return "\n".join(lines)


def _where(differences: list[Difference]) -> str:
    places = [place for each in differences for place in each.places]
    spread = {
        name: sorted({getattr(place, name) for place in places}) for name in ("program", "run", "generation", "rank")
    }
    return "; ".join(f"{name} {' '.join(map(str, values))}" for name, values in spread.items())


def _short(value: str, length: int = 400) -> str:
    return value if len(value) <= length else f"{value[: length // 2]} … {value[-length // 2 :]}"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="PROGRAMS")
    parser.add_argument("--quick", action="store_true", help="each launcher once; the bare program if none is named")
    parser.add_argument("--all", action="store_true", help="show the listed differences, too")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what was written there")
    parser.add_argument("--page", type=Path, default=PAGE, help="the page that lists the differences that are meant")
    args = parser.parse_args(argv)
    if args.only is None:
        args.only = ["bare"] if args.quick else [each.name for each in PROGRAMS]
    return args


if __name__ == "__main__":
    sys.exit(main())
