"""Objects that the program's loop can reach by name: tensors, modules, optimizers, schedulers, scalers, generators.

The walk begins at the variables of the functions that run and goes through containers, closures and attributes. It
calls nothing of the program: neither properties nor `__getattr__`. What it does not reach (a C extension's memory, a
class attribute) is unknown to it; `check` therefore asks optimizers for what they own without it.
"""

import collections
import functools
import random
import sys
import time
import types
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from everstep.worker.completeness import modules

MAX_OBJECTS = 300_000
"""About half a second. A program that holds more is looked at as far as that, breadth first."""

LIMIT_S = 0.5
MAX_PLAIN = 1000
"""A longer list whose first, middle and last entry are plain values is data, and not walked."""

_PLAIN = frozenset((int, float, complex, bool, str, bytes, bytearray, type(None), type, torch.dtype, torch.device))
_SEQUENCES = (list, tuple, set, frozenset, collections.deque)
_CLOSED = frozenset(
    (
        *("everstep", "torch", "asyncio", "threading", "logging", "multiprocessing", "concurrent", "importlib", "io"),
        *("pandas", "pyarrow", "datasets", "PIL", "tensorboard", "wandb", "rich", "tqdm", "argparse", "pathlib", "re"),
        *("tokenizers", "pytest", "_pytest", "pluggy", "socket", "subprocess", "weakref", "queue", "zipfile"),
    )
)
"""Packages whose objects hold nothing that a step depends on, or too much of what does not concern it."""

_FRAMEWORKS = frozenset(("deepspeed", "megatron"))
"""Tensors that lie in their objects are buffers of theirs; what of them counts, an optimizer steps or a module has."""

_OWN_DICTS = frozenset(("_parameters", "_buffers", "_modules"))


class Reached:
    """Names and objects of one walk; a name is the first path by which the object was found."""

    def __init__(self) -> None:
        self.modules: list[tuple[str, nn.Module]] = []  # that are part of no other one here
        self.optimizers: dict[int, str] = {}  # id: name
        self.schedulers: list[tuple[str, Any]] = []
        self.scalers: list[tuple[str, Any]] = []
        self.generators: list[tuple[str, Any]] = []
        self.groups: dict[int, tuple[str, list[torch.Tensor]]] = {}  # tensors that lie in one container outside modules
        self.is_framework_own = False  # what is being entered
        self.of_data: set[int] = set()  # ids of generators that loaders and samplers draw from
        self.is_whole = True

    def _within(self) -> set[int]:
        return {id(inner) for _, module in self.modules for inner in modules.all_in(module) if inner is not module}


def walk(roots: Iterable[tuple[str, object]]) -> Reached:
    """Breadth first from these named objects."""
    reached = Reached()
    seen: set[int] = set()
    queue = collections.deque((path, thing, False) for path, thing in roots)
    until = time.monotonic() + LIMIT_S
    while queue:
        if len(seen) > MAX_OBJECTS or (not len(seen) % 1024 and time.monotonic() > until):
            reached.is_whole = False
            break
        path, thing, is_own = queue.popleft()
        kind = type(thing)
        if kind in _PLAIN or id(thing) in seen:
            continue
        seen.add(id(thing))
        if issubclass(kind, torch.Tensor):
            continue  # its container has noted it
        reached.is_framework_own = is_own or kind.__module__.partition(".")[0] in _FRAMEWORKS
        found = _enter(reached, path, thing, kind)
        queue.extend((name, each, reached.is_framework_own) for name, each in found)
    within = reached._within()
    # The place in the data is the business of who keeps the loader.
    reached.generators = [each for each in reached.generators if id(each[1]) not in reached.of_data]
    reached.modules = [(path, module) for path, module in reached.modules if id(module) not in within]
    return reached


def roots_of(frame: types.FrameType | None) -> Iterator[tuple[str, object]]:
    """Variables of this function and its callers, without ours, then globals of the program's own files."""
    told: set[int] = set()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not _is_closed(module):
            yield from _locals_of(frame)
        if _is_programs_own(frame.f_globals) and id(frame.f_globals) not in told:
            told.add(id(frame.f_globals))
            yield from list(frame.f_globals.items())
        frame = frame.f_back
    main = vars(sys.modules.get("__main__", types))
    if id(main) not in told and _is_programs_own(main):
        yield from list(main.items())


def _locals_of(frame: types.FrameType) -> Iterator[tuple[str, object]]:
    if frame.f_locals is frame.f_globals:
        return
    variables = frame.f_locals
    named = list(variables.items())
    if type(variables) is dict and frame.f_code.co_flags & 0x1:  # CO_OPTIMIZED: before Python 3.13 this is a copy,
        variables.clear()  # which would keep the last step's graph alive
    yield from ((name, value) for name, value in named if not name.startswith("."))


def _is_programs_own(names: dict[str, Any]) -> bool:
    file = str(names.get("__file__", ""))
    return not _is_closed(str(names.get("__name__", ""))) and "site-packages" not in file and "/lib/python" not in file


def _is_closed(module: str) -> bool:
    root = module.partition(".")[0]
    return root in _CLOSED


def _enter(reached: Reached, path: str, thing: Any, kind: type) -> Iterable[tuple[str, object]]:  # noqa: ANN401
    """Note what this object is; what to go on with."""
    if issubclass(kind, nn.Module) and "_parameters" in vars(thing):  # else its constructor was never called
        reached.modules.append((path, thing))
        return _of_module(reached, path, thing)
    if issubclass(kind, torch.optim.Optimizer):
        reached.optimizers.setdefault(id(thing), path)
        return _attributes(reached, path, thing, leave={"state", "param_groups", "defaults"})
    if _is_generator(kind):
        reached.generators.append((path, thing))
        return ()
    if is_scheduler(thing, kind):
        reached.schedulers.append((path, thing))
        return _attributes(reached, path, thing)
    if kind.__name__ in ("GradScaler", "ShardedGradScaler") and _is_closed(kind.__module__):
        reached.scalers.append((path, thing))
        return ()
    return _plain_children(reached, path, thing, kind)


def _plain_children(reached: Reached, path: str, thing: Any, kind: type) -> Iterable[tuple[str, object]]:  # noqa: ANN401
    if issubclass(kind, dict):
        return _noted(reached, thing, path, [(_key(path, key), value) for key, value in list(dict.items(thing))])
    base: Any = next((each for each in _SEQUENCES if issubclass(kind, each)), None)
    if base is not None:  # as the base has them: a class of the program's own may compute something instead
        values = list(base.__iter__(thing))
        if len(values) > MAX_PLAIN and all(type(values[at]) in _PLAIN for at in (0, len(values) // 2, -1)):
            return ()
        return _noted(reached, thing, path, [(f"{path}[{at}]", value) for at, value in enumerate(values)])
    if kind is types.FunctionType:
        return () if _is_closed(str(thing.__module__)) else _of_function(path, thing)
    if kind is types.MethodType:
        return [(path, thing.__self__), (path, thing.__func__)]
    if kind is functools.partial:
        return [(path, thing.func), (path, thing.args), (path, thing.keywords)]
    if kind is types.GeneratorType:
        frame = thing.gi_frame
        return _locals_of(frame) if frame is not None and not _is_closed(frame.f_globals.get("__name__", "")) else ()
    if issubclass(kind, _of_data()):
        own = vars(thing)
        reached.of_data.add(id(own.get("generator")))
        return [(path, own.get(name)) for name in ("sampler", "batch_sampler")]
    if kind is types.ModuleType or _is_closed(kind.__module__):
        return ()
    return _attributes(reached, path, thing)


def _of_data() -> tuple[type, ...]:
    """Kinds that read a data set; none, for as long as nobody has loaded them."""
    data: Any = sys.modules.get("torch.utils.data")
    return () if data is None else (data.DataLoader, data.Sampler)


def _key(path: str, key: object) -> str:
    if type(key) is str and key.isidentifier():
        return f"{path}.{key}"
    return f"{path}[{key!r:.40}]" if type(key) in _PLAIN else f"{path}[{type(key).__name__}]"


def _noted(
    reached: Reached, container: object, path: str, items: list[tuple[str, Any]]
) -> Iterable[tuple[str, object]]:
    tensors = [value for _, value in items if issubclass(type(value), torch.Tensor)]
    if tensors and not reached.is_framework_own:
        reached.groups[id(container)] = path, tensors
    return items


def _attributes(reached: Reached, path: str, thing: object, leave: Iterable[str] = ()) -> Iterable[tuple[str, object]]:
    try:
        own = object.__getattribute__(thing, "__dict__")
    except AttributeError:
        own = {}
    items = [(f"{path}.{name}", value) for name, value in list(own.items()) if name not in leave]
    kind: Any = type(thing)
    for slot in _slots_of(kind):
        try:
            items.append((f"{path}.{slot}", object.__getattribute__(thing, slot)))
        except AttributeError:
            continue
    return _noted(reached, thing, path, items)


def _of_module(reached: Reached, path: str, module: nn.Module) -> Iterable[tuple[str, object]]:
    own = object.__getattribute__(module, "__dict__")
    children = [(f"{path}.{name}", child) for name, child in own.get("_modules", {}).items() if child is not None]
    if _is_closed(type(module).__module__):
        return children
    return [*children, *_attributes(reached, path, module, leave=_OWN_DICTS)]


def _of_function(path: str, function: types.FunctionType) -> Iterator[tuple[str, object]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not bound yet
            continue
    if function.__defaults__:
        yield path, function.__defaults__


@functools.cache
def _slots_of(kind: Any) -> tuple[str, ...]:  # noqa: ANN401 - a type
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else [each for each in slots if isinstance(each, str)]
    return tuple(each for each in found if not each.startswith("__"))


def _is_generator(kind: type) -> bool:
    if kind is torch.Generator or kind is random.Random:
        return True
    return kind.__module__.startswith("numpy.random") and kind.__name__ in ("Generator", "RandomState")


def is_scheduler(thing: Any, kind: type) -> bool:  # noqa: ANN401
    """A schedule of an optimizer's numbers: torch's kind, or one of the frameworks' that look like it."""
    if issubclass(kind, torch.optim.lr_scheduler.LRScheduler):
        return True
    if not kind.__name__.endswith(("Scheduler", "LR")):
        return False
    if not all(callable(getattr(kind, name, None)) for name in ("step", "state_dict", "load_state_dict")):
        return False
    try:
        return "optimizer" in object.__getattribute__(thing, "__dict__")
    except AttributeError:
        return False
