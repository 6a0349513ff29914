"""A hundred kills in one run: rank, moment and signal drawn from a seed, and then the same losses to the last bit.

Trains examples/train_gpt.py twice under `everstep run`, once left alone and once killed again and again, and compares
every logged loss and the final parameters. Ends everything it started, also on Ctrl-C.

    python bench/kills.py [--kills N] [--seed N] [--target rank|agent|controller|mix] [--json FILE]
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from killing.hurt_run import answer
from killing.killplan import POLICY, TARGETS, Kill, plan, steps_needed
from killing.killreport import Verdict, document, report
from killing.strikes import Outcome, StalledError, Watch, strike
from measuring.display import progress
from measuring.figures import NEVER
from measuring.launched import launched, left_behind
from measuring.losslog import LossLog, compare

SCRIPT = Path(__file__).parents[1] / "examples" / "train_gpt.py"
_FIRST_STEP = 10  # the first kill waits for a training that runs
_END_TIMEOUT_S = 300.0


class Training:
    """One training under everstep, with everything it writes in a folder of its own."""

    def __init__(self, folder: Path, steps: int, args: argparse.Namespace) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.losses = folder / "losses"
        self.final = folder / "final"
        self.journal = folder / "run" / "journal.jsonl"
        self.env = {**os.environ, "EVERSTEP_HOME": str(folder), "TMPDIR": str(folder)}
        config = folder / "everstep.toml"
        config.write_text(f"[policy]\n{POLICY}")
        ranks = ["--nproc-per-node", str(args.nproc), "--max-restarts", str(10 * args.kills), "--config", str(config)]
        script = [str(SCRIPT), "--steps", str(steps), "--loss-log", str(self.losses), "--final", str(self.final)]
        everstep = str(Path(sys.executable).with_name("everstep"))
        self.command = [everstep, "run", *ranks, "--run-dir", str(folder / "run"), *script]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    kills = plan(num_kills=args.kills, seed=args.seed, target=args.target, num_ranks=args.nproc, first_step=_FIRST_STEP)
    return answer(args, lambda root, console: _run(root, kills, args, console), report, document)


def _run(root: Path, kills: list[Kill], args: argparse.Namespace, console: Console) -> Verdict:
    steps = steps_needed(kills)
    reference = Training(root / "uninterrupted", steps, args)
    with progress(console) as bar:
        task = bar.add_task(f"uninterrupted run, {steps} steps", total=steps)
        with launched(reference.command, env=reference.env, output=reference.folder / "output.log") as running:
            log = LossLog(reference.losses)
            while running.wait(0.2) is None:
                log.read()
                bar.update(task, completed=log.last_step + 1)
        if running.exit_code() != 0:
            raise StalledError(f"exit code {running.exit_code()}: {running.last_output(500)}")
    killed = Training(root / "killed", steps, args)
    with launched(killed.command, env=killed.env, output=killed.folder / "output.log") as running:
        watch = Watch(running, killed.journal, killed.losses)
        outcomes, stalled = _kill_all(watch, kills, args, console)
        exit_code = running.wait(_END_TIMEOUT_S if not stalled else 0)
        # The launcher has ended: whatever is still below this process was left behind by it.
        leftover = tuple(left_behind()) if exit_code is not None else ()
    return _verdict(watch, reference, killed, outcomes, exit_code, leftover, len(kills), stalled)


def _kill_all(watch: Watch, kills: list[Kill], args: argparse.Namespace, console: Console) -> tuple[list[Outcome], str]:
    """The outcomes, and why it stopped early if it did."""
    outcomes: list[Outcome] = []
    with progress(console) as bar:
        task = bar.add_task("waiting for the first steps", total=len(kills))
        for kill in kills:
            bar.update(task, description=f"step {watch.losses.last_step}: {kill.told}")
            try:
                outcome = strike(watch, kill, args.timeout)
            except StalledError as error:
                return outcomes, str(error)
            outcomes.append(outcome)
            bar.advance(task)
            if outcome.recovered_s == NEVER:
                console.print(f"kill {kill.index}, {kill.told}: {outcome.why}", soft_wrap=True)
                return outcomes, f"kill {kill.index} ({kill.told}): {outcome.why}"
    return outcomes, ""


def _verdict(
    watch: Watch,
    reference: Training,
    killed: Training,
    outcomes: list[Outcome],
    exit_code: int | None,
    leftover: tuple[int, ...],
    planned: int,
    stalled: str,
) -> Verdict:
    population = watch.look()
    uninterrupted = LossLog(reference.losses)
    uninterrupted.read()
    finals = [path.read_bytes() if path.exists() else None for path in (reference.final, killed.final)]
    return Verdict(
        planned=planned,
        outcomes=tuple(outcomes),
        comparison=compare(uninterrupted.losses, watch.losses.losses),
        same_final=None if None in finals else finals[0] == finals[1],
        exit_code=exit_code,
        finished=population.finished,
        holes=population.holes,
        leftover=leftover,
        stalled=stalled,
    )


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=(*TARGETS, "mix"), default="rank")
    parser.add_argument("--nproc", type=int, default=4, help="ranks (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds until a kill counts as not recovered")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both runs' files there")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
