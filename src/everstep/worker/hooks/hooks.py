"""Hooks that observe without a line of the user's code: optimizer steps, begin and end of the rendezvous, and what
`phase_hooks` adds.

Everything fails open: an exception of ours is swallowed, counted on the board and reported. If torch is not loaded yet
(a fresh interpreter), the hooks are set when it gets loaded; torch is never imported for their sake.
"""

import functools
import os
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from everstep.worker.digests.counts import StepCounts
from everstep.worker.hooks import accelerator, collective_calls, own_stores, phase_hooks
from everstep.worker.link.runtime import Runtime
from everstep.worker.parking import begin
from everstep.worker.parking.finder import OnImport
from everstep.worker.process import communication
from everstep.worker.process.board import Activity
from everstep.worker.process.capturing import is_capturing
from everstep.worker.process.signals import came_from_signal

if TYPE_CHECKING:
    from everstep.wire.frames import MarkName

_OPTIMIZER = "torch.optim.optimizer"
_RENDEZVOUS = "torch.distributed.distributed_c10d"


def install(runtime: Runtime) -> None:
    """Set the hooks now for what is loaded, and on import for what is not. Never raises."""
    given = functools.partial(_given, runtime, dict(os.environ))
    try:
        setters: dict[str, Callable[[ModuleType], None]] = {
            _OPTIMIZER: functools.partial(_hook_optimizer, StepBegins(runtime), StepCounter(runtime)),
            _RENDEZVOUS: functools.partial(_wrap_rendezvous, runtime),
            phase_hooks.MODULES: functools.partial(phase_hooks.hook_modules, runtime),
            phase_hooks.SAVE: functools.partial(phase_hooks.hook_save, runtime),
            phase_hooks.CHECKPOINT: functools.partial(phase_hooks.hook_checkpoint, runtime),
            phase_hooks.LOADER: functools.partial(phase_hooks.hook_loader, runtime),
            accelerator.MODULE: functools.partial(accelerator.hook_accelerator, runtime),
            own_stores.STORES: functools.partial(own_stores.hook_stores, given),
            own_stores.SPAWNING: functools.partial(own_stores.hook_spawning, given),
            own_stores.RAY: own_stores.hook_ray,
        }
        phase_hooks.hook_gc(runtime)
        if runtime.digest_every > 0 and runtime.world_size > 1:
            runtime.step_hooks.append(StepCounts(runtime))
        finder = OnImport()
        for name, setter in setters.items():
            finder.wait_for(name, _guarded(runtime, name, setter))
    except Exception as error:
        runtime.report_fault("hooks", f"{type(error).__name__}: {error}")


def _given(runtime: Runtime, at_start: dict[str, str]) -> dict[str, str]:
    """The environment that the rank got: of this generation, where it continues from a twin."""
    return runtime.process.env if runtime.process is not None else at_start


class StepCounter:
    """Counts the steps of one optimizer: the first one that steps, and its successor if that one is gone.

    Programs with several optimizers (GANs) step each of them once per training step; counting all would run ahead.
    Steps are counted from 0 in every generation, because only the program knows where it resumed.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._counted: weakref.ref[Any] | None = None
        self._next_step = 0

    def __call__(self, optimizer: object, _args: object, _kwargs: object) -> None:
        try:
            self._runtime.phases.within_step(Activity.TRAIN)
            self._runtime.num_optimizer_steps += 1
            if self._runtime.process is not None:
                self._runtime.process.frozen.release()
            if self._runtime.board.counts_own_steps or self._runtime.is_told_steps:
                return
            counted = self._counted() if self._counted is not None else None
            if counted is None:
                self._counted = weakref.ref(optimizer)
            elif counted is not optimizer:
                return
            self._runtime.step_done(self._next_step)
            self._next_step += 1
        except Exception as error:
            if came_from_signal(error):
                raise
            self._runtime.report_fault("optimizer hook", f"{type(error).__name__}: {error}")


class StepBegins:
    """An optimizer is about to step. Without State, this is where parameters are digested."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._digests: Any = None
        self._is_off = runtime.digest_every <= 0 or runtime.world_size < 2

    def __call__(self, optimizer: object, _args: object, _kwargs: object) -> None:
        try:
            self._runtime.phases.within_step(Activity.OPTIMIZER)
            if is_capturing():
                return
            if not self._is_off and not self._runtime.board.counts_own_steps and self._runtime.phases.is_own_thread:
                self._digest(optimizer)
        except Exception as error:
            if came_from_signal(error):
                raise
            self._is_off = True
            self._runtime.report_fault("digest", f"{type(error).__name__}: {error}")

    def _digest(self, optimizer: object) -> None:
        if self._digests is None:
            from everstep.worker.digests.digesting import OptimizerDigests  # imports torch, which is loaded by now

            self._digests = OptimizerDigests(self._runtime)
        self._digests.before_step(optimizer)


# A program that compiles its optimizer step must see neither a warning nor a graph of ours. The mark is what
# torch.compiler.disable sets; calling that would import the compiler.
StepCounter.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]
StepBegins.__call__._torchdynamo_disable = True  # type: ignore[attr-defined]


def _hook_optimizer(begins: StepBegins, counter: StepCounter, module: ModuleType) -> None:
    module.register_optimizer_step_post_hook(counter)  # first: steps count for more than digests
    module.register_optimizer_step_pre_hook(begins)


def _wrap_rendezvous(runtime: Runtime, module: ModuleType) -> None:
    """Put a wrapper where the function is known: its own module, and those that took its name over. The same moment is
    the one at which calls of collectives can be timed."""
    for name, wrap in (
        ("init_process_group", functools.partial(_marking, runtime)),
        ("destroy_process_group", functools.partial(_letting_go, runtime)),
    ):
        original = getattr(module, name)
        wrapper = wrap(original)
        for place, other in list(sys.modules.items()):
            if place.startswith("torch.distributed") and vars(other).get(name) is original:
                setattr(other, name, wrapper)
    collective_calls.hook(module)


def _marking(runtime: Runtime, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch's takes
        begin.park("rendezvous")
        _mark(runtime, "rendezvous_begun")
        _read_ahead(runtime)
        result = original(*args, **kwargs)
        _mark(runtime, "rendezvous_done")
        runtime.start_watch()
        return result

    return init_process_group


def _letting_go(runtime: Runtime, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def destroy_process_group(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - whatever torch's takes
        try:
            communication.let_go()
        except Exception as error:
            if came_from_signal(error):
                raise
            runtime.report_fault("waiting for torch's threads", f"{type(error).__name__}: {error}")
        return original(*args, **kwargs)

    return destroy_process_group


def _read_ahead(runtime: Runtime) -> None:
    if runtime.resume_step is None:
        return
    try:
        from everstep.worker.snapshots import restoring  # imports torch, which is loaded by now

        restoring.read_ahead(runtime)
    except Exception as error:
        runtime.report_fault("reading ahead", f"{type(error).__name__}: {error}")


def _mark(runtime: Runtime, name: "MarkName") -> None:
    try:
        runtime.mark(name)
    except Exception as error:
        runtime.report_fault(name, f"{type(error).__name__}: {error}")


def _guarded(runtime: Runtime, name: str, setter: Callable[[ModuleType], None]) -> Callable[[ModuleType], None]:
    def set_hook(module: ModuleType) -> None:
        try:
            setter(module)
        except Exception as error:
            runtime.report_fault(f"hook on {name}", f"{type(error).__name__}: {error}")

    return set_hook
