"""Streams that torch.load reads, and where in them the raw bytes are; and the files that hold such streams.

Answers: how does a piece of a tensor become bytes in an object that torch.distributed.checkpoint can read, that can be
read raw as well, and that shows by itself whether it is whole. Called by `sources` (planning) and `writing`.
"""

import io
import struct
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from everstep.checkpoint.persist.form.form import FOOTER_BYTES, FORM_VERSION, DamagedFileError, checksum, footer
from everstep.checkpoint.persist.read.opening import Entry, view

OWN_BYTES = 64 << 10
"""Pieces from here on are files of their own: what did not change is found again. Smaller ones share a file."""

PACK_BYTES = 4 << 20
"""A file of small pieces is written again when one of them changes."""


Data = bytes | memoryview
Make = Callable[[], Data]


def stream_of(value: object) -> Data:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getbuffer()


def load_tensor(data: memoryview) -> torch.Tensor:
    """The tensor as it was saved; runs nothing that the bytes may ask for. Raises DamagedFileError."""
    try:
        tensor: torch.Tensor = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        return tensor
    except Exception as error:
        raise DamagedFileError("", f"does not load: {type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of the stream of a tensor of some dtype and shape; the same for all of them."""

    stream_bytes: int
    data_at: int


class Layouts:
    """Layouts by dtype and shape, so that the place of a piece is known before it is serialised."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Layout] = {}

    def of(self, tensor: torch.Tensor) -> Layout:
        key = (tensor.dtype, tuple(tensor.shape), tuple(tensor.stride()))
        layout = self._known.get(key)
        if layout is None:
            data = stream_of(tensor)
            layout = self._known[key] = Layout(len(data), _data_at(data) if tensor.numel() else 0)
        return layout


def _data_at(stream: Data) -> int:
    """Where the only record of data begins: after its header in the archive, which torch does not compress."""
    with zipfile.ZipFile(io.BytesIO(stream)) as archive:
        info = next(entry for entry in archive.infolist() if entry.filename.endswith("/data/0"))
    name_bytes, extra_bytes = struct.unpack_from("<HH", stream, info.header_offset + 26)
    return int(info.header_offset + 30 + name_bytes + extra_bytes)


@dataclass(slots=True)
class ObjectPlan:
    """A file to be: streams one after the other, then the footer. `make` serialises when it is written, not before."""

    name: str = ""
    num_bytes: int = FOOTER_BYTES
    streams: list[Make] = field(default_factory=list)

    def chunks(self) -> Iterator[Data]:
        hasher = xxhash.xxh3_128()
        for make in self.streams:
            data = make()
            hasher.update(data)
            yield data
        yield footer(hasher)


@dataclass(slots=True)
class _Packed:
    key: str
    num_bytes: int
    make: Make
    place: Callable[[str, int], None]


class Packer:
    """Puts streams into objects, in the order in which they come: the same content gives the same objects."""

    def __init__(self) -> None:
        self.objects: dict[str, ObjectPlan] = {}
        self._pack: list[_Packed] = []
        self._pack_bytes = 0

    def add(self, key: str, num_bytes: int, make: Make, place: Callable[[str, int], None], *, size: int) -> None:
        """`key` names the content; `size` is its weight; `place` is called with the object and the start of the stream
        in it."""
        item = _Packed(key, num_bytes, make, place)
        if size >= OWN_BYTES:
            self._close([item])
            return
        if self._pack_bytes + num_bytes > PACK_BYTES:
            self.flush()
        self._pack.append(item)
        self._pack_bytes += num_bytes

    def flush(self) -> None:
        if self._pack:
            self._close(self._pack)
        self._pack, self._pack_bytes = [], 0

    def _close(self, items: list[_Packed]) -> None:
        name = checksum("\n".join(item.key for item in items).encode())
        plan = ObjectPlan(name)
        at = 0
        for item in items:
            item.place(name, at)
            plan.streams.append(item.make)
            at += item.num_bytes
        plan.num_bytes += at
        self.objects.setdefault(name, plan)


def piece_view(entry: Entry, at: int, num_bytes: int, sizes: tuple[int, ...]) -> torch.Tensor:
    """A block of a tensor, as `splitting.split` describes it."""
    return view(Entry(entry.memory, entry.at + at, num_bytes, entry.dtype, sizes, entry.strides))


def piece_key(entry: Entry, total: str, sizes: tuple[int, ...], layout: Layout) -> str:
    """With the layout: another release of torch puts the same bytes elsewhere in a stream, and a file of the one must
    not take the name of a file of the other, which older checkpoints refer to."""
    stored = f"{FORM_VERSION} {layout.stream_bytes} {layout.data_at}"
    return f"tensor {entry.dtype} {sizes} {entry.strides} {stored} {total}"
