"""The calls by which a program reports to everstep: numbers of a step, evaluations, checkpoints, pauses. All optional.

    everstep.step(loss=loss, grad_norm=norm)
    with everstep.phase("evaluation"): ...
    with everstep.busy("uploading the model"): ...
    with everstep.paused("waits for the lock"): ...

Outside `everstep run` nothing happens. Nothing here raises into the program, waits for another process, or synchronises
with a device; a failure of ours is reported and swallowed.
"""

import contextlib
import math
from types import TracebackType
from typing import Literal

from everstep.worker.digests.numbers import Numbers
from everstep.worker.link.runtime import Runtime, current
from everstep.worker.process.board import WHY, Activity
from everstep.worker.process.phases import Reason
from everstep.worker.process.signals import came_from_signal

_PHASES = {"evaluation": int(Activity.EVALUATION), "checkpoint": int(Activity.CHECKPOINT)}

_numbers: tuple[Runtime, Numbers] | None = None


def step(loss: object = None, grad_norm: object = None, work: float | None = None) -> None:
    """Numbers of the step that is being done; without `everstep.State` also: a step is done.

    `loss` and `grad_norm`: a number, or a tensor of one element. A loss that becomes NaN, or jumps, is found within a
    second. `work`: how much this rank did in this step, in any unit that is the same on all ranks (tokens); ranks with
    more work are not called slow.
    """
    runtime = current()
    if runtime is None:
        return
    try:
        index = runtime.step_in_progress if runtime.board.counts_own_steps else runtime.told_step()
        if work is not None:
            runtime.is_told_work = True
            runtime.board.add_work(float(work))
        if index is not None and (loss is not None or grad_norm is not None):
            _numbers_of(runtime).take(index, loss, grad_norm)
    except Exception as error:
        if came_from_signal(error):
            raise
        runtime.report_fault("everstep.step", f"{type(error).__name__}: {error}")


def phase(name: Literal["evaluation", "checkpoint"]) -> "Context":
    """Announce an evaluation or a checkpoint, which may take as long as it does in this job and not as long as a step.
    Use it in a `with`, or as a decorator."""
    activity = _PHASES.get(name)
    runtime = current()
    if activity is None and runtime is not None:
        runtime.report_fault("everstep.phase", f"{name!r} is not a phase; choose from: {', '.join(_PHASES)}")
    return Context(activity)


def paused(why: str = "") -> "Context":
    """Announce a wait on purpose, for a debugger, a person, a lock, a download: it is never judged to hang, however
    long it takes. `why` is for the reader of the program."""
    return Context(int(Activity.PAUSED))


def busy(why: str = "", limit_s: float | None = None) -> "Context":
    """Announce work that may take long and is no hang: an upload, a download, a conversion. `everstep status` shows
    `why` and for how long. A rank that dies or is stopped meanwhile is seen as ever. After `limit_s`, if given, it is
    judged like any other."""
    return Busy(why, limit_s)


class Context(contextlib.ContextDecorator):
    """May be entered any number of times, also within itself."""

    def __init__(self, activity: int | None) -> None:
        self._activity = activity
        self._entered: list[Runtime | None] = []

    def __enter__(self) -> None:
        runtime = current() if self._activity is not None else None
        if runtime is not None and not runtime.phases.is_own_thread:
            return  # shared by threads: only the one that trains is seen
        is_entered = (
            runtime is not None
            and self._activity is not None
            and runtime.phases.enter(self._activity, self._reason(runtime))
        )
        self._entered.append(runtime if is_entered else None)

    def _reason(self, runtime: Runtime) -> Reason | None:
        """Return the words and the limit that go with it; None: its kind says all."""
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        inside = current() if self._activity is not None else None
        if not self._entered or (inside is not None and not inside.phases.is_own_thread):
            return
        runtime = self._entered.pop()
        if runtime is not None and runtime is current():  # not in a child that was forked inside
            runtime.phases.leave()


class Busy(Context):
    """A context that says why, and for how long at most."""

    def __init__(self, why: object, limit_s: float | None) -> None:
        super().__init__(int(Activity.BUSY))
        self._why, self._limit_s = why, limit_s

    def _reason(self, runtime: Runtime) -> Reason | None:
        try:
            limit_s = math.nan if self._limit_s is None else float(self._limit_s)
            return Reason(_bytes_of(self._why), limit_s)
        except Exception as error:
            if came_from_signal(error):
                raise
            runtime.report_fault("everstep.busy", f"{type(error).__name__}: {error}")
            return Reason(b"", math.nan)


def _bytes_of(why: object) -> bytes:
    """The text, cut to the room there is, without half characters."""
    return str(why).encode("utf-8", "replace")[: WHY.stop - WHY.start].decode("utf-8", "ignore").encode()


def _numbers_of(runtime: Runtime) -> Numbers:
    global _numbers
    if _numbers is None or _numbers[0] is not runtime:
        _numbers = runtime, Numbers(runtime, runtime.number_hooks)
    return _numbers[1]
