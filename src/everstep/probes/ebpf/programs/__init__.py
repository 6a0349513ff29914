"""The eBPF programs: sources, compiled objects, and a record that proves that they belong together.

`make ebpf` compiles them with clang and writes the record; users and CI need no compiler.
"""

import hashlib
from pathlib import Path

_HERE = Path(__file__).parent
RECORD = _HERE / "compiled.txt"
NAMES = ("sched", "memory")


def path_of(name: str) -> Path:
    """Path of the compiled object."""
    return _HERE / f"{name}.bpf.o"


def record_of(name: str) -> str:
    """A line of the record: the digest of the source with its includes, and the digest of the object."""
    source = b"".join((_HERE / part).read_bytes() for part in (f"{name}.bpf.c", "kernel_types.h", "watched.h"))
    digests = (hashlib.sha256(data).hexdigest() for data in (source, path_of(name).read_bytes()))
    return " ".join((name, *digests))


def record() -> str:
    """The content of `RECORD` if every object was compiled from the source beside it."""
    return "".join(f"{record_of(name)}\n" for name in NAMES)
