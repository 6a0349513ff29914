"""Evaluations, saves, waits for data and garbage collections, seen without a line of the user's code.

Each setter takes a module of torch that has been loaded and puts a thin wrapper round some of its functions; `hooks`
calls them, now or on import. A wrapper costs some microseconds at most, changes neither arguments nor results, and a
failure of ours inside it is reported and forgotten. Code that is being compiled sees the original only.
"""

import functools
import gc
import sys
import time
from collections import UserDict
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from everstep.worker.link.runtime import Runtime
from everstep.worker.process.board import Activity
from everstep.worker.process.signals import came_from_signal

MODULES = "torch.nn.modules.module"
SAVE = "torch.serialization"
CHECKPOINT = "torch.distributed.checkpoint.state_dict_saver"
LOADER = "torch.utils.data.dataloader"

MAX_PARTS = 64
"""Tensors of a batch that are counted. A batch of lists of strings must not cost more than its training."""

_P = ParamSpec("_P")
_R = TypeVar("_R")


def hook_modules(runtime: Runtime, module: ModuleType) -> None:
    """`eval()` of a module that trained begins an evaluation, the next `train()` of any module ends it. A module that
    is in eval() already, such as a frozen teacher, says nothing."""
    cls: Any = module.Module
    evaluate, train, phases = cls.eval, cls.train, runtime.phases
    torch: Any = sys.modules["torch"]  # still being loaded, perhaps

    @functools.wraps(evaluate)
    def wrapped_eval(self: Any) -> Any:  # noqa: ANN401 - as torch has it
        if not torch.compiler.is_compiling() and self.training:
            phases.evaluation_began()
        return evaluate(self)

    @functools.wraps(train)
    def wrapped_train(self: Any, mode: bool = True) -> Any:  # noqa: ANN401
        if not torch.compiler.is_compiling() and mode and phases.evaluating_since is not None:
            phases.evaluation_ended()
        return train(self, mode)

    cls.eval, cls.train = wrapped_eval, wrapped_train


def hook_save(runtime: Runtime, module: ModuleType) -> None:
    """`torch.save`."""
    _replace(module, "save", _as_checkpoint(runtime, module.save), ("torch",))


def hook_checkpoint(runtime: Runtime, module: ModuleType) -> None:
    """`torch.distributed.checkpoint.save` and `async_save`; of the latter only what the caller waits for."""
    for name in ("save", "async_save"):
        if hasattr(module, name):
            _replace(module, name, _as_checkpoint(runtime, getattr(module, name)), ("torch.distributed.checkpoint",))


def hook_loader(runtime: Runtime, module: ModuleType) -> None:
    """Time in the iterators' `__next__`, and what the batches hold."""
    cls: Any = module._BaseDataLoaderIter
    following, phases, board = cls.__next__, runtime.phases, runtime.board

    @functools.wraps(following)
    def wrapped_next(self: Any) -> Any:  # noqa: ANN401
        if not phases.is_own_thread:
            return following(self)
        phases.within_step(Activity.DATA)
        began = time.perf_counter()
        try:
            batch = following(self)
        finally:
            board.add_data_s(time.perf_counter() - began)
            phases.within_step(Activity.TRAIN)
        if not runtime.is_told_work:
            _count_work(runtime, batch)
        return batch

    cls.__next__ = wrapped_next


FULL = 2
"""The collector's oldest generation: only that one takes long."""


def hook_gc(runtime: Runtime) -> None:
    """Python's collector stops all threads, whichever triggered it."""
    board, phases, process = runtime.board, runtime.phases, runtime.process
    board.add_gc_s(0.0)
    began = 0.0

    def on_gc(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        is_full = info.get("generation") == FULL and phases.is_alive
        if phase == "start":
            began = time.perf_counter()
            if process is not None and info.get("generation") == FULL:
                process.frozen.before_full()
        elif began and phases.is_alive:
            board.add_gc_s(time.perf_counter() - began)
        if is_full:
            board.set_collecting(phase == "start")

    gc.callbacks.append(on_gc)


def size_of(batch: object) -> int:
    """Elements of the tensors of a batch, as far as it is made of dicts, lists and tuples; looks at MAX_PARTS parts."""
    total, waiting = 0, [batch]
    for _ in range(MAX_PARTS):
        if not waiting:
            break
        part = waiting.pop()
        numel = getattr(part, "numel", None)
        if callable(numel):
            total += int(numel())
        elif isinstance(part, dict | UserDict):  # another mapping may read a file for every value
            waiting += list(part.values())[:MAX_PARTS]
        elif isinstance(part, list | tuple):
            waiting += part[:MAX_PARTS]
    return total


def _count_work(runtime: Runtime, batch: object) -> None:
    try:
        size = size_of(batch)
        if size:
            runtime.board.add_work(float(size))
    except Exception as error:  # a batch may be of any class, with a numel() of its own
        if came_from_signal(error):
            raise
        runtime.report_fault("work of a batch", f"{type(error).__name__}: {error}")


def _as_checkpoint(runtime: Runtime, save: Callable[_P, _R]) -> Callable[_P, _R]:
    phases = runtime.phases

    @functools.wraps(save)
    def wrapped_save(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if not phases.enter(Activity.CHECKPOINT):
            return save(*args, **kwargs)
        try:
            return save(*args, **kwargs)
        finally:
            phases.leave()

    return wrapped_save


def _replace(module: ModuleType, name: str, wrapper: object, others: Iterable[str]) -> None:
    """Where the function is at home, and where torch itself has taken its name over."""
    original = getattr(module, name)
    for each in (module, *(sys.modules.get(other) for other in others)):
        if each is not None and vars(each).get(name) is original:
            setattr(each, name, wrapper)
