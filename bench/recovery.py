"""How long a training is away when one rank is killed: torchrun, NVIDIA's ft_launcher and everstep, side by
side.

SIGKILL of one of four gloo ranks to the first new step of the slowest rank, the same script and the same
victims for all, rounds interleaved so that drift of the machine hits all alike. Ends everything it started,
also on Ctrl-C.

    python bench/recovery.py [--quick] [--only torchrun,everstep] [--rounds N] [--json FILE]
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from contests.contest import NeverTrainedError, Plan, Recovery, as_json, measure
from contests.peers import NAMES, Contender, contenders
from measuring.figures import Spread, better, ratio, seconds, spread, table
from measuring.launched import adopt_orphans, end_on_sigterm

BASELINES = ("torchrun", "torchrun-workaround")
NOTE = "¹ TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it restarts of 2.13 read stale keys (pytorch#167288)."


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    adopt_orphans()
    end_on_sigterm()
    plan = _plan(args)
    names = list(NAMES) if args.only is None else args.only
    console = Console(stderr=True)
    console.print("finding launchers" + ("" if args.no_install else " (NVIDIA's is installed on first use)"))
    entrants = contenders(names, install=not args.no_install)
    for entrant in entrants:
        state = entrant.version if entrant.absent is None else f"absent: {entrant.absent}"
        console.print(f"  {entrant.title:<24} {state}", soft_wrap=True)
    found, failures = _rounds(entrants, plan, args, console)
    print(report(entrants, found, failures, plan))
    if args.json is not None:
        args.json.write_text(json.dumps(_document(entrants, found, failures, plan, args), indent=1) + "\n")
    return 0 if any(found.values()) else 1


def _rounds(
    entrants: list[Contender], plan: Plan, args: argparse.Namespace, console: Console
) -> tuple[dict[str, list[Recovery]], dict[str, list[str]]]:
    """Every present contender once per round, A B C A B C; what failed to train is kept apart."""
    present = [entrant for entrant in entrants if entrant.absent is None]
    found: dict[str, list[Recovery]] = {entrant.name: [] for entrant in present}
    failures: dict[str, list[str]] = {entrant.name: [] for entrant in present}
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    with tempfile.TemporaryDirectory(prefix="everstep-bench-", ignore_cleanup_errors=True) as scratch, bar:
        task = bar.add_task("recovery", total=args.rounds * len(present))
        for round_ in range(1, args.rounds + 1):
            for entrant in present:

                def say(what: str, title: str = entrant.title) -> None:
                    bar.update(task, description=f"{title}: {what}")

                folder = Path(scratch) / f"{round_}-{entrant.name}"
                try:
                    new = measure(entrant, plan, round_=round_, seed=args.seed, folder=folder, say=say)
                    found[entrant.name] += new
                    for one in new:
                        console.print(f"  round {round_}  {entrant.title:<24} {_told(one)}", soft_wrap=True)
                except NeverTrainedError as failure:
                    failures[entrant.name].append(str(failure))
                    console.print(f"  round {round_}  {entrant.title:<24} failed: {failure}", soft_wrap=True)
                bar.advance(task)
    return found, failures


def report(
    entrants: list[Contender], found: dict[str, list[Recovery]], failures: dict[str, list[str]], plan: Plan
) -> str:
    """The table and what has to be said with it."""
    spreads = {name: spread([one.recovered_s for one in ones]) for name, ones in found.items()}
    baseline = better({name: spreads.get(name) for name in BASELINES})
    rows = [_row(entrant, spreads.get(entrant.name), spreads.get(baseline or "")) for entrant in entrants]
    lines = [
        f"SIGKILL of one of {plan.num_ranks} gloo ranks to the first new step of the slowest rank",
        "",
        table(("launcher", "kills", "came back", "median", "min", "max", "to torchrun"), rows),
        "",
        NOTE,
        f"The last column compares medians with the better torchrun ({baseline or 'none was measured'}).",
        f"never: no new step within {plan.recovery_timeout_s:g} s; the median counts it as infinite.",
    ]
    steps = sorted(one.step_s for ones in found.values() for one in ones)
    if steps:
        lines.append(f"Step time before the kills: median {steps[len(steps) // 2] * 1000:.0f} ms.")
    for entrant in entrants:
        lines += [f"{entrant.title}: absent: {entrant.absent}"] if entrant.absent is not None else []
        lines += [f"{entrant.title}: a launch failed: {why}" for why in failures.get(entrant.name, [])]
    return "\n".join(lines)


def _row(entrant: Contender, figures: Spread | None, baseline: Spread | None) -> tuple[str, ...]:
    if entrant.absent is not None:
        return (entrant.title, "absent", *["—"] * 5)
    if figures is None:
        return (entrant.title, "0", *["—"] * 5)
    share = ratio(figures, baseline)
    return (
        entrant.title,
        str(figures.num),
        str(figures.num - figures.num_never),
        seconds(figures.median),
        seconds(figures.least),
        seconds(figures.most),
        "—" if share is None else f"{share:.3f}",
    )


def _told(one: Recovery) -> str:
    return f"rank {one.rank} killed: {seconds(one.recovered_s)}" + (f" ({one.why})" if one.why else "")


def _document(
    entrants: list[Contender],
    found: dict[str, list[Recovery]],
    failures: dict[str, list[str]],
    plan: Plan,
    args: argparse.Namespace,
) -> dict[str, object]:
    return {
        "benchmark": "recovery",
        "machine": {
            "cpus": os.cpu_count(),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "seed": args.seed,
        "rounds": args.rounds,
        "plan": {name: getattr(plan, name) for name in Plan.__slots__},
        "contenders": [
            {
                "name": entrant.name,
                "version": entrant.version,
                "command": list(entrant.command),
                "env": entrant.env,
                "absent": entrant.absent,
                "failed_launches": failures.get(entrant.name, []),
                "recoveries": [as_json(one) for one in found.get(entrant.name, [])],
            }
            for entrant in entrants
        ],
    }


def _plan(args: argparse.Namespace) -> Plan:
    if args.quick:
        args.rounds = 1
        return Plan(kills=1, min_steps=10, settle_s=3.0, recovery_timeout_s=30.0)
    return Plan(kills=args.kills, settle_s=args.settle, recovery_timeout_s=args.timeout)


def _names(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no launcher {unknown[0]!r}; there are: {', '.join(NAMES)}")
    return names


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    default = Plan()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=_names, metavar="NAME,...", help=f"of {', '.join(NAMES)}; default all")
    parser.add_argument("--rounds", type=int, default=3, help="launches of each (default %(default)s)")
    parser.add_argument("--kills", type=int, default=default.kills, help="kills per launch (default %(default)s)")
    parser.add_argument("--settle", type=float, default=default.settle_s, help="seconds of training before each kill")
    parser.add_argument("--timeout", type=float, default=default.recovery_timeout_s, help="seconds until 'never'")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one kill of each, and never after 30 s")
    parser.add_argument("--no-install", action="store_true", help="use what is there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
