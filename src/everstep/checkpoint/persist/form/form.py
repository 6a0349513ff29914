"""Files under the root of the persistent tier, and how each file shows that it is whole.

    objects/ab/abcd...        pieces of snapshots, named by their content; the last bytes are a checksum of the rest
    step-0000000040/          one checkpoint: manifest.json (written last), .metadata (of torch.distributed.checkpoint),
                              rank-00000.json ...: which pieces make up the snapshot of that rank
    .writing/step-...-g2-4be1c09a/    a checkpoint that is being written by generation 2 of a run; becomes step-... when
                              it is whole

Pure: bytes in, values out. Every JSON file is an envelope {"sum", "body"} with a checksum over the exact bytes of its
body. Raises DamagedFileError for everything that is not what was written.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import xxhash

FORM_VERSION = 1
MANIFEST = "manifest.json"
METADATA = ".metadata"
WRITING = ".writing"
OBJECTS = "objects"
EXPORTED_AS = ("safetensors", "torch", "dcp")
DAMAGED = ".damaged"
"""Behind the name of an object that was found not to be what was written."""

FOOTER_MAGIC = b"ESOBJ\x01\x00\n"
FOOTER_BYTES = len(FOOTER_MAGIC) + 16

_STEP = re.compile(r"step-(\d{10,18})")
_DRAFT = re.compile(r"step-(\d{10,18})-g(\d{1,9})-([0-9a-f]{8})")
_OBJECT = re.compile(r"[0-9a-f]{32}")

_T = TypeVar("_T")

ObjectName = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""Checked when a file is read: the name of an object becomes a path, and the file may be another user's."""

Count = Annotated[int, msgspec.Meta(ge=0)]

PathItem = str | int | tuple[int]
"""A key of a dict, or, in a tuple of its own, an index into a list."""


class DamagedFileError(Exception):
    """A file of a checkpoint is not the one that was written. `name` is relative to the root."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class NewerFormError(DamagedFileError):
    """It may be whole; a later everstep wrote it."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a tensor, and where they lie: within a stream of torch.save in an object."""

    at: Count  # in the snapshot's buffer
    num_bytes: Count
    sum: str  # xxh3_128 of these bytes
    object: ObjectName
    stream_at: Count  # what torch.load reads
    stream_bytes: Count
    data_at: Count  # these bytes, raw
    offsets: tuple[Count, ...]  # within the tensor of this rank
    sizes: tuple[Count, ...]


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in the memory of a rank; several names may mean the same one."""

    dtype: str
    sizes: tuple[int, ...]
    pieces: tuple[Piece, ...]


class Named(msgspec.Struct, frozen=True, array_like=True):
    """A tensor in a state dict. `sizes` and `offsets` are those of the whole tensor and of this rank's shard in it."""

    path: tuple[PathItem, ...]
    tensor: Count
    sizes: tuple[Count, ...]
    offsets: tuple[Count, ...]
    is_shard: bool  # one of several that make up a tensor; otherwise every rank is expected to hold the same


class Value(msgspec.Struct, frozen=True, array_like=True):
    """Anything else in a state dict: a stream of torch.save in an object."""

    path: tuple[PathItem, ...]
    sum: str
    object: ObjectName
    stream_at: Count
    stream_bytes: Count


class Skeleton(msgspec.Struct, frozen=True, array_like=True):
    """The part of a snapshot that is no tensor, as it was in memory."""

    num_bytes: Count
    crc: int
    sum: str
    object: ObjectName
    data_at: Count


class RankPart(msgspec.Struct, frozen=True, kw_only=True):
    """The snapshot of one rank."""

    version: int = FORM_VERSION
    step: int
    generation: int
    rank: int
    world_size: int
    length: Count  # of the snapshot's buffer
    skeleton: Skeleton
    tensors: tuple[Tensor, ...]
    named: tuple[Named, ...]
    values: tuple[Value, ...]
    opaque: tuple[str, ...] = ()  # names that only this program can read: not in .metadata, but in the skeleton
    objects: dict[ObjectName, Count]  # name: size of the file
    run: str = ""
    everstep: str = ""
    torch: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One checkpoint. It exists, so the checkpoint was whole when it was written."""

    version: int = FORM_VERSION
    step: int
    generation: int
    world_size: int
    at: float
    order: int = 0  # of the commits in this folder, which no clock has to agree about
    size_bytes: int  # of everything it refers to
    parts: tuple[str, ...]  # checksum of each rank's file, by rank
    metadata: str  # checksum of .metadata
    is_trusted: bool = False
    unequal: tuple[str, ...] = ()  # names that ranks hold unshared and unequal: no other number of ranks can have them
    resumed: tuple[tuple[int, int], ...] = ()  # generations up to this one, and the steps after which they resumed
    run: str = ""
    everstep: str = ""
    torch: str = ""


def checksum(data: bytes | bytearray | memoryview) -> str:
    return xxhash.xxh3_128_hexdigest(data)


def checksum_of(chunks: Iterable[bytes]) -> str:
    """Return the checksum of bytes that come in pieces; equal to `checksum` of all of them."""
    hasher = xxhash.xxh3_128()
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.hexdigest()


def step_name(step: int) -> str:
    return f"step-{step:010d}"


class Draft(NamedTuple):
    """The parts of a directory's name in `.writing`."""

    step: int
    generation: int
    run: str  # a checksum of its id: two runs in one folder must not mix their parts


def run_tag(run: str) -> str:
    return checksum(run.encode())[:8]


def draft_name(step: int, generation: int, run: str) -> str:
    return f"{WRITING}/{step_name(step)}-g{generation}-{run_tag(run)}"


def rank_name(rank: int) -> str:
    return f"rank-{rank:05d}.json"


def object_name(content: str) -> str:
    return f"{OBJECTS}/{content[:2]}/{content}"


def step_of(name: str) -> int | None:
    """The step in a folder's name; None for anything else."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def draft_of(name: str) -> Draft | None:
    """None for anything that is no draft."""
    found = _DRAFT.fullmatch(name)
    return Draft(int(found[1]), int(found[2]), found[3]) if found else None


def is_object(name: str) -> bool:
    return bool(_OBJECT.fullmatch(name))


def name_of(path: tuple[PathItem, ...]) -> str:
    """The name that torch.distributed.checkpoint gives it."""
    return ".".join(str(item[0] if isinstance(item, tuple) else item) for item in path)


def seal(value: msgspec.Struct) -> bytes:
    """The bytes of a JSON file."""
    body = msgspec.json.encode(value)
    return b'{"sum":"' + checksum(body).encode() + b'","body":' + body + b"}\n"


class _Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sum: str
    body: msgspec.Raw


def unseal(name: str, data: bytes, kind: type[_T]) -> _T:
    """Raises DamagedFileError."""
    try:
        envelope = msgspec.json.decode(data, type=_Envelope)
        body = bytes(envelope.body)
        if checksum(body) != envelope.sum or data != b'{"sum":"' + envelope.sum.encode() + b'","body":' + body + b"}\n":
            raise DamagedFileError(name, "its checksum does not match")
        version = msgspec.json.decode(body, type=_Versioned).version
        if version > FORM_VERSION:
            raise NewerFormError(name, f"form {version}; this everstep reads up to {FORM_VERSION}")
        return _consistent(name, msgspec.json.decode(body, type=kind))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise DamagedFileError(name, f"is not what was written: {error}") from error


def _consistent(name: str, value: _T) -> _T:
    """Return the value if everything that it refers to is there. Raises DamagedFileError."""
    if isinstance(value, RankPart):
        used = {piece.object for tensor in value.tensors for piece in tensor.pieces}
        used |= {value.skeleton.object, *(other.object for other in value.values)}
        if not used <= value.objects.keys() or any(one.tensor >= len(value.tensors) for one in value.named):
            raise DamagedFileError(name, "is not what was written: it refers to what it does not hold")
    return value


class _Versioned(msgspec.Struct, frozen=True):
    version: int


def footer(hasher: Any) -> bytes:  # noqa: ANN401 - xxhash.xxh3_128
    return FOOTER_MAGIC + bytes(hasher.digest())


def check_object(name: str, data: bytes | memoryview) -> None:
    """Raises DamagedFileError if these are not the whole bytes of an object."""
    view = memoryview(data)
    if view.nbytes < FOOTER_BYTES or bytes(view[-FOOTER_BYTES:-16]) != FOOTER_MAGIC:
        raise DamagedFileError(name, f"cut or not an object of a checkpoint ({view.nbytes:,} bytes)")
    if xxhash.xxh3_128_digest(view[:-FOOTER_BYTES]) != bytes(view[-16:]):
        raise DamagedFileError(name, "its checksum does not match")
