"""State dicts to the bytes of a snapshot buffer and back.

Answers: how is any nest of objects with tensors in it laid out in memory that we own, fast enough for every step.
Tensors are copied raw, one after the other; everything else is the skeleton, a pickle at the end of the data in
which a tensor is only a number. Of a DTensor the local shard is a tensor like others, and what it is a shard of is in
the skeleton. It must not decide when or where to write (that is `worker.snapshots.snapshots`), and never unpickles
anything that did not come from an arena: this is memory that the same run wrote, and its checksum is compared first.

As long as the tensors of a state have the same shapes as in the step before, offsets and views of the
destination are reused, writing is one `_foreach_copy_`, and what a walk meets is guessed and checked
(`checkpoint.expecting`), or not walked through at all (`checkpoint.recalling`).
"""

import copyreg
import dataclasses
import io
import pickle
import sys
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from everstep.checkpoint.dividing import Division
from everstep.checkpoint.expecting import Expected, Reduced, Walk
from everstep.checkpoint.recalling import PROTOCOL, Part, PartError

_ALIGN_BYTES = 64
ELSEWHERE = -1  # in place of an offset: another rank of the node keeps this tensor
_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)  # exact: an unknown subclass pickles itself
_DTYPES = {
    str(dtype): dtype
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
    and (
        dtype.is_floating_point or dtype.is_complex or str(dtype).startswith(("torch.int", "torch.uint", "torch.bool"))
    )
    and not str(dtype).endswith(("int1", "int2", "int3", "int4", "int5", "int6", "int7", "x2"))  # less than a byte
}
_RAW_DTYPES = frozenset(_DTYPES.values())

Divide = Callable[[object, list[torch.Tensor], list[int]], Division | None]
"""Given the plan (to be compared by identity), the tensors and their addresses."""

Signature = tuple[Any, ...]  # (shape, stride, dtype, device) of one tensor


class DamagedError(Exception):
    """The bytes are not the ones that were written."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Plan:
    """Where each tensor goes. One object as long as the signatures do not change, compared by identity."""

    signatures: list[Signature]
    entries: list[tuple[int, int, str, tuple[int, ...], tuple[int, ...], str]]  # what a reader needs
    table: bytes  # the entries, pickled
    data_bytes: int
    other_devices: tuple[torch.device, ...]  # than the CPU
    division: Division | None = None
    kept: list[int] | None = None  # numbers of the tensors that lie here; None: all of them


@dataclasses.dataclass(frozen=True, slots=True)
class Packed:
    """A state that is ready to be written: what to copy, and the skeleton."""

    plan: _Plan
    tensors: list[torch.Tensor]  # those that lie here
    owners: list[torch.Tensor]  # of each tensor: itself, or the DTensor that it is the shard of
    addresses: list[int]  # of each tensor
    skeleton: bytes

    @property
    def num_bytes(self) -> int:
        return self.plan.data_bytes + len(self.skeleton)

    @property
    def devices(self) -> tuple[torch.device, ...]:
        """Those of the tensors, but for the CPU."""
        return self.plan.other_devices


class _Tensors:
    """The tensors of one snapshot in the order in which they were met; the same memory is stored once."""

    def __init__(self) -> None:
        self.found: list[torch.Tensor] = []  # also keeps them alive: an address must not be given out twice
        self.owners: list[torch.Tensor] = []
        self.signatures: list[Signature] = []
        self.addresses: list[int] = []
        self._index: dict[int, int] = {}  # address: first tensor there
        self._met: list[torch.Tensor] = []  # one for each call of `reduce`
        self._reduced: list[Reduced] = []
        self._is_plain = True

    def expected(self) -> Expected | None:
        """Return what the next walk will most likely meet; None if that cannot be predicted for some of the tensors."""
        return Expected(self._met, self._reduced) if self._is_plain else None

    def reducers(self) -> dict[type, Callable[[Any], Any]]:
        found: dict[type, Callable[[Any], Any]] = dict.fromkeys(_PLAIN_TYPES, self.reduce)
        distributed: Any = sys.modules.get("torch.distributed.tensor")
        if distributed is not None:
            found[distributed.DTensor] = self.reduce_shard
        return found

    def reduce(self, tensor: torch.Tensor) -> str | tuple[Any, ...]:
        """`__reduce__` of a tensor while its part is pickled."""
        if not _is_raw(tensor):
            self._is_plain = False
            as_it_likes: str | tuple[Any, ...] = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return as_it_likes
        number = self._number(tensor, tensor)
        reduced = _stored_tensor, (number, type(tensor) is torch.nn.Parameter, tensor.requires_grad)
        self._met.append(tensor)
        self._reduced.append(reduced)
        return reduced

    def reduce_shard(self, tensor: Any) -> str | tuple[Any, ...]:  # noqa: ANN401 - a DTensor
        self._is_plain = False
        local = tensor._local_tensor
        if type(local) not in _PLAIN_TYPES or not _is_raw(local) or tensor.__dict__:
            reduced: str | tuple[Any, ...] = tensor.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            return reduced
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return _stored_shard, (self._number(local, tensor), tensor._spec, is_parameter, tensor.requires_grad)

    def _number(self, tensor: torch.Tensor, owner: torch.Tensor) -> int:
        signature = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
        address = tensor.data_ptr()
        index = self._index.setdefault(address, len(self.found))
        if index == len(self.found) or self.signatures[index] != signature:
            index = len(self.found)  # another view of known memory is stored on its own
            self.found.append(tensor)
            self.owners.append(owner)
            self.addresses.append(address)
            self.signatures.append(signature)
        return index


def _is_raw(tensor: torch.Tensor) -> bool:
    """Whether shape, stride and bytes are all there is to this tensor."""
    return tensor.layout is torch.strided and tensor.dtype in _RAW_DTYPES and not tensor.is_meta and not tensor.__dict__


def _stored_tensor(index: int, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    """Stands for a tensor in a skeleton; `_Unpickler` puts its own method in its place."""
    raise DamagedError("a skeleton was unpickled without its data")


def _stored_shard(index: int, spec: object, is_parameter: bool, requires_grad: bool) -> torch.Tensor:
    """Stand for a DTensor in a skeleton; `_Unpickler` puts its own method in its place."""
    raise DamagedError("a skeleton was unpickled without its data")


class Packer:
    """Packs one state again and again; remembers the plan, and what the last walk met."""

    def __init__(self) -> None:
        self._plan: _Plan | None = None
        self._mine: _Plan | None = None  # of a divided state
        self._expected: Expected | None = None

    def pack(self, parts: Mapping[str, Any], divide: Divide | None = None) -> Packed:
        """`parts`: state dicts, or a `Part` that makes one if it has to. Raises PartError naming the part that cannot
        be made or pickled. Nothing is copied yet. What `divide` gives to others is left out."""
        made: dict[str, Any] = {}  # each at most once, however often it is walked through
        return self._pack_as_expected(parts, made, divide) or self._pack(parts, made, divide)

    def _pack_as_expected(self, parts: Mapping[str, Any], made: dict[str, Any], divide: Divide | None) -> Packed | None:
        expected, plan = self._expected, self._plan
        if expected is None or plan is None:
            return None
        walk = expected.walk()
        pickled: dict[str, bytes] = {}
        walked: list[tuple[str, slice]] = []
        table = {**copyreg.dispatch_table, **dict.fromkeys(_PLAIN_TYPES, walk.reduce)}
        for name, part in parts.items():
            recalled = part.recall(len(walk.met)) if isinstance(part, Part) else None
            if recalled is not None:
                walk.recall(recalled.tensors)
                pickled[name] = recalled.pickled
                continue
            pickled[name] = _pickle_part(name, _made(name, part, made), table)
            walked.append((name, walk.close()))
        found = expected.stored(walk)
        if found is None:
            self._expected = None
            for part in parts.values():
                if isinstance(part, Part):
                    part.forget()
            return None
        for name, at in walked:
            _note(parts[name], made[name], expected, walk, at)
        tensors, addresses = found
        return self._packed(plan, tensors, tensors, addresses, pickled, divide)

    def _pack(self, parts: Mapping[str, Any], made: dict[str, Any], divide: Divide | None) -> Packed:
        tensors = _Tensors()
        table = {**copyreg.dispatch_table, **tensors.reducers()}
        pickled = {name: _pickle_part(name, _made(name, part, made), table) for name, part in parts.items()}
        plan = self._plan
        if plan is None or plan.signatures != tensors.signatures:
            plan = self._plan = _make_plan(tensors.signatures, tensors.found)
        else:
            self._expected = tensors.expected()  # for the second time: a state that grows would disappoint every time
        return self._packed(plan, tensors.found, tensors.owners, tensors.addresses, pickled, divide)

    def _packed(
        self,
        plan: _Plan,
        tensors: list[torch.Tensor],
        owners: list[torch.Tensor],
        addresses: list[int],
        pickled: Mapping[str, bytes],
        divide: Divide | None,
    ) -> Packed:
        division = divide(plan, tensors, addresses) if divide is not None else None
        if division is None:
            skeleton = pickle.dumps((plan.table, pickled), pickle.HIGHEST_PROTOCOL)
            return Packed(plan, tensors, owners, addresses, skeleton)
        mine = self._mine
        if mine is None or mine.division is not division or mine.signatures is not plan.signatures:
            mine = self._mine = _make_plan(plan.signatures, tensors, division)
        kept = mine.kept or []
        skeleton = pickle.dumps((mine.table, pickled, _told(division)), pickle.HIGHEST_PROTOCOL)
        picked = [tensors[number] for number in kept], [owners[number] for number in kept]
        return Packed(mine, *picked, [addresses[number] for number in kept], skeleton)


def _told(division: Division) -> tuple[int, tuple[int, ...], dict[int, tuple[str, int]]]:
    """A division as it is in a skeleton: nothing that another version of this package could not read."""
    return division.rank, division.ranks, division.owners


def _made(name: str, part: object, made: dict[str, Any]) -> Any:  # noqa: ANN401 - the state dict of a part
    if name not in made:
        made[name] = part.make() if isinstance(part, Part) else part
    return made[name]


def _note(part: object, state: Any, expected: Expected, walk: Walk, at: slice) -> None:  # noqa: ANN401
    """The next walk need not go through this part again."""
    if not isinstance(part, Part):
        return

    def again(value: object) -> bytes:
        answers = expected.walk()
        answers.recall(walk.met[: at.start])
        table = {**copyreg.dispatch_table, **dict.fromkeys(_PLAIN_TYPES, answers.reduce)}
        return _pickle_part(part.name, value, table, PROTOCOL)

    part.note(state, walk.met[at], at.start, again)


def _pickle_part(
    name: str, value: object, table: dict[type, Callable[[Any], Any]], protocol: int = pickle.HIGHEST_PROTOCOL
) -> bytes:
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol)
    # Asked only for objects that pickle does not know itself: cheaper than persistent_id, which sees every key.
    pickler.dispatch_table = table
    try:
        pickler.dump(value)
    except Exception as error:
        raise PartError(name, error) from error
    return file.getvalue()


def _make_plan(signatures: list[Signature], tensors: Iterable[torch.Tensor], division: Division | None = None) -> _Plan:
    entries = []
    kept = []
    offset = 0
    for number, ((shape, stride, dtype, device), tensor) in enumerate(zip(signatures, tensors, strict=True)):
        num_bytes = tensor.numel() * tensor.element_size()
        if not _is_dense(shape, stride):
            stride = torch.empty(shape, device="meta").stride()
        is_kept = division is None or division.is_kept(number)
        at = offset if is_kept else ELSEWHERE
        entries.append((at, num_bytes, str(dtype), tuple(shape), tuple(stride), str(device)))
        if is_kept:
            kept.append(number)
            offset += padded(num_bytes)
    table = pickle.dumps(entries, pickle.HIGHEST_PROTOCOL)
    devices = {signature[3] for signature in signatures if signature[3].type != "cpu"}
    return _Plan(signatures, entries, table, offset, tuple(devices), division, kept if division is not None else None)


def padded(num_bytes: int) -> int:
    """Where the next tensor begins."""
    return -(-num_bytes // _ALIGN_BYTES) * _ALIGN_BYTES


def _is_dense(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Whether the elements fill their memory without holes or overlap, in whatever order of dimensions."""
    expected = 1
    for size, step in sorted(zip(shape, stride, strict=True), key=lambda pair: pair[1]):
        if size == 1:
            continue
        if step != expected:
            return False
        expected *= size
    return True


def view_of(flat: torch.Tensor, entry: tuple[int, int, str, tuple[int, ...], tuple[int, ...], str]) -> torch.Tensor:
    offset, num_bytes, dtype, shape, stride, _ = entry
    if num_bytes == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return flat[offset : offset + num_bytes].view(_DTYPES[dtype]).as_strided(shape, stride)


class Target:
    """One buffer as a destination. Keeps its views for as long as the plan stays."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._flat = torch.frombuffer(memory, dtype=torch.uint8)
        self._plan: _Plan | None = None
        self._views: list[torch.Tensor] = []

    def write(self, packed: Packed) -> tuple[int, int, int]:
        """Copy everything; returns (length, skeleton bytes, skeleton crc32). Data of devices has arrived."""
        copy(self.places(packed), packed.tensors)
        wait_for(packed.devices)
        return self.write_skeleton(packed)

    def write_skeleton(self, packed: Packed) -> tuple[int, int, int]:
        """Everything but the tensors; returns what `write` does."""
        start, length = packed.plan.data_bytes, packed.num_bytes
        self._memory[start:length] = packed.skeleton
        return length, len(packed.skeleton), zlib.crc32(packed.skeleton)

    def places(self, packed: Packed) -> list[torch.Tensor]:
        """Where each tensor goes. The same list for as long as the plan stays."""
        if self._plan is not packed.plan:
            entries = [entry for entry in packed.plan.entries if entry[0] != ELSEWHERE]
            self._views = [view_of(self._flat, entry) for entry in entries]
            self._plan = packed.plan
        return self._views


def copy(places: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    """Copy in one call, which does not hold the GIL. What comes from or goes to a device may still be on its way."""
    if not places:
        return
    with torch.no_grad():
        if all(tensor.device.type == "cpu" for pair in (places, tensors) for tensor in pair):
            torch._foreach_copy_(places, tensors)
            return
        try:
            torch._foreach_copy_(places, tensors, non_blocking=True)
        except RuntimeError:  # a backend that does not do this between devices
            for place, tensor in zip(places, tensors, strict=True):
                place.copy_(tensor, non_blocking=True)


def wait_for(devices: Iterable[torch.device]) -> None:
    """Until everything that this thread began there, on its current streams, is done. Others' work is not waited for: a
    collective there may wait for other ranks."""
    for device in devices:
        torch.get_device_module(device).current_stream(device).synchronize()
