"""What the walk through a state will most likely meet, because the one before met it: most of a walk's time is spent on
finding out what each tensor is.

A guess is checked against every tensor, in bulk and after the walk: kind, shape, place in memory, and which of them
share it. Where it fails, the walk is thrown away and done again tensor by tensor. So what is packed is the same either
way, and so are its bytes. Used by `checkpoint.packing` only.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch

Reduced = tuple[Any, ...]
"""What a pickler is told to write in a tensor's place."""

_traits = attrgetter("layout", "dtype", "device", "shape", "requires_grad")
_attributes = attrgetter("__dict__")

_UNEXPECTED: Reduced = (torch.Tensor, ())
"""For a tensor too many: the count is wrong, so nobody will ever read it."""


class Expected:
    """The tensors of one walk, in the order in which they were met; the same memory may be met several times."""

    def __init__(self, met: list[torch.Tensor], reduced: list[Reduced]) -> None:
        """All of them plain ones. `reduced`: (function, (number of the stored tensor, ...)) of each."""
        self._reduced = reduced
        self._kinds = _kinds(met)
        self._sharing = _sharing(_addresses(met))
        firsts: dict[int, int] = {}
        for index, (_, (number, *_)) in enumerate(reduced):
            firsts.setdefault(number, index)
        self._firsts = list(firsts.values()) if len(firsts) < len(met) else None

    def walk(self) -> "Walk":
        return Walk(self._reduced)

    def stored(self, walk: "Walk") -> tuple[list[torch.Tensor], list[int]] | None:
        """The tensors to store and their addresses; None: the walk has met others than expected."""
        met = walk.met
        if len(met) != len(self._reduced) or (kinds := _kinds(met)) is None or kinds != self._kinds:
            return None
        addresses = _addresses(met)
        if _sharing(addresses) != self._sharing:
            return None
        if self._firsts is None:
            return met, addresses
        return [met[index] for index in self._firsts], [addresses[index] for index in self._firsts]


class Walk:
    """One walk: collects the tensors, and answers for each what was said of the one in its place."""

    def __init__(self, reduced: list[Reduced]) -> None:
        self.met: list[torch.Tensor] = []  # also keeps them alive: an address must not be given out twice
        self.reduce = _answering(self.met, reduced)


def _answering(met: list[torch.Tensor], reduced: list[Reduced]) -> Callable[[torch.Tensor], Reduced]:
    append, expected = met.append, iter(reduced)

    def reduce(tensor: torch.Tensor) -> Reduced:
        append(tensor)
        return next(expected, _UNEXPECTED)

    return reduce


def _kinds(tensors: list[torch.Tensor]) -> list[list[Any]] | None:
    """Everything that decides how a tensor is stored, but for where it lies; None: one is not plain."""
    traits = list(map(_traits, tensors))
    if any(trait[0] is not torch.strided for trait in traits) or any(map(_attributes, tensors)):
        return None
    return [traits, list(map(type, tensors)), list(map(torch.Tensor.stride, tensors))]


def _addresses(tensors: list[torch.Tensor]) -> list[int]:
    return list(map(torch.Tensor.data_ptr, tensors))


def _sharing(addresses: list[int]) -> list[int]:
    """Of each tensor, the first one at the same address."""
    first: dict[int, int] = {}
    return [first.setdefault(address, index) for index, address in enumerate(addresses)]
