"""TensorBoard and Weights & Biases: loss, steps and restarts, where the trainer already looks.

    writer = SummaryWriter("tb", purge_step=everstep.integrations.tracking.purge_step())
    everstep.integrations.tracking.log_to(writer)        # or a wandb run; on the rank that has it

Neither library is imported here: the program hands over what it made. Steps only go into a queue; a thread of ours
calls the tracker, so one that raises or hangs never reaches training. Outside `everstep run` nothing happens.
"""

import atexit
import contextlib
import os
import threading
import time
from typing import Any, Protocol

from everstep.integrations.trackers import TensorBoard, Wandb
from everstep.worker.link.runtime import Runtime, current
from everstep.worker.parking import begin

EVERY_S = 1.0
MAX_WAITING = 4096
"""Steps in the queue of a tracker that does not answer; later ones are dropped."""

LAST_WORDS_S = 2.0
"""What is in the queue when the program ends gets so long."""

_WHERE = "everstep.integrations.tracking"


class Tracker(Protocol):
    """Where it goes: one of `integrations.trackers`."""

    def mark(self, step: int, title: str, why: str, generation: int) -> None: ...
    def write(self, points: dict[int, dict[str, float]]) -> None: ...


def purge_step() -> int | None:
    """For `SummaryWriter(purge_step=...)`, if its steps are those of `everstep.State`: the step that this start begins
    with, so that steps that are done again take the place of the old ones. None when nothing is done again."""
    begin.park("everstep.integrations.tracking")
    runtime = current()
    if runtime is None or runtime.generation == 0 or runtime.resume_step is None:
        return None
    return runtime.resume_step + 1


def log_to(tracker: Any) -> None:  # noqa: ANN401 - a SummaryWriter or a wandb run
    """From now on, beside what the program writes: `everstep/loss`, `everstep/grad_norm` (of `everstep.step`),
    `everstep/step_seconds`, and a text at each restart. None is left alone."""
    begin.park("everstep.integrations.tracking")  # a process that continues from here resumes at a step of its own
    runtime = current()
    if runtime is None or tracker is None:
        return
    if hasattr(tracker, "add_scalar") and hasattr(tracker, "add_text"):
        made: Tracker = TensorBoard(tracker, runtime)
    elif hasattr(tracker, "define_metric") and hasattr(tracker, "log"):
        made = Wandb(tracker)
    else:
        kind = f"{type(tracker).__module__}.{type(tracker).__qualname__}"
        runtime.report_fault(_WHERE, f"log_to({kind}): neither a SummaryWriter nor a wandb run; nothing is logged")
        return
    Feed(runtime, made).start()


class Feed:
    """Takes steps and numbers on the training thread, and gives them to one tracker on its own."""

    def __init__(self, runtime: Runtime, tracker: Tracker) -> None:
        self._runtime, self._tracker = runtime, tracker
        self._points: dict[int, dict[str, float]] = {}
        self._lock = threading.RLock()  # a signal handler of the program may tell a step, too
        self._is_over = threading.Event()
        self._stepped_at: float | None = None
        self._num_dropped = 0
        self._thread = threading.Thread(target=self._run, name="everstep-tracking", daemon=True)

    def start(self) -> None:
        self._runtime.step_hooks.append(self.stepped)
        self._runtime.number_hooks.append(self.told)
        self._thread.start()
        atexit.register(self.close)

    def stepped(self, step: int) -> None:
        now = time.monotonic()
        before, self._stepped_at = self._stepped_at, now
        self._put(step, {} if before is None else {"step_seconds": now - before})

    def told(self, step: int, loss: float | None, grad_norm: float | None) -> None:
        values = {"loss": loss, "grad_norm": grad_norm}
        self._put(step, {name: value for name, value in values.items() if value is not None})

    def close(self) -> None:
        """At the program's end."""
        if self._runtime is current():  # not in a child that was forked: the thread is not there
            self._is_over.set()
            self._thread.join(LAST_WORDS_S)

    def _put(self, step: int, values: dict[str, float]) -> None:
        with self._lock:
            if step in self._points or len(self._points) < MAX_WAITING:
                self._points.setdefault(step, {}).update(values)
                return
            self._num_dropped += 1
            is_first = self._num_dropped == 1
        if is_first:
            self._runtime.report_fault(_WHERE, f"the tracker is too slow: more than {MAX_WAITING} steps wait; dropped")

    def _run(self) -> None:
        try:
            self._mark()
            while not self._is_over.wait(EVERY_S):
                self._write()
            self._write()
        except Exception as error:
            with contextlib.suppress(ValueError):
                self._runtime.step_hooks.remove(self.stepped)
                self._runtime.number_hooks.remove(self.told)
            self._runtime.report_fault(_WHERE, f"{type(error).__name__}: {error}; nothing more is logged")

    def _write(self) -> None:
        with self._lock:
            points, self._points = self._points, {}
        if points:
            self._tracker.write(points)

    def _mark(self) -> None:
        runtime = self._runtime
        if runtime.generation > 0:
            first = 0 if runtime.resume_step is None else runtime.resume_step + 1
            begins = "from the program's own start" if runtime.resume_step is None else f"with step {first}"
            self._tracker.mark(
                first, f"Restart {runtime.generation}, {begins}", _shown(runtime.why), runtime.generation
            )


def _shown(why: str) -> str:
    """One line without secrets: a rank's output may be in it, and the tracker may be a third party's machine."""
    from everstep.journal.beside.secrets import secrets_of
    from everstep.report.handing.masking import Mask

    return Mask(secrets_of(os.environ))(" ".join(why.split())) or "not known"
