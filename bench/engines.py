"""The same scenario on the local engine, on hosts and on a real Slurm: the same decisions?

    python bench/engines.py [--scenario FILE] [--only local,hosts,slurm] [--json FILE] [--keep DIR]
    python bench/engines.py --journals local=DIR/local.jsonl slurm=DIR/slurm.jsonl        # compares, runs nothing

The faults of the scenario (bench/scenarios/ranks_agents_nodes.txt; beside it two_ranks_a_node.txt and preempted.txt)
befall the same small training three times: nodes as processes of this machine, hosts in namespaces that were started
one by one, and nodes of a real Slurm in namespaces.
The decisions are read from the three journals; what must differ (ids, times, addresses) is normalised, which is said.
Exit code 1 when decisions differ. Needs root and Debian's Slurm (`make debian`).
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from everstep.journal.reader import read_journal
from everstep.model.record import Record
from hosts import TRAIN
from playing.on_local import OnLocal
from playing.on_machines import OnHosts, OnSlurm
from playing.player import POLICY
from playing.scenario import Scenario, ScenarioError, parsed
from sameness.decisions import NORMALISED, Decided, decided
from sameness.decisions_compare import differences, document, table

ENGINES = {"local": OnLocal, "hosts": OnHosts, "slurm": OnSlurm}
SCENARIO = Path(__file__).with_name("scenarios") / "ranks_agents_nodes.txt"


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    try:
        scenario = parsed(args.scenario.read_text())
    except ScenarioError as error:
        print(f"{args.scenario}: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch:
        journals = args.journals or _play(scenario, args.only, args.keep or Path(scratch))
        runs = {name: _decided(path) for name, path in journals.items()}
    faults = scenario.lines
    print(table(faults, runs))
    print("\nNormalised:" + "".join(f"\n  {each}" for each in NORMALISED))
    if args.json is not None:
        args.json.write_text(json.dumps(document(faults, runs, NORMALISED), indent=1) + "\n")
    return _result(scenario, runs)


def _result(scenario: Scenario, runs: dict[str, tuple[Decided, ...]]) -> int:
    found = differences(runs)
    load = f"load {os.getloadavg()[0]:.0f}"
    if found:
        print(f"\n{len(found)} differences; the first: {found[0]}\n{load}")
        return 1
    num = len(next(iter(runs.values()))) - scenario.is_preempted
    end = ", and a preemption" if scenario.is_preempted else ""
    print(f"\n{len(scenario.faults)} faults, {num} incidents{end}, {', '.join(runs)}: the same decisions; {load}")
    return 0


def _play(scenario: Scenario, engines: Sequence[str], folder: Path) -> dict[str, Path]:
    """The journal of each engine's run."""
    journals = {}
    for name in engines:
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        program, policy = own / "train.py", own / "everstep.toml"
        program.write_text(TRAIN)
        policy.write_text(POLICY)
        with ENGINES[name](scenario, own, program, policy) as player:
            try:
                player.play()
            finally:
                journals[name] = folder / f"{name}.jsonl"
                shutil.copy(player.run_dir / "journal.jsonl", journals[name])
    return journals


def _decided(path: Path) -> tuple[Decided, ...]:
    return decided(each for each in read_journal(path).entries if isinstance(each, Record))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--scenario", type=Path, default=SCENARIO, metavar="FILE")
    parser.add_argument(
        "--only", type=_names, default=list(ENGINES), metavar="NAME,...", help=f"of {', '.join(ENGINES)}"
    )
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave journals and logs here")
    parser.add_argument("--journals", type=_named, nargs="+", metavar="NAME=FILE", help="compare these, run nothing")
    args = parser.parse_args(argv)
    args.journals = dict(args.journals or ())
    return args


def _names(text: str) -> list[str]:
    if unknown := [name for name in text.split(",") if name not in ENGINES]:
        raise argparse.ArgumentTypeError(f"no engine {unknown[0]!r}; there are: {', '.join(ENGINES)}")
    return text.split(",")


def _named(text: str) -> tuple[str, Path]:
    name, _, path = text.partition("=")
    return name, Path(path)


if __name__ == "__main__":
    raise SystemExit(main())
