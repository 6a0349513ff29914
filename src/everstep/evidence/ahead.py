"""Processes that read the flight records and logs of a large folder ahead of the folder's reader, one for each CPU.

They only save time. Each takes every n-th file and gives what is in it, or nothing: then, and when one of them ends,
hangs or gives garbage, the reader reads the file itself, and can report what is wrong with it.
"""

import contextlib
import fcntl
import os
import resource
import select
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from everstep.analyzer.observations.records import FlightRecord
from everstep.analyzer.reading import flight, torch_pickle
from everstep.evidence.logs import LogRead, read_lines, read_log
from everstep.evidence.names import rank_in
from everstep.evidence.sniff import HEAD_BYTES, Kind, kind_of
from everstep.linux.parent import die_with_parent
from everstep.linux.regular import regular

LEAST_FILES = 48
MOST_PROCESSES = 8
MEMORY_BYTES = 1536 << 20
"""Memory limit of each, on top of what it had when it began: the largest file that it reads takes a few hundred MiB."""
FILE_CPU_S = 10.0
WAIT_S = 30.0
"""Limit for one file. A dead file system is found by the process that waits here."""

_LENGTH = struct.Struct("<I")
_MOST_BYTES = 256 << 20
_PIECE = 1 << 20


class _Said(msgspec.Struct, frozen=True, array_like=True):
    place: int  # in the list of files
    record: FlightRecord | None = None  # of a rank that is not known yet
    log: LogRead | None = None


_decoder: "msgspec.msgpack.Decoder[_Said]" = msgspec.msgpack.Decoder(_Said)


class Ahead:
    """The processes, as long as the folder is read. Begins with none where they would not pay."""

    def __init__(self, root: Path, paths: Sequence[str], num_processes: int | None = None) -> None:
        num = min(len(os.sched_getaffinity(0)), MOST_PROCESSES) if num_processes is None else num_processes
        self._place = {path: place for place, path in enumerate(paths)}
        self._helpers: list[_Helper | None] = []
        self._ranks: dict[tuple[int, ...], tuple[int, ...]] = {}
        if num > 1 and len(paths) >= LEAST_FILES:
            with contextlib.suppress(OSError):
                for first in range(num):
                    self._helpers.append(_Helper(root, paths, first, num))
        self._num = num

    def __enter__(self) -> "Ahead":
        return self

    def __exit__(self, *_: object) -> None:
        for helper in self._helpers:
            if helper is not None:
                helper.end()
        self._helpers = []

    def record(self, path: str) -> FlightRecord | None:
        """The record in this file, without its rank; None: it is to be read. Files come in the order of `paths`."""
        said = self._said(path)
        return None if said is None or said.record is None else self._shared(said.record)

    def log(self, path: str) -> LogRead | None:
        """Return what was read ahead in this log; None: the caller has to read it."""
        said = self._said(path)
        return None if said is None else said.log

    def _said(self, path: str) -> _Said | None:
        place = self._place[path]
        number = place % self._num if self._helpers else 0
        helper = self._helpers[number] if number < len(self._helpers) else None
        if helper is None:
            return None
        try:
            return helper.hear(place)
        except (OSError, EOFError, ValueError):  # msgspec's errors are ValueErrors
            helper.end()
            self._helpers[number] = None
            return None

    def _shared(self, record: FlightRecord) -> FlightRecord:
        """With one tuple for the ranks of a group that thousands of records list."""
        groups = tuple(msgspec.structs.replace(group, ranks=self._one(group.ranks)) for group in record.groups)
        return msgspec.structs.replace(record, groups=groups, world=self._one(record.world))

    def _one(self, ranks: tuple[int, ...]) -> tuple[int, ...]:
        return self._ranks.setdefault(ranks, ranks)


class _Helper:
    """One process, seen from the one that reads the folder."""

    def __init__(self, root: Path, paths: Sequence[str], first: int, num: int) -> None:
        self._fd, out = os.pipe()
        with contextlib.suppress(OSError):  # a dozen records, so that one that is not scheduled holds up no other
            fcntl.fcntl(out, fcntl.F_SETPIPE_SZ, _PIECE)
        parent = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _limit(parent, out)
                _serve(root, paths, first, num, out)
            finally:
                os._exit(0)
        os.close(out)
        self._data = bytearray()

    def hear(self, place: int) -> _Said:
        """Return what the process read in this file, and skip what it read in earlier ones, which was not asked for.
        Raises OSError, EOFError, ValueError."""
        while True:
            content = self._next()
            said = _decoder.decode(content)
            if said.place > place:
                raise ValueError("it is ahead of what is asked for")
            if said.place == place:
                return said

    def _next(self) -> bytes:
        deadline = time.monotonic() + WAIT_S
        while True:
            length = _LENGTH.unpack_from(self._data)[0] if len(self._data) >= _LENGTH.size else None
            if length is not None and length > _MOST_BYTES:
                raise ValueError("too long a message")
            if length is not None and len(self._data) >= _LENGTH.size + length:
                content = bytes(self._data[_LENGTH.size : _LENGTH.size + length])
                del self._data[: _LENGTH.size + length]
                return content
            if not select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("it says nothing")
            piece = os.read(self._fd, _PIECE)
            if not piece:
                raise EOFError
            self._data += piece

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        os.close(self._fd)


def _limit(parent: int, out: int) -> None:
    """Confine this process, so that a hostile file can do nothing but end it."""
    if not die_with_parent(parent):
        os._exit(0)
    os.closerange(3, out)
    os.closerange(out + 1, os.sysconf("SC_OPEN_MAX"))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    wanted = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (wanted, wanted))


def _serve(root: Path, paths: Sequence[str], first: int, num: int, out: int) -> None:
    for place in range(first, len(paths), num):
        signal.setitimer(signal.ITIMER_PROF, FILE_CPU_S)
        try:
            content = msgspec.msgpack.encode(_read(place, root, paths[place]))
        except Exception:
            content = msgspec.msgpack.encode(_Said(place))
        data = memoryview(_LENGTH.pack(len(content)) + content)
        while data:
            data = data[os.write(out, data) :]


def _read(place: int, root: Path, path: str) -> _Said:
    with regular(root / path, follow=False) as file:
        size = os.fstat(file.fileno()).st_size
        kind = kind_of(file.read(HEAD_BYTES), path)
        file.seek(0)
        if kind is Kind.LOG:
            return _Said(place, log=read_log(read_lines(file, size), rank_in(path)))
        if kind is Kind.PICKLE and size <= torch_pickle.MAX_BYTES:
            return _Said(place, record=_record(file.read(torch_pickle.MAX_BYTES)))
    return _Said(place)


def _record(data: bytes) -> FlightRecord | None:
    raw = torch_pickle.loads(data)
    if not flight.is_flight_record(raw) or flight.is_envelope(raw):
        return None
    return flight.normalise(raw, 0)
