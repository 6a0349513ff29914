"""Plays one training to its end, shows how far it is, and injects faults on the way."""

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from everstep.demo.faults import Drill, Fault
from everstep.demo.training import Training
from everstep.errors import EverstepError

POLL_S = 0.05
STALL_TIMEOUT_S = 60.0
"""Without a new step for so long the demo has failed: a start takes seconds, a recovery less than one."""


class DemoError(EverstepError):
    """The training of the demo did not end well; the message carries its last output."""


def play(training: Training, name: str, num_steps: int, faults: list[Fault], console: Console) -> None:
    """Raises DemoError."""
    waiting, running = list(faults), list[Drill]()
    with _progress(console) as progress, contextlib.ExitStack() as cleanup:
        bar = progress.add_task(name, total=num_steps, loss="starting")
        moved_at, done = time.monotonic(), 0
        while training.exit_code() is None:
            losses = training.losses()
            if len(losses) > done:
                moved_at, done = time.monotonic(), len(losses)
            _show(progress, bar, losses)
            if waiting and not running and done > waiting[0].at_step:
                fault = waiting.pop(0)
                console.print(f"[dim]step {done - 1:>3}[/]  [bold]{fault.announces}[/]", soft_wrap=True)
                running.append(Drill(fault, training.run_dir))
                cleanup.callback(running[-1].end)
            running = [drill for drill in running if not _tell(drill, console)]
            if time.monotonic() - moved_at > STALL_TIMEOUT_S:
                raise DemoError(f"no step for {STALL_TIMEOUT_S:g} s; its last output:\n{training.last_output()}")
            time.sleep(POLL_S)
        _show(progress, bar, training.losses())
        for drill in running:
            while not _tell(drill, console):
                time.sleep(POLL_S)
    if training.exit_code() != 0:
        raise DemoError(f"exit code {training.exit_code()}; its last output:\n{training.last_output()}")


def _tell(drill: Drill, console: Console) -> bool:
    result = drill.result()
    if result is not None:
        console.print(f"          {result}", soft_wrap=True)
    return result is not None


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Progress]:
    columns = (
        TextColumn("{task.description:<22}"),
        BarColumn(bar_width=32),
        TextColumn("step {task.completed}/{task.total}  {task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=8) as progress:
        yield progress


def _show(progress: Progress, bar: TaskID, losses: list[str]) -> None:
    if losses:
        loss = float.fromhex(losses[-1].split()[1])
        progress.update(bar, completed=len(losses), loss=f"loss {loss:.4f}")
