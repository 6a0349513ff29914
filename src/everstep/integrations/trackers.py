"""How a restart and the numbers of steps are written into one tracker's own form. Called by `integrations.tracking`.

TensorBoard: a run of our own below the program's, in which steps that are done again replace the old ones; the text
goes into both. Weights & Biases: fields of the rows that the program logs itself, with a step axis of their own.
"""

from pathlib import Path
from typing import Any

from everstep.worker.link.runtime import Runtime

MAX_AT_ONCE = 64
"""Of more steps since the last time a part is written: no chart shows a thousand points a second."""


class TensorBoard:
    """`writer`: torch's SummaryWriter, or tensorboardX's."""

    def __init__(self, writer: Any, runtime: Runtime) -> None:  # noqa: ANN401
        self._writer, self._runtime = writer, runtime
        self._own: Any = None
        self._restart: tuple[str, int] | None = None

    def mark(self, step: int, title: str, why: str, generation: int) -> None:
        # Shown as Markdown; in an indented block nothing of it is interpreted.
        self._restart = (f"{title}. Why:\n\n    {why}", step)
        self._writer.add_text("everstep/restarts", *self._restart)
        self._writer.flush()

    def write(self, points: dict[int, dict[str, float]]) -> None:
        if self._own is None:
            self._own = self._open()
            if self._restart is not None:
                self._own.add_text("everstep/restarts", *self._restart)
        steps = sorted(points)
        for step in steps[:: -max(1, len(steps) // MAX_AT_ONCE)][::-1]:  # the newest stays
            for name, value in points[step].items():
                self._own.add_scalar(f"everstep/{name}", value, step)
        self._own.flush()  # a rank that is killed has no time for it

    def _open(self) -> Any:  # noqa: ANN401
        """Open the writer late: only now is it known how steps are counted. Without State they begin at 0 after each
        restart: then each start gets a run of its own."""
        runtime, folder = self._runtime, Path(str(self._writer.log_dir))
        make = type(self._writer)
        if not runtime.board.counts_own_steps and runtime.generation:
            return make(str(folder / f"everstep-restart-{runtime.generation}"))
        first = 0 if runtime.resume_step is None else runtime.resume_step + 1
        return make(str(folder / "everstep"), purge_step=first if runtime.generation else None)


class Wandb:
    """`run`: of `wandb.init`. Rows are completed by the program's own `log`: one of ours would move its step count, and
    W&B drops what a program then logs with a smaller one."""

    def __init__(self, run: Any) -> None:  # noqa: ANN401
        self._run = run
        self._is_defined = False

    def mark(self, step: int, title: str, why: str, generation: int) -> None:
        text = f"{title}. Why: {why}"
        self._log({"step": step, "restart": text, "generation": generation})
        self._run.summary.update({"everstep/restarts": generation, "everstep/last_restart": text})

    def write(self, points: dict[int, dict[str, float]]) -> None:
        newest: dict[str, float] = {}
        for step in sorted(points):
            newest |= {"step": step, **points[step]}
        self._log(newest)

    def _log(self, values: dict[str, Any]) -> None:
        if not self._is_defined:
            self._is_defined = True
            self._run.define_metric("everstep/step")
            self._run.define_metric("everstep/*", step_metric="everstep/step")
        self._run.log({f"everstep/{name}": value for name, value in values.items()}, commit=False)
