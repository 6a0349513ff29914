"""Tensors that change only while an optimizer steps: parameters and state of the optimizers that were observed.

Everything else (buffers, averages, state of the program's own) may change at any moment, so it is copied before the
next step begins. An optimizer counts once torch's hook has been called for it in the step that was just done: one whose
steps the hook does not see (a CUDA graph took its place) must not be relied on, because its changes would go unnoticed.
Called by `worker.snapshots.snapshots`.
"""

import dataclasses
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everstep.checkpoint.packing import Packed

Place = tuple[int, int]
"""Address and size of a tensor's memory."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Theirs:
    """Indices of the tensors that only optimizers change (they can be copied later), and of the others."""

    later: list[int]
    now: list[int]
    now_bytes: int = 0


class Optimizers:
    """Those that step in this process."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[Any]] = {}
        self._seen = False
        self.version = 0
        """Another number whenever another optimizer was seen to."""
        self.num_steps = 0
        """Steps of all of them together."""
        self.is_hidden = False
        """Some step where no hook sees it: in a replay of a CUDA graph."""
        self._plan: object = None  # what `_theirs` was found out for
        self._addresses: list[int] = []
        self._theirs = Theirs([], [])

    def saw(self, optimizer: object) -> None:
        """It is about to step."""
        self._seen = True
        self.num_steps += 1
        key = id(optimizer)
        known = self._known.get(key)
        if known is None or known() is not optimizer:
            self._known[key] = weakref.ref(optimizer)
            self.version += 1
            self._plan = None  # what is whose is to be found out anew

    def take_seen(self) -> bool:
        """Whether one has stepped since the last call."""
        seen, self._seen = self._seen, False
        return seen

    def of(self, packed: Packed) -> Theirs:
        """Return which tensors only optimizers change, and which others do: the same object for as long as the answer
        is the same."""
        if self._plan is not packed.plan or self._have_moved(packed.addresses):
            owned = {place for place in self._owned() if place[1]}
            found = [place_of(tensor) in owned for tensor in packed.tensors]
            self._theirs = Theirs(
                [index for index, is_theirs in enumerate(found) if is_theirs],
                [index for index, is_theirs in enumerate(found) if not is_theirs],
                sum(tensor.nbytes for tensor, is_theirs in zip(packed.tensors, found, strict=True) if not is_theirs),
            )
            self._plan, self._addresses = packed.plan, packed.addresses
        return self._theirs

    def _have_moved(self, addresses: list[int]) -> bool:
        """Whether one of theirs lies elsewhere now. Others do in every step: random state is a new tensor each time."""
        if addresses == self._addresses:
            return False
        return any(addresses[index] != self._addresses[index] for index in self._theirs.later)

    def _owned(self) -> Iterator[Place]:
        for optimizer in self.alive():
            for tensor in _tensors_of(optimizer):
                yield place_of(getattr(tensor, "_local_tensor", tensor))

    def alive(self) -> Iterator[Any]:
        """In the order in which they were first seen."""
        for key, reference in list(self._known.items()):
            optimizer = reference()
            if optimizer is not None:
                yield optimizer
            else:
                del self._known[key]


def _tensors_of(optimizer: Any) -> Iterable[torch.Tensor]:  # noqa: ANN401 - whatever calls torch's hook
    for group in optimizer.param_groups:
        yield from group["params"]
    for state in list(optimizer.state.values()):
        if isinstance(state, dict):
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def place_of(tensor: torch.Tensor) -> Place:
    """(0, 0): it has none of its own that could be watched."""
    if tensor.layout is not torch.strided or tensor.is_inference():  # an inference tensor does not count its changes
        return (0, 0)
    return (tensor.data_ptr(), tensor.nbytes)
