"""The record of what a State packs, by the memory it packs and by content.

`Kept` is filled from the state dicts of one moment. Memory that is packed is known by its storage and range of bytes; a
copy (a `state_dict` that clones, or moves to the CPU) by its content. Only the check of completeness makes one.
"""

import bisect
import io
import pickle
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from everstep.worker.digests.digest import weigh

Range = tuple[int, int]
"""Begin and end in a storage, in bytes."""

_MIN_BLOB = 16


class Kept:
    """Tensors, texts of bytes and whole objects of some state dicts."""

    def __init__(self) -> None:
        self._ranges: dict[int, list[Range]] = defaultdict(list)  # address of a storage: what of it is packed
        self._by_size: dict[int, list[torch.Tensor]] = defaultdict(list)
        self._weights: dict[int, int] = {}  # id of a tensor: its digest
        self._objects: dict[int, object] = {}
        self._values: list[Any] = []

    def add(self, state: object) -> None:
        """A state dict, or any other nest. Raises what pickle raises."""
        _Collector(self).dump(state)

    def close(self, live: Iterable[torch.Tensor]) -> None:
        """All is added. `live`: tensors of the program; what is packed of one of them is no copy of another, even while
        both are equal (slow weights, every fifth step)."""
        storages = {place[0] for tensor in live for plain in plain_tensors(tensor) if (place := place_of(plain))}
        for size, tensors in self._by_size.items():
            places = [place_of(tensor) for tensor in tensors]
            self._by_size[size] = [
                tensor for tensor, at in zip(tensors, places, strict=True) if at is None or at[0] not in storages
            ]
        for address, ranges in self._ranges.items():
            self._ranges[address] = _merged(ranges)

    def note_tensor(self, tensor: torch.Tensor) -> None:
        for plain in plain_tensors(tensor):
            if plain.layout is not torch.strided:
                continue
            self._by_size[plain.nbytes].append(plain)
            place = place_of(plain)
            if place is not None:
                self._ranges[place[0]].append(place[1])

    def note(self, thing: object) -> None:
        self._objects[id(thing)] = thing
        if (isinstance(thing, (bytes, bytearray)) and len(thing) >= _MIN_BLOB) or isinstance(thing, (dict, tuple)):
            self._values.append(thing)

    def has_object(self, thing: object) -> bool:
        """Whether this very object is packed whole."""
        return id(thing) in self._objects

    def has_value(self, value: object) -> bool:
        """Whether a value that is equal is packed: the state of a generator."""
        if isinstance(value, bytes):
            return any(isinstance(each, (bytes, bytearray)) and each == value for each in self._values) or any(
                bytes(each.contiguous().view(torch.uint8).flatten().tolist()) == value
                for each in self._by_size.get(len(value), ())
                if each.dtype == torch.uint8
            )
        return any(type(each) is type(value) and _are_equal(each, value) for each in self._values)

    def has_position(self, last_epoch: object) -> bool:
        """Whether a dictionary has this place in a schedule, and is not the state of a scheduler of torch's, which may
        be another one's at the same place."""
        if last_epoch is None:
            return False
        states = (each for each in self._values if isinstance(each, dict) and "_step_count" not in each)
        return any(_are_equal(each.get("last_epoch"), last_epoch) for each in states)

    def missing_bytes(self, tensor: torch.Tensor) -> int:
        """How many bytes of this tensor's memory are not packed; 0 also where an equal copy of it is."""
        found = 0
        for plain in plain_tensors(tensor):
            missing = sum(end - begin for begin, end in self.gaps(plain))
            found += 0 if not missing or self._has_copy(plain) else missing
        return found

    def gaps(self, tensor: torch.Tensor) -> Iterator[Range]:
        """Yield the parts of its memory that are not packed, as ranges of bytes in its storage."""
        place = place_of(tensor)
        if place is None:
            return
        at, end = place[1]
        ranges = self._ranges.get(place[0], ())
        first = bisect.bisect_left(ranges, (at, -1)) if ranges else 0
        for begin, stop in ranges[max(0, first - 1) :]:
            if begin >= end:
                break
            if begin > at:
                yield at, begin
            at = max(at, stop)
        if at < end:
            yield at, end

    def left_out(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """List the parts of its memory that are not packed: the tensor itself, or views of bytes."""
        place, gaps = place_of(tensor), list(self.gaps(tensor))
        if place is None or gaps == [place[1]]:
            return [] if place is None else [tensor]
        memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        storage = tensor.untyped_storage()
        return [memory.new_empty(0).set_(storage, begin, (end - begin,)) for begin, end in gaps]

    def _has_copy(self, tensor: torch.Tensor) -> bool:
        others = [each for each in self._by_size.get(tensor.nbytes, ()) if each.dtype == tensor.dtype]
        if not others:
            return False
        mine = int(weigh(tensor))
        return any(self._weight_of(other) == mine for other in others)

    def _weight_of(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._weights:
            self._weights[id(tensor)] = int(weigh(tensor))
        return self._weights[id(tensor)]


class _Collector(pickle.Pickler):
    """Goes through a nest as pickle does, and keeps what it meets."""

    def __init__(self, kept: Kept) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self._kept = kept

    def persistent_id(self, thing: Any) -> str | None:  # noqa: ANN401
        if isinstance(thing, torch.Tensor):
            self._kept.note_tensor(thing)
            return "tensor"
        if type(thing) is torch.Generator:
            self._kept.note(thing)
            return "generator"
        if type(thing) not in (int, float, str, bool, type(None)):
            self._kept.note(thing)
        return None


def plain_tensors(tensor: Any) -> Iterator[torch.Tensor]:  # noqa: ANN401
    """The tensors with memory that one is made of: a DTensor's shard, a quantised weight's values and scales."""
    if torch.nn.parameter.is_lazy(tensor):
        return
    local = getattr(tensor, "_local_tensor", None)
    if isinstance(local, torch.Tensor):
        yield from plain_tensors(local)
    elif type(tensor) not in (torch.Tensor, torch.nn.Parameter) and hasattr(type(tensor), "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from plain_tensors(getattr(tensor, name))
    else:
        yield tensor.detach()


def place_of(tensor: torch.Tensor) -> tuple[int, Range] | None:
    """Address of its storage, and its range of bytes there; None: it has no memory that can be compared."""
    if tensor.layout is not torch.strided or tensor.is_meta or not tensor.numel():
        return None
    try:
        address = tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return None
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (address, (begin, begin + (reach + 1) * size)) if address else None


def _merged(ranges: Iterable[Range]) -> list[Range]:
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def _are_equal(one: Any, other: Any) -> bool:  # noqa: ANN401
    try:
        return bool(one == other)
    except Exception:  # arrays in it, or an `__eq__` of the program's own
        return False
