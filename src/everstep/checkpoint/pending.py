"""One part of a snapshot whose tensors exist and are not filled yet.

Memory that a process has never touched costs more than the copy into it, and a value that the program is about to copy
into a tensor of its own would be copied twice. So the tensors are made first, which is cheap, and filled once it is
known where they belong: in new memory (the state of an optimizer before its first step) or in the program's own
tensors. Made by `checkpoint.stored`; used by `worker.snapshots.reading` and `worker.snapshots.in_place`.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import torch

from everstep.checkpoint.packing import copy, wait_for

CHUNK_BYTES = 64 << 20
"""Filled in one call, without taking the GIL in between."""


class Pending:
    """The state dict of one part. `value` must not be given to the program before `fill`."""

    def __init__(
        self,
        value: Any,  # noqa: ANN401 - whatever the state dict was
        made: Mapping[int, torch.Tensor],
        source: Callable[[int], torch.Tensor],
    ) -> None:
        """`made`: the tensors in `value` by number; `source`: the view of the snapshot that belongs to a number."""
        self.value = value
        self._source = source
        self._made = dict(made)
        self._taking = threading.Lock()  # two threads may fill it
        self._unfilled = [(tensor, number) for number, tensor in made.items()]

    @property
    def is_flat(self) -> bool:
        """Whether it is a dict with tensors at its top, as of a module, which copies them into its own."""
        return isinstance(self.value, dict) and any(isinstance(each, torch.Tensor) for each in self.value.values())

    def redirect(self, own: Mapping[str, torch.Tensor]) -> bool:
        """Fill these tensors of the program instead of new ones. False, and nothing is changed, unless there is exactly
        one of the same kind for each tensor of a flat dict."""
        if not self.is_flat or own.keys() != self.value.keys():
            return False
        numbers = {id(tensor): number for number, tensor in self._made.items()}
        pairs = []
        filled: dict[int, int] = {}  # address: number
        for name, tensor in own.items():
            number = numbers.get(id(self.value[name]))
            if number is None or not _are_alike(self.value[name], tensor):
                return False
            if filled.setdefault(tensor.data_ptr(), number) != number and tensor.numel():
                return False  # two values for one place: which of them comes last is the program's business
            pairs.append((tensor, number))
        if len({number for _, number in pairs}) != len(self._made):
            return False  # some are deeper inside
        self.value.update(own)
        self._made, self._unfilled = {}, pairs
        return True

    def fill(
        self, is_wanted: Callable[[], bool] = lambda: True, make_ready: Callable[[torch.Tensor], object] = id
    ) -> None:
        """Copy everything, or until it is not wanted any more (asked after every chunk). `make_ready` is called with
        each view of the snapshot that goes to a device; data of devices has arrived when this returns."""
        devices = set()
        while is_wanted() and (chunk := self._take()):
            places, sources = [tensor for tensor, _ in chunk], [self._source(number) for _, number in chunk]
            for place, source in zip(places, sources, strict=True):
                if place.device.type != "cpu":
                    devices.add(place.device)
                    make_ready(source)
            copy(places, sources)
        wait_for(devices)

    def _take(self) -> list[tuple[torch.Tensor, int]]:
        """The next ones to fill."""
        with self._taking:
            num_bytes, end = 0, 0
            while end < len(self._unfilled) and num_bytes < CHUNK_BYTES:
                num_bytes += self._unfilled[end][0].nbytes
                end += 1
            chunk, self._unfilled = self._unfilled[:end], self._unfilled[end:]
            return chunk


def _are_alike(made: torch.Tensor, own: torch.Tensor) -> bool:
    return (
        type(own) is torch.Tensor
        and own.layout is torch.strided
        and not own.is_meta
        and (own.shape, own.dtype) == (made.shape, made.dtype)
        and not (own.is_inference() or own.is_conj() or own.is_neg())
        and (own.is_contiguous() or own.stride() == made.stride())
    )
