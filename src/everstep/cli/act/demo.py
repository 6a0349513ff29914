"""`everstep demo`: a training is injured three times and does not lose a step. Real processes, nothing staged.

Two trainings of a small GPT: one undisturbed, one in which a rank is killed, a rank raises and the controller is
killed. Then the incidents, where the seconds went, and whether the two loss curves are the same, bit for bit.
"""

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

from everstep.errors import ConfigError

EXIT_DIFFERENT = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=4, metavar="N", help="processes (default 4)")
    parser.add_argument("--steps", type=int, default=48, metavar="N", help="steps of each training (default 48)")
    parser.add_argument("--dir", type=Path, metavar="DIR", help="keep all here (default: a new directory in /tmp)")


def run(given: argparse.Namespace) -> int:
    """0 when the two trainings are equal bit for bit, 1 when they are not."""
    _check(given)
    from rich.console import Console

    from everstep.demo.faults import plan_faults
    from everstep.demo.play import play
    from everstep.demo.training import Training

    console = Console(highlight=False)
    base: Path = given.dir or Path(tempfile.mkdtemp(prefix="everstep-demo-"))
    begun = time.monotonic()
    console.print(
        f"[bold]A small GPT learns to write Python, on {given.ranks} processes, twice.[/]  ({base})", soft_wrap=True
    )
    shape = {"num_ranks": given.ranks, "num_steps": given.steps}
    with Training(base / "undisturbed", **shape) as undisturbed:
        play(undisturbed, "undisturbed", given.steps, [], console)
    with Training(base / "injured", **shape) as injured:
        play(injured, "injured three times", given.steps, plan_faults(given.steps, given.ranks), console)
    console.print()
    _report(injured.run_dir)
    same = undisturbed.losses() == injured.losses() and undisturbed.digest() == injured.digest() != ""
    console.print(_verdict(same, len(injured.losses()), undisturbed.digest(), injured.digest()))
    console.print(
        f"\n{time.monotonic() - begun:.0f} s in all. Read on: everstep explain i1 · everstep incident show i1"
    )
    return 0 if same else EXIT_DIFFERENT


def _check(given: argparse.Namespace) -> None:
    """Raises ConfigError."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("the demo trains with PyTorch, which is not installed: pip install torch")
    if given.ranks < 1:
        raise ConfigError(f"--ranks {given.ranks}: at least 1")
    if given.steps < 8:
        raise ConfigError(f"--steps {given.steps}: at least 8, so that there is something between the faults")
    if given.dir is not None and given.dir.exists() and any(given.dir.iterdir()):
        raise ConfigError(f"--dir {given.dir} is not empty")


def _report(run_dir: Path) -> None:
    from everstep.cli.main import main

    for verb in (["incident", "ls"], ["goodput"]):
        main([*verb, "--run-dir", str(run_dir)])
        print()


def _verdict(same: bool, num_losses: int, expected: str, got: str) -> str:
    if same:
        return f"[bold green]✓ identical[/]: {num_losses} losses and the final parameters, bit for bit ({got[:12]})"
    return f"[bold red]✗ different[/]: final parameters {expected[:12] or 'none'} and {got[:12] or 'none'}"
