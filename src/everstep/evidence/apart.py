"""Reads a folder of foreign files in a process of its own, so that no file can crash, hang or exhaust the caller.

The child interrupts itself at a file that takes too long, and continues with the next. A file that ends the child, or
that it cannot be interrupted in, is left out and listed, and the reading is begun again: a bad file costs only itself.
"""

import contextlib
import os
import selectors
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeAlias

import msgspec

from everstep.analyzer.hangs.diagnosis import Diagnosis
from everstep.analyzer.observations.clusters import Clusters
from everstep.analyzer.observations.records import Case
from everstep.analyzer.slowness.shares import Shares, Table
from everstep.errors import ConfigError
from everstep.evidence.contents import Folder, Unreadable
from everstep.linux import proc
from everstep.model.verdict import Blame, Certainty, Confidence, Verdict

FILE_CPU_S = 30.0
"""CPU time for one file. The largest dump that is read at all takes some seconds."""

GRACE_CPU_S = 10.0
"""More than that without a word: it cannot be interrupted, and is ended."""

SILENT_S = 600.0
"""Without a word and without using the CPU: a dead file system."""

MAX_BAD_FILES = 8
"""Files that may end the child before the reading is given up."""

MEMORY_SHARE = 0.75
LEAST_MEMORY = 1 << 30
_TICK_S = 0.25
_PIECE = 1 << 16


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Request to the child. Paths are bytes in hexadecimal digits: a name need not be Unicode."""

    root: str
    now: float
    world_size: int | None = None
    usual_s: float | None = None  # longest pause that is usual in the job
    with_numbers: bool = False
    with_case: bool = False
    cpu_s: float
    memory_bytes: int | None = None
    skip: dict[str, str] = {}
    stages: int | None = None  # of a trace; None: no trace is expected here


class Begun(msgspec.Struct, frozen=True, tag=True):
    path: str
    cpu_s: float


class Refused(msgspec.Struct, frozen=True, tag=True):
    why: str


class Found(msgspec.Struct, frozen=True, tag=True):
    diagnosis: Diagnosis
    folder: Folder


class Weighed(msgspec.Struct, frozen=True, tag=True):
    """The input is no directory of evidence, but a trace of timed operations."""

    shares: Shares
    table: Table


class Broken(msgspec.Struct, frozen=True, tag=True):
    """All files were read, and then it failed."""

    why: str


Line: TypeAlias = Begun | Refused | Broken | Found | Weighed


class _Ended(msgspec.Struct):
    """The child ended, or was ended, at this file."""

    path: str
    why: str


Child: TypeAlias = subprocess.Popen[bytes]

_decoder: "msgspec.msgpack.Decoder[Line]" = msgspec.msgpack.Decoder(Line)
LENGTH = struct.Struct("<I")
"""Before each message of the child, which is msgpack: JSON has no NaN."""


def read_or_weigh(root: Path, now: float, stages: int = 0, *, file_cpu_s: float = FILE_CPU_S) -> "Found | Weighed":
    """Read something whose kind is not known, as `read_apart` does: perhaps it is a trace of operations."""
    return _read(
        Asked(root=os.fsencode(root.absolute()).hex(), now=now, cpu_s=file_cpu_s, with_numbers=True, stages=stages)
    )


def read_apart(
    root: Path,
    now: float,
    *,
    world_size: int | None = None,
    usual_s: float | None = None,
    with_numbers: bool = False,
    with_case: bool = False,
    file_cpu_s: float = FILE_CPU_S,
    memory_bytes: int | None = None,
    ahead: Child | None = None,
) -> Found:
    """Read a directory of evidence in a child process. Raises ConfigError if it is not one that can be read, and
    nothing for its contents. `ahead`: a child of `start_child`, which is over afterwards."""
    found = _read(
        Asked(
            root=os.fsencode(root.absolute()).hex(),
            now=now,
            world_size=world_size,
            usual_s=usual_s,
            with_numbers=with_numbers,
            with_case=with_case,
            cpu_s=file_cpu_s,
            memory_bytes=memory_bytes,
        ),
        ahead,
    )
    assert isinstance(found, Found), "a trace was not asked for"
    return found


def start_child() -> Child:
    """Start the child. It loads what it needs and waits for requests; it ends with its parent. Raises OSError."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "everstep.evidence.child", "--parent", str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def end_child(child: Child) -> None:
    child.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(5.0)
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _read(asked: Asked, ahead: Child | None = None) -> "Found | Weighed":
    asked = msgspec.structs.replace(asked, memory_bytes=asked.memory_bytes or _memory())
    skip: dict[str, str] = {}
    last = _Ended("", "")
    if ahead is not None and isinstance(answer := _ask(asked, ahead), Found | Weighed):
        return answer  # else as if there had been none
    for _ in range(MAX_BAD_FILES):
        again = msgspec.structs.replace(asked, skip={os.fsencode(path).hex(): why for path, why in skip.items()})
        answer = _ask(again)
        if isinstance(answer, Found | Weighed):
            return answer
        if isinstance(answer, Refused):
            raise ConfigError(answer.why)
        last = answer
        if not answer.path or answer.path in skip:
            break
        skip[answer.path] = answer.why
    return _nothing(asked.now, last.why, skip)


def _ask(asked: Asked, ahead: Child | None = None) -> Found | Weighed | Refused | _Ended:
    child = ahead if ahead is not None else start_child()
    try:
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            child.stdin.write(msgspec.json.encode(asked) + b"\n")
            child.stdin.close()
        return _Listener(child, asked.cpu_s + GRACE_CPU_S).answer()
    finally:
        end_child(child)


class _Listener:
    """Follows one child."""

    def __init__(self, process: "subprocess.Popen[bytes]", cpu_s: float) -> None:
        self._process = process
        self._cpu_s = cpu_s
        self._path = ""
        self._data = bytearray()

    def answer(self) -> Found | Weighed | Refused | _Ended:
        heard_at, used_s = time.monotonic(), 0.0
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while True:
                if selector.select(_TICK_S):
                    data = os.read(self._process.stdout.fileno(), _PIECE)
                    if not data:
                        return self._gone()
                    heard_at, used_s = time.monotonic(), self._used_s()
                    found = self._take(data)
                    if found is not None:
                        return found
                elif self._used_s() - used_s > self._cpu_s:
                    return _Ended(self._path, f"gave nothing within {self._cpu_s:g} s of CPU time")
                elif time.monotonic() - heard_at > SILENT_S:
                    return _Ended(self._path, f"could not be read within {SILENT_S:g} s")

    def _take(self, data: bytes) -> Found | Weighed | Refused | _Ended | None:
        self._data += data
        while len(self._data) >= LENGTH.size:
            end = LENGTH.size + LENGTH.unpack_from(self._data)[0]
            if len(self._data) < end:
                return None
            line = _decoder.decode(memoryview(self._data)[LENGTH.size : end].tobytes())
            del self._data[:end]
            if isinstance(line, Broken):
                return _Ended("", line.why)
            if not isinstance(line, Begun):
                return line
            self._path = os.fsdecode(bytes.fromhex(line.path))
            self._cpu_s = line.cpu_s + GRACE_CPU_S
        return None

    def _gone(self) -> _Ended:
        self._process.wait()
        how = self._process.returncode
        said = f"signal {-how}" if how < 0 else f"exit code {how}"
        return _Ended(
            self._path, f"the process that read it ended ({said}): it needs more memory or time than there is"
        )

    def _used_s(self) -> float:
        """CPU time of the child: what others do on this machine does not count."""
        try:
            return time.clock_gettime(~self._process.pid << 3 | 2)  # CPUCLOCK_SCHED of that process
        except OSError:
            return 0.0


def _memory() -> int:
    """Most of what is free now."""
    free = proc.available_bytes()
    if free is None:
        return 4 * LEAST_MEMORY
    return max(LEAST_MEMORY, int(MEMORY_SHARE * free))


def nothing_known(why: str, at: float) -> Verdict:
    """Nothing could be concluded, and why."""
    return Verdict(
        code="ES-H15",
        sentence=why,
        blame=Blame.UNKNOWN,
        confidence=Confidence.LOW,
        at=at,
        certainty=Certainty.DOUBTFUL,
        because="nothing is known of what keeps the job",
    )


def _nothing(now: float, why: str, skip: dict[str, str]) -> Found:
    sentence = f"the evidence cannot be read: {why}"
    verdict = nothing_known(sentence, now)
    unreadable = tuple(Unreadable(file=path, why=why) for path, why in skip.items())
    folder = Folder(
        case=Case(at=now, ranks=()),
        points={},
        notes=(sentence,),
        unreadable=unreadable,
        num_files=len(unreadable),
        generation=None,
    )
    clusters = Clusters(healthy=(), outliers=())
    diagnosis = Diagnosis(verdict=verdict, limit_s=None, group=None, clusters=clusters, findings=())
    return Found(diagnosis=diagnosis, folder=folder)
