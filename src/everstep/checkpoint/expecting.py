"""A guess of what the walk through a state will meet, from what the walk before met: most of a walk's time is spent on
finding out what each tensor is.

A guess is checked against every tensor, in bulk and after the walk: kind, shape, place in memory, and which of them
share it. Where it fails, the walk is thrown away and done again tensor by tensor. So what is packed is the same either
way. Tensors that were recalled (`checkpoint.recalling`) are known to be the same objects; those that still lie where
they lay are only asked for what `tensor.data = ...` could have changed of their values there. Used by
`checkpoint.packing` only.
"""

import dataclasses
from collections.abc import Callable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any

import torch

Reduced = tuple[Any, ...]
"""What a pickler writes in a tensor's place."""

_traits = attrgetter("layout", "dtype", "device", "shape", "requires_grad")
_attributes = attrgetter("__dict__")
_looks = attrgetter("shape", "dtype", "requires_grad")

_UNEXPECTED: Reduced = (torch.Tensor, ())
"""For a tensor too many: the count is wrong, so the result is never read."""


class Expected:
    """The tensors of one walk, in the order in which they were met; the same memory may be met several times."""

    def __init__(self, met: list[torch.Tensor], reduced: list[Reduced]) -> None:
        """All of them plain ones. `reduced`: (function, (number of the stored tensor, ...)) of each."""
        self._reduced = reduced
        self._kinds = _kinds(met) or []
        self._seen = list(map(_looks, met))
        self._addresses = _addresses(met)
        self._sharing = _sharing(self._addresses)
        firsts: dict[int, int] = {}
        for index, (_, (number, *_)) in enumerate(reduced):
            firsts.setdefault(number, index)
        self._firsts = list(firsts.values()) if len(firsts) < len(met) else None

    def walk(self) -> "Walk":
        return Walk(self._reduced)

    def stored(self, walk: "Walk") -> tuple[list[torch.Tensor], list[int]] | None:
        """The tensors to store and their addresses; None: the walk has met others than expected."""
        met = walk.met
        if len(met) != len(self._reduced):
            return None
        walked = [section.at for section in walk.sections() if not section.is_recalled]
        if not all(self._is_kind(at, met) for at in walked):
            return None
        addresses = _addresses(met)
        recalled = [section.at for section in walk.sections() if section.is_recalled]
        if not all(self._looks_the_same(at, met, addresses) for at in recalled):
            return None
        if addresses != self._addresses:
            if _sharing(addresses) != self._sharing:
                return None
            self._addresses = addresses
        if self._firsts is None:
            return met, addresses
        return [met[index] for index in self._firsts], [addresses[index] for index in self._firsts]

    def _looks_the_same(self, at: slice, met: list[torch.Tensor], addresses: list[int]) -> bool:
        if addresses[at] != self._addresses[at]:
            return self._is_kind(at, met)
        tensors = met[at]
        if list(map(_looks, tensors)) != self._seen[at] or any(map(_attributes, tensors)):
            return False
        # Of one that shares no memory, another order of its elements changes no value: they are copied one by one.
        return self._firsts is None or list(map(torch.Tensor.stride, tensors)) == self._kinds[2][at]

    def _is_kind(self, at: slice, met: list[torch.Tensor]) -> bool:
        kinds = _kinds(met[at])
        return kinds is not None and kinds == [each[at] for each in self._kinds]


@dataclasses.dataclass(frozen=True, slots=True)
class Section:
    """A stretch of what a walk has met."""

    at: slice
    is_recalled: bool


class Walk:
    """One walk: collects the tensors, and answers for each what was said of the one in its place."""

    def __init__(self, reduced: list[Reduced]) -> None:
        self.met: list[torch.Tensor] = []  # also keeps them alive: an address must not be given out twice
        self._answers = iter(reduced)
        self._sections: list[Section] = []
        self.reduce = _answering(self.met, self._answers)

    def recall(self, tensors: list[torch.Tensor]) -> None:
        """These would be met now."""
        self.close(is_recalled=False)
        self.met += tensors
        next(islice(self._answers, len(tensors), len(tensors)), None)
        self.close(is_recalled=True)

    def close(self, *, is_recalled: bool = False) -> slice:
        """End a section: what was met since the last call was all of one kind. Return where it is."""
        begun = self._sections[-1].at.stop if self._sections else 0
        at = slice(begun, len(self.met))
        if at.stop > at.start:
            self._sections.append(Section(at, is_recalled))
        return at

    def sections(self) -> list[Section]:
        """All of it."""
        self.close()
        return self._sections


def _answering(met: list[torch.Tensor], expected: Iterator[Reduced]) -> Callable[[torch.Tensor], Reduced]:
    append = met.append

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
    """For each tensor, the first one at the same address."""
    first: dict[int, int] = {}
    return [first.setdefault(address, index) for index, address in enumerate(addresses)]
