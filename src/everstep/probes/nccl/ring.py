"""Reads the ring buffer that the profiler plug-in writes in a rank's memory (layout in `plugin/everstep_profiler.c`).

The writer does not wait for readers. So a record counts only if it was the same before and after the copy, and its
times count only if all channels had ended before. Impossible records are left out; counters in the header show how much
the plug-in itself left out.
"""

import os
import struct
import time
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import msgspec

from everstep.analyzer.collective.device import DeviceOp, family
from everstep.linux.regular import open_regular

NAME = "everstep-nccl"
MAGIC = b"EVSNCCL\0"
VERSION = 1
MAX_BYTES = 16 << 20
_HEADER_BYTES = 4096
_HEADER = struct.Struct("<8s4I8Q")
_RECORD = struct.Struct("<13Q2I3B5x16s16sQ")
_MAX_S = 86_400.0
"""A record of a longer operation is damaged."""

_WIDTHS = {
    "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "float16": 2, "float32": 4, "float64": 8,
    "bfloat16": 2, "float8e4m3": 1, "float8e5m2": 1,
}  # fmt: skip
_CHANNELS = 64
"""Channels of a collective for which the plug-in knows whether their kernels ended. NCCL has no more, RCCL has."""

_PER_RANK = ("allgather", "reducescatter", "alltoall")
"""Operations with a count that is one rank's part of the whole buffer."""


class RingError(Exception):
    """The data is not a ring, or is damaged. The text is the reason."""


class Ring(msgspec.Struct, frozen=True):
    """Operations of a process's communicators, oldest first, and the number of losses (docs/collectives.md)."""

    ops: tuple[DeviceOp, ...]
    num_recorded: int
    lost: dict[str, int]  # reason -> number of records that were left out


class _Raw(msgspec.Struct, frozen=True):
    stamp: int
    comm: int
    ordinal: int
    count: int
    queued_ns: int
    begin_ns: int
    end_ns: int
    device_begin: int
    device_end: int
    begun: int
    ended: int
    num_ranks: int
    num_channels: int
    is_odd: bool
    func: str
    datatype: str


def read(pid: int) -> Ring | None:
    """The ring of a process on this machine; None: the plug-in is not in it. Raises RingError."""
    place = _place(pid)
    if place is None:
        return None
    try:
        fd = open_regular(place)  # the rank chooses the name, and may have given it to a pipe
    except OSError as error:
        raise RingError(f"the ring of process {pid} cannot be opened: {error.strerror}") from None
    try:
        before, after = os.pread(fd, MAX_BYTES, 0), os.pread(fd, MAX_BYTES, 0)
        ticks = _is_rccl(pid, os.fstat(fd).st_ino)
    except OSError as error:
        raise RingError(f"the ring of process {pid} cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    return parse(before, after, time.time_ns() - time.monotonic_ns(), ticks=ticks)


@lru_cache(maxsize=256)
def _is_rccl(pid: int, inode: int) -> bool:
    """Whether AMD's library writes this ring. `inode`: of the ring, so that the cache does not mix up processes with
    the same pid."""
    try:
        text = Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False
    return any(line.rpartition("/")[2].startswith("librccl.so") for line in text.splitlines())


def _place(pid: int) -> str | None:
    folder = f"/proc/{pid}/fd"
    try:
        for name in os.listdir(folder):  # noqa: PTH208 - names only, of hundreds of descriptors
            try:
                if os.readlink(f"{folder}/{name}").startswith(f"/memfd:{NAME}"):  # noqa: PTH115 - as above
                    return f"{folder}/{name}"
            except OSError:
                continue  # closed meanwhile
    except OSError:
        return None
    return None


def parse(before: bytes, after: bytes | None = None, offset_ns: int | None = None, *, ticks: bool = False) -> Ring:
    """The ring from two copies, one taken after the other; one is enough if no process writes. `offset_ns`: wall clock
    minus monotonic clock, if known better than at the start of the ring. `ticks`: the device clock does not count
    nanoseconds, as in RCCL, and is not used. Raises RingError."""
    after = before if after is None else after
    if len(before) < _HEADER_BYTES or before[:8] != MAGIC:
        raise RingError("it is not a ring of the profiler plug-in")
    fields = _HEADER.unpack_from(before)
    version, size, capacity = fields[1], fields[2], fields[3]
    wall_ns, mono_ns, recorded, late, malformed, unknown, unmatched, homeless = fields[5:]
    if version != VERSION or size != _RECORD.size:
        raise RingError(f"it has version {version} and records of {size} bytes; this Everstep reads {VERSION}")
    offset = wall_ns - mono_ns if offset_ns is None else offset_ns
    room = min(capacity, (min(len(before), len(after)) - _HEADER_BYTES) // size)
    numbers = range(max(0, recorded - capacity), recorded) if 0 < capacity <= MAX_BYTES // size else range(0)
    ops = []
    for number in _in_file(numbers, capacity, room):
        op = _op(before, after, _HEADER_BYTES + number % capacity * size, number, offset, ticks=ticks)
        if op is not None:
            ops.append(op)
    num_torn = len(numbers) - len(ops)
    lost = {
        "torn": num_torn,
        "late": late,
        "malformed": malformed,
        "unknown": unknown,
        "unmatched": unmatched,
        "homeless": homeless,
    }
    return Ring(tuple(ops), recorded, {name: value for name, value in lost.items() if value})


def _in_file(numbers: range, capacity: int, room: int) -> Iterator[int]:
    """The numbers with places among the first `room`, in order: a file may name more places than it has."""
    at = numbers.start
    while at < numbers.stop:
        place = at % capacity
        if place >= room:
            at += capacity - place
            continue
        yield from range(at, min(at + room - place, numbers.stop))
        at += room - place


def _op(before: bytes, after: bytes, place: int, number: int, offset_ns: int, *, ticks: bool) -> DeviceOp | None:
    first, second = _raw(before, place), _raw(after, place)
    if not number + 1 == first.stamp == second.stamp or not first.func:
        return None
    is_done = 0 < first.num_channels == first.ended.bit_count() and first.begun == first.ended
    took_s = _took_s(second, ticks=ticks) if is_done and not second.is_odd else None
    begin_at = (second.begin_ns + offset_ns) / 1e9 if second.begin_ns >= second.queued_ns > 0 else None
    return DeviceOp(
        comm=f"{second.comm:016x}",
        ordinal=second.ordinal,
        func=second.func,
        num_bytes=_num_bytes(second),
        queued_at=(second.queued_ns + offset_ns) / 1e9,
        begin_at=begin_at,
        took_s=took_s,
        is_open=not is_done and not second.is_odd and second.num_channels <= _CHANNELS,
    )


def _raw(data: bytes, place: int) -> _Raw:
    f = _RECORD.unpack_from(data, place)
    return _Raw(
        stamp=f[0],
        comm=f[1],
        ordinal=f[2],
        count=f[4],
        queued_ns=f[5],
        begin_ns=f[7],
        end_ns=f[8],
        device_begin=f[9],
        device_end=f[10],
        begun=f[11],
        ended=f[12],
        num_ranks=f[13],
        num_channels=f[15],
        is_odd=bool(f[17]),
        func=_text(f[18]),
        datatype=_text(f[19]),
    )


def _text(data: bytes) -> str:
    """The name in a field; empty if it is not a name."""
    name = data.partition(b"\0")[0]
    return name.decode("ascii") if name.isalnum() else ""


def _took_s(raw: _Raw, *, ticks: bool) -> float | None:
    """Seconds by the device's clock if there is one; else by that of the thread that saw the events. None: unknown."""
    has_device = raw.device_begin and raw.device_end and not ticks
    begin, end = (raw.device_begin, raw.device_end) if has_device else (raw.begin_ns, raw.end_ns)
    took_s = (end - begin) / 1e9
    return took_s if begin and 0 < took_s <= _MAX_S else None


def _num_bytes(raw: _Raw) -> int:
    width = _WIDTHS.get(raw.datatype.lower().removeprefix("nccl"))
    is_part = family(raw.func) in _PER_RANK
    if width is None or (is_part and not raw.num_ranks):
        return -1
    total = raw.count * width * (raw.num_ranks if is_part else 1)
    return total if total < 1 << 60 else -1
