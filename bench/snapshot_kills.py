"""Kills in the middle of copies, backups, writes to disk and restores; then the same losses, bit for bit.

Trains snapshot_kills_script.py twice under `everstep run`, once left alone and once hurt again and again: ranks,
agents, the controller (SIGKILL) and whole machines (drill lose-node: their memory is gone as well). With --groups every
parallel group of a mesh is lost at once, one after the other. Ends everything it started, also on Ctrl-C.

    python bench/snapshot_kills.py [--kills N] [--seed N] [--only rank,agent,node,controller] [--no-disk] [--json FILE]
    python bench/snapshot_kills.py --groups 2 --mesh 2,2,2 --nodes 8
"""

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from everstep.journal.runs import RunDir
from killing.hurt_run import answer
from killing.killplan import POLICY
from killing.snapshot_kills_plan import TARGETS, Kill, group_plan, plan, steps_needed
from killing.snapshot_kills_report import Verdict, document, report
from killing.snapshot_kills_strike import Deeds, Outcome, strike
from killing.strikes import StalledError, Watch
from measuring.display import progress
from measuring.figures import NEVER, seconds
from measuring.launched import Launched, launched, left_behind
from measuring.losslog import LossLog, compare

SCRIPT = Path(__file__).parent / "programs/snapshot_kills_script.py"
DIMENSIONS = ("pp", "dp", "tp")
_FIRST_STEP = 8
_END_TIMEOUT_S = 600.0
_ROUND_S = 2.0  # of the vote in which ranks declare their groups: a run of a minute must know them before it is hurt


class Training:
    """One training under everstep, with everything it writes in a folder of its own."""

    def __init__(self, folder: Path, steps: int, args: argparse.Namespace, *, hurt: bool) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.losses, self.final = folder / "losses", folder / "final"
        self.run = folder / "run"
        self.checkpoints = folder / "checkpoints" if hurt and not args.no_disk else None
        self.env = {**os.environ, "EVERSTEP_HOME": str(folder), "TMPDIR": str(folder)}
        ranks = math.prod(args.mesh)
        line = [*_everstep(), "run", "--run-dir", str(self.run), "--max-restarts", str(20 * args.kills)]
        line += ["--local-nodes", str(args.nodes), "--nproc-per-node", str(ranks // args.nodes)]
        line += ["--standby", str(args.standby)] if hurt else []
        config = folder / "everstep.toml"
        config.write_text(f"[policy]\n{POLICY}slow_round_s = {_ROUND_S}\n")
        line += ["--config", str(config)]
        if self.checkpoints is not None:
            line += ["--checkpoint-dir", str(self.checkpoints), "--checkpoint-every", str(args.checkpoint_every)]
        script = [str(SCRIPT), "--steps", str(steps), "--loss-log", str(self.losses), "--final", str(self.final)]
        script += ["--pause", str(args.pause)]
        shape = ["--state-mb", str(args.state_mb), "--mesh", ",".join(map(str, args.mesh))]
        self.command = [*line, *script, *shape]


def main(argv: Sequence[str] | None = None) -> int:
    args = _arguments(argv)
    kills = _planned(args)
    args.kills = len(kills)
    return answer(args, lambda root, console: _run(root, kills, args, console), report, document)


def _planned(args: argparse.Namespace) -> list[Kill]:
    if args.groups:
        return group_plan(shape=args.mesh, dimensions=DIMENSIONS, times=args.groups, seed=args.seed)
    return plan(
        num_kills=args.kills,
        seed=args.seed,
        targets=args.only,
        first_step=_FIRST_STEP,
        can_persist=not args.no_disk,
    )


def _run(root: Path, kills: list[Kill], args: argparse.Namespace, console: Console) -> Verdict:
    steps = steps_needed(kills) + args.spare
    shm, shmem = _shm(), _shmem_bytes()
    reference = Training(root / "uninterrupted", steps, args, hurt=False)
    with launched(reference.command, env=reference.env, output=reference.folder / "output.log") as running:
        _await_reference(running, reference, steps, console)
    hurt = Training(root / "killed", steps, args, hurt=True)
    with launched(hurt.command, env=hurt.env, output=hurt.folder / "output.log") as running:
        watch, deeds = Watch(running, hurt.run / "journal.jsonl", hurt.losses), Deeds()
        watch.journal.population = deeds
        outcomes, stalled = _kill_all(watch, deeds, kills, hurt, args, console)
        exit_code = running.wait(_END_TIMEOUT_S if not stalled else 0)
        # The launcher has ended: whatever is still below this process was left behind by it.
        leftover = tuple(left_behind()) if exit_code is not None else ()
    watch.look()
    uninterrupted = LossLog(reference.losses)
    uninterrupted.read()
    finals = [path.read_bytes() if path.exists() else None for path in (reference.final, hurt.final)]
    grown = None if shmem is None else (_shmem_bytes() or 0) - shmem
    return Verdict(
        planned=len(kills),
        outcomes=tuple(outcomes),
        comparison=compare(uninterrupted.losses, watch.losses.losses),
        same_final=None if None in finals else finals[0] == finals[1],
        exit_code=exit_code,
        finished=deeds.finished,
        holes=deeds.holes,
        leftover=leftover,
        shm_left=tuple(sorted(_shm() - shm)),
        restore_failures=tuple(deeds.restore_failures),
        not_persisted=tuple(deeds.not_persisted),
        num_committed=len(deeds.committed),
        verified=None if hurt.checkpoints is None else _verified(hurt),
        stalled=stalled,
        shmem_grown_bytes=grown,
    )


def _await_reference(running: Launched, reference: Training, steps: int, console: Console) -> None:
    log = LossLog(reference.losses)
    with progress(console) as bar:
        task = bar.add_task(f"uninterrupted run, {steps} steps", total=steps)
        while running.wait(0.2) is None:
            log.read()
            bar.update(task, completed=log.last_step + 1)
    if running.exit_code() != 0:
        raise StalledError(f"exit code {running.exit_code()}: {running.last_output(500)}")


def _kill_all(
    watch: Watch, deeds: Deeds, kills: list[Kill], hurt: Training, args: argparse.Namespace, console: Console
) -> tuple[list[Outcome], str]:
    """The outcomes, and why it stopped early if it did."""
    outcomes: list[Outcome] = []
    with progress(console) as bar:
        task = bar.add_task("waiting for the first steps", total=len(kills))
        for kill in kills:
            bar.update(task, description=f"step {watch.losses.last_step}: {kill.told}")
            try:
                outcome = strike(watch, deeds, kill, RunDir(hurt.run), math.prod(args.mesh), args.timeout)
            except StalledError as error:
                return outcomes, str(error)
            outcomes.append(outcome)
            bar.advance(task)
            if args.verbose or outcome.recovered_s == NEVER or outcome.is_newest is False:
                console.print(_line(outcome), soft_wrap=True)
            if outcome.recovered_s == NEVER:
                return outcomes, f"kill {kill.index} ({kill.told}): {outcome.why}"
    return outcomes, ""


def _line(one: Outcome) -> str:
    steps = f"resumed {one.resumed} from {one.source}, {one.possible} was there" if one.restarted else "no restart"
    hit = "+".join(one.hit)
    return f"kill {one.kill.index}, {one.kill.told}: hit {hit}, {seconds(one.recovered_s)}, {steps} {one.why}"


def _verified(hurt: Training) -> str:
    """Empty when the newest checkpoint on disk is whole."""
    line = [*_everstep(), "ckpt", "verify", "--dir", str(hurt.checkpoints)]
    done = subprocess.run(line, env=hurt.env, capture_output=True, text=True, check=False)
    said = (done.stderr or done.stdout).strip().splitlines()
    return "" if done.returncode == 0 else (said[-1] if said else f"exit code {done.returncode}")


def _everstep() -> list[str]:
    return [sys.executable, "-m", "everstep.cli.main"]


def _shm() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def _shmem_bytes() -> int | None:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1]) * 1024
    return None


def _targets(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        raise argparse.ArgumentTypeError(f"no target {unknown[0]!r}; there are: {', '.join(TARGETS)}")
    return names


def _mesh(text: str) -> tuple[int, ...]:
    shape = tuple(int(size) for size in text.split(","))
    if len(shape) != len(DIMENSIONS):
        raise argparse.ArgumentTypeError(f"{text!r}: three sizes, for {', '.join(DIMENSIONS)}")
    return shape


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=_targets, default=list(TARGETS), metavar="WHO,...", help=", ".join(TARGETS))
    parser.add_argument("--groups", type=int, default=0, metavar="TIMES", help="lose every parallel group so often")
    parser.add_argument("--mesh", type=_mesh, default=(1, 4, 1), help="ranks as pp,dp,tp (default 1,4,1)")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--standby", type=int, default=1)
    parser.add_argument("--state-mb", type=float, default=64.0, help="state per rank (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds of sleep per step (default %(default)s)")
    parser.add_argument("--spare", type=int, default=0, help="more steps: while kills wait for copies, the run goes on")
    parser.add_argument("--no-disk", action="store_true", help="memory only")
    parser.add_argument("--checkpoint-every", type=float, default=3.0, help="seconds (default %(default)s)")
    parser.add_argument("--timeout", type=float, default=90.0, help="seconds until a kill counts as not recovered")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave both runs' files there")
    parser.add_argument("--verbose", action="store_true", help="one line per kill")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args(argv)


if __name__ == "__main__":
    raise SystemExit(main())
