"""The contents of a model's or an optimizer's state dict, known without making the dict.

Between two steps only bytes of tensors change in most of them; to make the dict and to walk through it again is most of
what a snapshot would cost the program. So the object's make-up is noted when its dict was walked through, and as long
as it is the same (the same modules, the same parameters, the same state, as identical objects under the same names) the
walk would meet the same tensors in the same order. Only for objects whose `state_dict` is torch's own, without hooks;
for all others, and whenever something differs, the dict is made as usual. Used by `worker.snapshots.state`, which owns
a `Part` for each object, and by `checkpoint.packing`, which asks it.
"""

import dataclasses
import pickle
from collections.abc import Callable, Iterator
from itertools import chain
from operator import is_, itemgetter
from typing import Any, Protocol

import torch
from torch import nn

PROTOCOL = 3
"""Protocol of pickles that are put together from pieces: it has no frames, and counts what is to be referred to
explicitly, so that each piece counts for itself."""

MAX_IN_VAIN = 16
"""After so many changes of the object in a row, noting it costs more than it saves."""

_SCALARS = frozenset((int, float, bool, str, type(None)))
_WHERE_IT_LOOKS = (__file__, torch.__path__[0])
"""What is raised anywhere else is the program's, and not for us to pass over."""

_detach = torch.Tensor.detach


class PartError(Exception):
    """One part of the state cannot be written or read. `part` is the keyword in `State(...)`."""

    def __init__(self, part: str, cause: BaseException) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.part = part


@dataclasses.dataclass(frozen=True, slots=True)
class Recalled:
    """The tensors that a walk through the state dict would have met, and the pickle that it would have written."""

    tensors: list[torch.Tensor]
    pickled: bytes


_Found = tuple[list[object], list[Any]]
"""What an object is made up of: names, which are compared, and objects, which have to be the same ones."""


class _MakeUp(Protocol):
    """The make-up of one kind of object."""

    def note(self, state: Any, again: Callable[[object], bytes]) -> bool:  # noqa: ANN401
        """Note how the object is made up, and `state`, its dict, pickled by `again`; False: this is impossible."""

    def recall(self) -> Recalled | None:
        """None: it is made up in another way than when it was noted."""


class Part:
    """One object of a State, and what was noted of it."""

    def __init__(self, name: str, thing: Any) -> None:  # noqa: ANN401 - with a state_dict
        self.name = name
        self._thing = thing
        self._make_up = _make_up_of(thing)
        self._noted_at: int | None = None  # after so many tensors of the walk
        self._num_in_vain = 0

    def make(self) -> Any:  # noqa: ANN401
        """Its state dict. Raises PartError."""
        try:
            return self._thing.state_dict()
        except Exception as error:
            raise PartError(self.name, error) from error

    def recall(self, begun: int) -> Recalled | None:
        """`begun`: how many tensors the walk has met before. None: the dict has to be made. Raises PartError for what
        others raise meanwhile, such as a handler of a signal."""
        recalled = None
        if self._make_up is not None and self._noted_at == begun:  # the pickle counts tensors from the walk's first on
            recalled = self._asked(self._make_up.recall)
        if recalled is None:
            self._num_in_vain += self._noted_at is not None
            self.forget()
        else:
            self._num_in_vain = 0
        return recalled

    def note(self, state: Any, met: list[torch.Tensor], begun: int, again: Callable[[object], bytes]) -> None:  # noqa: ANN401
        """The walk through `state`, just made, has met these, after `begun` others. `again` pickles it, or something in
        it that has all of these tensors, with PROTOCOL. Raises what `recall` does."""
        self.forget()
        make_up = self._make_up
        if make_up is None:
            return
        recalled = self._asked(lambda: make_up.recall() if make_up.note(state, again) else None)
        if recalled is not None and _are_the_same(recalled.tensors, met) and self._num_in_vain < MAX_IN_VAIN:
            self._noted_at = begun
        else:
            self.forget()
            self._make_up = None  # it cannot be noted, or not for long

    def forget(self) -> None:
        """Drop what was noted: it is not what is there, and must keep nothing alive any more."""
        if self._make_up is not None and self._noted_at is not None:
            self._make_up = _make_up_of(self._thing)
        self._noted_at = None

    def _asked(self, look: Callable[[], Recalled | None]) -> Recalled | None:
        try:
            return look()
        except PartError:
            raise
        except Exception as error:
            if not _innermost(error).startswith(_WHERE_IT_LOOKS):
                raise PartError(self.name, error) from error
            return None  # of another version of torch, or taken apart by the program: it is asked as ever


def _innermost(error: BaseException) -> str:
    """The file of the code that raised it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else trace.tb_frame.f_code.co_filename


def _are_the_same(recalled: list[torch.Tensor], met: list[torch.Tensor]) -> bool:
    return len(recalled) == len(met) and all(
        a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        for a, b in zip(recalled, met, strict=True)
    )


def _make_up_of(thing: object) -> _MakeUp | None:
    if isinstance(thing, nn.Module):
        return _OfModule(thing)
    if isinstance(thing, torch.optim.Optimizer):
        return _OfOptimizer(thing)
    return None


_OWN = itemgetter(
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
)


class _OfModule:
    """`state_dict` goes through modules in depth, and takes parameters and persistent buffers of each, detached."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._modules: list[nn.Module] = []
        self._noted: _Found = [], []
        self._tensors_at: list[int] = []
        self._pickled = b""

    def note(self, state: Any, again: Callable[[object], bytes]) -> bool:  # noqa: ANN401
        modules = list(_in_depth(self._module))
        if not all(_is_torchs_own(type(module)) for module in modules):
            return False
        self._modules = modules
        found = self._look()
        if found is None:
            return False
        self._noted = [frozenset(each) if isinstance(each, set) else each for each in found[0]], found[1]
        self._tensors_at = list(self._kept())
        self._pickled = again(state)
        return True

    def recall(self) -> Recalled | None:
        found = self._look()
        if found is None or not _are_alike(found, self._noted):
            return None
        return Recalled([_detach(found[1][at]) for at in self._tensors_at], self._pickled)

    def _look(self) -> _Found | None:
        """Names and objects of all that decides what is in the dict; None: something of the program's own does."""
        names: list[object] = list(map(type, self._modules))
        values: list[Any] = []
        for own in map(vars, self._modules):
            parameters, buffers, modules, others, before, after = _OWN(own)
            if before or after or "state_dict" in own or "_save_to_state_dict" in own or "get_extra_state" in own:
                return None
            names += tuple(parameters), tuple(buffers), tuple(modules), others, own.get("_version")
            values += parameters.values()
            values += buffers.values()
            values += modules.values()
        return names, values

    def _kept(self) -> Iterator[int]:
        """Where in the values the tensors of the dict are."""
        at = 0
        for own in map(vars, self._modules):
            parameters, buffers, modules, others, *_ = _OWN(own)
            for name, value in chain(parameters.items(), buffers.items()):
                if value is not None and name not in others:
                    yield at
                at += 1
            at += len(modules)


def _in_depth(module: nn.Module) -> Iterator[nn.Module]:
    """Modules in depth, each as often as it is in there: under each name a shared one has entries of its own."""
    yield module
    for child in module._modules.values():
        if child is not None:
            yield from _in_depth(child)


def _is_torchs_own(kind: type[nn.Module]) -> bool:
    return all(
        getattr(kind, name, None) is getattr(nn.Module, name)
        for name in ("state_dict", "_save_to_state_dict", "get_extra_state")
    )


_TAIL = b"u."  # SETITEMS, STOP
_HEAD = pickle.PROTO + bytes([PROTOCOL]) + pickle.EMPTY_DICT + pickle.MARK


class _OfOptimizer:
    """`state_dict` has the state of each parameter, whose tensors stay, and the groups, whose numbers change with every
    step of a scheduler: these are pickled anew and put behind the rest."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._noted: _Found = [], []
        self._tensors: list[torch.Tensor] = []
        self._numbers: list[list[int]] = []  # of each group's parameters
        self._state = b""

    def note(self, state: Any, again: Callable[[object], bytes]) -> bool:  # noqa: ANN401
        if type(self._optimizer).state_dict is not torch.optim.Optimizer.state_dict or list(state) != [_STATE, _GROUPS]:
            return False
        found = self._look()
        if found is None:
            return False
        self._noted = found
        of_state = list(chain.from_iterable(each.values() for each in self._optimizer.state.values()))
        if not all(isinstance(value, torch.Tensor) or type(value) in _SCALARS for value in of_state):
            return False
        self._tensors = [value for value in of_state if isinstance(value, torch.Tensor)]
        self._numbers = [group["params"] for group in state[_GROUPS]]
        self._state = _piece(_STATE) + again(state[_STATE])[2:-1] + _piece(_GROUPS)
        return True

    def recall(self) -> Recalled | None:
        found = self._look()
        if found is None or not _are_alike(found, self._noted):
            return None
        groups = []
        for group, numbers in zip(self._optimizer.param_groups, self._numbers, strict=True):
            packed = {name: value for name, value in group.items() if name != "params"}
            if not all(map(_is_constant, packed.values())):
                return None
            packed["params"] = numbers
            groups.append(packed)
        return Recalled(list(self._tensors), _HEAD + self._state + _piece(groups) + _TAIL)

    def _look(self) -> _Found | None:
        """Return names and objects of all that decides what is in the optimizer's dict; None if something of the
        program's own decides it."""
        optimizer = self._optimizer
        own = optimizer.__dict__
        if own["_optimizer_state_dict_pre_hooks"] or own["_optimizer_state_dict_post_hooks"] or "state_dict" in own:
            return None
        states = list(optimizer.state.values())
        values: list[Any] = list(optimizer.state)
        for group in optimizer.param_groups:
            values += group["params"]
        values += chain.from_iterable(map(dict.values, states))
        names: list[object] = list(map(tuple, states))
        names.append([len(group["params"]) for group in optimizer.param_groups])
        return names, values


_STATE, _GROUPS = "state", "param_groups"


def _piece(value: object) -> bytes:
    """A piece of a pickle, without its head and its end."""
    return pickle.dumps(value, PROTOCOL)[2:-1]


def _is_constant(value: object) -> bool:
    """Whether it is of numbers and text only."""
    if type(value) in (tuple, list):
        return all(type(each) in _SCALARS for each in value)  # type: ignore[attr-defined]
    return type(value) in _SCALARS


def _are_alike(found: _Found, noted: _Found) -> bool:
    return found[0] == noted[0] and len(found[1]) == len(noted[1]) and all(map(is_, found[1], noted[1]))
