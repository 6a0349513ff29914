"""Whether a State keeps what a step changes, found out by looking at both.

At the first step of a loop and then ever more seldom, and whenever another optimizer steps, the check compares what the
State packs with what stepping optimizers own, with modules, copies of weights and generators that have changed since
the look before, and with schedulers and gradient scalers that are in use. It decides nothing: `everstep.State` refuses
to keep snapshots for what it finds. Whatever it raises is a failure of ours, which its caller reports.
"""

import os
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch

from everstep.checkpoint.recalling import PartError
from everstep.worker.completeness import fingerprint, modules, owned, reach
from everstep.worker.completeness.gap import Gap, Kind, sentence
from everstep.worker.completeness.kept import Kept, plain_tensors
from everstep.worker.process.signals import came_from_signal

VARIABLE = "EVERSTEP_STATE_CHECK"
"""`off` in the environment: the program's author knows that what the State leaves out does not matter."""

MAX_WATCHED = 256
"""Tensors of modules that stood still so far, whose counts of changes are compared after each step."""

MAX_PLANS = 16
"""A State whose tensors are others in every step is looked at for that reason so often."""

MAX_UNSEEN = 1024
"""Steps without a step of an optimizer, after which gradients are not taken for those that are being accumulated: what
replays a CUDA graph steps where no hook sees it."""


class Optimizers(Protocol):
    """The part of `worker.snapshots.stepping.Optimizers` that is used here."""

    num_steps: int
    is_hidden: bool

    def alive(self) -> Iterator[Any]: ...


def is_off() -> bool:
    return os.environ.get(VARIABLE) == "off"


class Completeness:
    """The check of one State. `stepping`: the optimizers that were seen to step, in order."""

    def __init__(self, objects: Mapping[str, Any], stepping: Optimizers, *, is_resumed: bool) -> None:
        self._objects = objects
        self._optimizers = stepping
        self._num_done = 0
        self._num_stepped, self._stepped_at = stepping.num_steps, 0
        self._next = 2 if is_resumed else 1  # a restart passes the same program's test a step later
        self._plan: object = None
        self._num_plans = 0
        self._known: tuple[Any, ...] = ()  # of the optimizers: who they are, and of how many parameters
        self._before: dict[int, tuple[weakref.ref[torch.Tensor], int, int]] = {}  # bytes left out, and their print
        self._drawn: dict[int, tuple[Any, Any]] = {}
        self._watched: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._rewritten: set[int] = set()  # parameters that are packed in another form
        self._told: set[int] = set()  # modules that were named

    def begin(self) -> None:
        """Before the first step: how everything looks that the State may not keep."""
        reached = self._walk(sys._getframe())
        mine = Kept()
        for thing in self._objects.values():
            if isinstance(thing, torch.nn.Module):
                for tensor in (*modules.parameters(thing), *modules.buffers(thing)):
                    mine.note_tensor(tensor)
        mine.close(_live(reached, []))
        self._changed_tensors(_candidates(reached, []), mine)
        self._changed_generators(reached, mine)

    def is_due(self, plan: object = None) -> bool:
        """Whether to look after the step that was just done. Called once after each; costs nothing if not. `plan`:
        another object where what was packed last had other tensors than before."""
        self._num_done += 1
        is_other = plan is not self._plan and self._num_plans < MAX_PLANS
        self._plan, self._num_plans = plan, self._num_plans + is_other
        if self._num_done >= self._next:
            self._next = 2 * self._num_done
            return True
        return (
            is_other
            or self._identity() != self._known
            or any(
                tensor is not None and tensor._version != version
                for tensor, version in ((ref(), version) for ref, version in self._watched)
            )
        )

    def has_partial_gradients(self) -> bool:
        """Whether this step has left gradients that a later one will go on adding to: State does not keep those. Called
        once after each step, before `is_due`."""
        if self._optimizers.num_steps != self._num_stepped:
            self._num_stepped, self._stepped_at = self._optimizers.num_steps, self._num_done
            return False
        if any(ask() for thing in self._objects.values() if (ask := getattr(thing, "has_partial_gradients", None))):
            return True
        if self._optimizers.is_hidden or self._num_done - self._stepped_at > MAX_UNSEEN:
            return False
        known = [*self._optimizers.alive()] or [
            o for o in self._objects.values() if isinstance(o, torch.optim.Optimizer)
        ]
        gradients = (p.grad for each in known for group in each.param_groups for p in group["params"])
        return any(bool(plain.any()) for grad in gradients if grad is not None for plain in plain_tensors(grad))

    def look(self, make_parts: Callable[[], Mapping[str, Any]]) -> str:
        """A sentence about what is missing; empty: nothing is, as far as could be seen. `make_parts`: state dicts of
        all that is kept. Raises PartError for one that cannot be pickled."""
        self._known = self._identity()
        reached = self._walk(sys._getframe())
        kept = Kept()
        with _asking([thing for _, thing in (*reached.schedulers, *reached.scalers, *reached.modules)]) as asked:
            for name, part in make_parts().items():
                try:
                    kept.add(part)
                except Exception as error:
                    raise PartError(name, error) from error
        kept.close(_live(reached, list(self._optimizers.alive())))
        self._rewritten = {id(p) for _, module in reached.modules for p in modules.rewritten(module, asked)}
        gaps: list[Gap] = []
        failures: list[Exception] = []
        finders: tuple[Callable[[], Iterator[Gap]], ...] = (
            lambda: self._gaps_of_optimizers(reached, kept),
            lambda: self._gaps_of_tensors(reached, kept),
            lambda: self._gaps_of_schedules(reached, kept, asked),
            lambda: self._gaps_of_generators(reached, kept),
        )
        for find in finders:
            try:
                gaps += find()
            except Exception as error:  # what the others find counts all the same
                if came_from_signal(error):
                    raise
                failures.append(error)
        if failures and not gaps:
            raise failures[0]
        if not gaps:
            return ""
        in_play = [*self._objects.values(), *self._optimizers.alive(), *(module for _, module in reached.modules)]
        return sentence(gaps, (type(thing).__module__.partition(".")[0] for thing in in_play))

    def _walk(self, frame: types.FrameType | None) -> reach.Reached:
        return reach.walk([*reach.roots_of(frame), *self._objects.items()])

    def _identity(self) -> tuple[Any, ...]:
        return tuple(
            (id(each), sum(len(group["params"]) for group in each.param_groups)) for each in self._optimizers.alive()
        )

    def _gaps_of_optimizers(self, reached: reach.Reached, kept: Kept) -> Iterator[Gap]:
        homes = {id(p): module for _, module in reached.modules for p in modules.parameters(module)}
        for optimizer in self._optimizers.alive():
            class_name = type(optimizer).__name__
            name = reached.optimizers.get(id(optimizer), class_name)
            lost: dict[object, list[int]] = {}
            for tensor, num_bytes, is_parameter in owned.lost(optimizer, kept):
                if id(tensor) in self._rewritten:
                    continue
                home = homes.get(id(tensor), Kind.STEPPED) if is_parameter else Kind.OPTIMIZER
                lost.setdefault(home, []).append(num_bytes)
            for kind in (Kind.OPTIMIZER, Kind.STEPPED):
                if sizes := lost.get(kind):
                    yield Gap(kind=kind, name=name, class_name=class_name, **_sizes(sizes))
            for path, module in reached.modules:
                if sizes := lost.get(module):
                    self._told.add(id(module))
                    yield Gap(kind=Kind.MODULE, name=path, class_name=type(module).__name__, **_sizes(sizes))

    def _gaps_of_tensors(self, reached: reach.Reached, kept: Kept) -> Iterator[Gap]:
        """Modules and copies of weights that have changed since the last look."""
        candidates = _candidates(reached, list(self._optimizers.alive()))
        changed = self._changed_tensors(candidates, kept)
        for kind, name, thing, tensors in candidates:
            sizes = [changed[id(tensor)] for tensor in tensors if id(tensor) in changed]
            if sizes and id(thing) not in self._told:
                class_name = name if kind is Kind.COPY else type(thing).__name__
                yield Gap(kind=kind, name=name, class_name=class_name, **_sizes(sizes))

    def _gaps_of_schedules(self, reached: reach.Reached, kept: Kept, asked: set[int]) -> Iterator[Gap]:
        stepping = {id(each) for each in self._optimizers.alive()}
        for name, scaler in reached.scalers:
            is_used = getattr(scaler, "_enabled", False) and getattr(scaler, "_scale", None) is not None
            if is_used and id(scaler) not in asked and not kept.has_object(scaler):
                yield Gap(kind=Kind.SCALER, name=name, class_name=type(scaler).__name__)
        for name, scheduler in reached.schedulers:
            own = vars(scheduler)
            is_kept = id(scheduler) in asked or kept.has_object(scheduler)
            is_kept = is_kept or any(id(value) in asked for value in own.values())  # it wraps one that is
            is_kept = is_kept or kept.has_position(own.get("last_epoch"))
            if not is_kept and any(id(each) in stepping for each in _unwrapped(own.get("optimizer"))):
                yield Gap(kind=Kind.SCHEDULER, name=name, class_name=type(scheduler).__name__)

    def _gaps_of_generators(self, reached: reach.Reached, kept: Kept) -> Iterator[Gap]:
        for name, generator in self._changed_generators(reached, kept):
            yield Gap(kind=Kind.GENERATOR, name=name, class_name=type(generator).__name__)

    def _changed_tensors(self, candidates: Iterable["_Candidate"], kept: Kept) -> dict[int, int]:
        """Ids of those that are not kept and have changed since the last look, with the bytes that are left out;
        remember how they look now. If other parts of one are left out than before, nothing is known yet."""
        tensors = {id(tensor): tensor for _, _, _, group in candidates for tensor in group}
        tensors = {key: tensor for key, tensor in tensors.items() if key not in self._rewritten}
        missing = {key: num for key, tensor in tensors.items() if (num := kept.missing_bytes(tensor))}
        tensors = {key: tensors[key] for key in missing}
        prints = fingerprint.of_tensors(list(tensors.values()), kept)
        before = self._before
        self._before = {
            key: (weakref.ref(tensor), missing[key], value)
            for (key, tensor), value in zip(tensors.items(), prints, strict=True)
        }
        self._watched = [
            (weakref.ref(tensor), tensor._version)
            for tensor in list(tensors.values())[:MAX_WATCHED]
            if not tensor.is_inference()
        ]
        return {
            key: num_bytes
            for key, (_, num_bytes, value) in self._before.items()
            if key in before
            and before[key][0]() is tensors[key]
            and before[key][1] == num_bytes
            and before[key][2] != value
        }

    def _changed_generators(self, reached: reach.Reached, kept: Kept) -> list[tuple[str, Any]]:
        before, self._drawn = self._drawn, {}
        changed = []
        for name, generator in reached.generators:
            state = fingerprint.of_generator(generator)
            if kept.has_object(generator) or kept.has_value(state):
                continue
            self._drawn[id(generator)] = generator, state
            last = before.get(id(generator))
            if last is not None and last[0] is generator and not fingerprint.are_equal(last[1], state):
                changed.append((name, generator))
        return changed


_Candidate = tuple[Kind, str, object, list[torch.Tensor]]


def _candidates(reached: reach.Reached, stepping: list[Any]) -> list[_Candidate]:
    """Modules with what their checkpoints have, and containers of tensors that look like an optimizer's parameters."""
    found: list[_Candidate] = [
        (Kind.MODULE, name, module, [*modules.parameters(module), *modules.buffers(module, only_persistent=True)])
        for name, module in reached.modules
    ]
    taken = {id(tensor) for _, _, _, tensors in found for tensor in tensors}
    shapes = [Counter(p.shape for group in each.param_groups for p in group["params"]) for each in stepping]
    for optimizer in stepping:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        taken |= {id(tensor) for p in parameters for tensor in (p, p.grad, getattr(p, "main_grad", None))}
        taken |= {id(tensor) for value in optimizer.state.values() for tensor in owned.tensors_in(value)}
    for name, tensors in reached.groups.values():
        others = [tensor for tensor in tensors if id(tensor) not in taken and tensor.is_floating_point()]
        alike = Counter(tensor.shape for tensor in others)
        if not stepping or any(sum((alike & each).values()) * 2 >= each.total() > 0 for each in shapes):
            found.append((Kind.COPY, name, tensors, others))
    return found


def _live(reached: reach.Reached, stepping: list[Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors that the program itself works with."""
    for _, module in reached.modules:
        yield from modules.parameters(module)
        yield from modules.buffers(module)
    for _, tensors in reached.groups.values():
        yield from tensors
    for optimizer in stepping:
        yield from (p for group in optimizer.param_groups for p in group["params"])
        yield from (key for key in list(optimizer.state) if isinstance(key, torch.Tensor))
        for value in list(optimizer.state.values()):
            yield from owned.tensors_in(value)


def _sizes(sizes: list[int]) -> dict[str, int]:
    return {"num_tensors": len(sizes), "num_bytes": sum(sizes)}


def _unwrapped(optimizer: Any) -> Iterator[Any]:  # noqa: ANN401
    """An optimizer and those that it wraps."""
    waiting = [optimizer]
    for _ in range(8):
        if not waiting:
            return
        each = waiting.pop()
        if each is None:
            continue
        yield each
        own = getattr(each, "__dict__", {})
        waiting.append(own.get("optimizer"))
        waiting += own.get("chained_optimizers") or ()


@contextmanager
def _asking(things: Iterable[Any]) -> Iterator[set[int]]:
    """Ids of those whose state is asked for meanwhile."""
    asked: set[int] = set()
    with ExitStack() as stack:
        for base, name in {_defining(type(thing), name) for thing in things for name in ("state_dict", "get_scale")}:
            if base is not None:
                original = vars(base)[name]
                setattr(base, name, _recording(original, asked))
                stack.callback(setattr, base, name, original)
        yield asked


def _defining(kind: type, name: str) -> tuple[type | None, str]:
    base = next((each for each in kind.__mro__ if name in vars(each)), None)
    is_plain = base is not None and isinstance(vars(base)[name], types.FunctionType)
    return (base if is_plain else None), name


def _recording(original: Callable[..., Any], asked: set[int]) -> Callable[..., Any]:
    def recording(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        asked.add(id(self))
        return original(self, *args, **kwargs)

    return recording
