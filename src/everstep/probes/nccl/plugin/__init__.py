"""NCCL's profiler plug-in: source, compiled libraries, and a record that proves that they belong together.

`make nccl-plugin` compiles it for the machine that it runs on; users and CI need no compiler. It has never run under a
real NCCL.
"""

import hashlib
import platform
from pathlib import Path

_HERE = Path(__file__).parent
RECORD = _HERE / "compiled.txt"
SOURCES = ("everstep_profiler.c", "profiler_interface.h")


def path_of(machine: str) -> Path:
    """Path of the library for machines of this kind, as `uname -m` names them. It may not exist."""
    return _HERE / f"everstep_profiler-{machine}.so"


def library() -> Path | None:
    """The library for this machine. None: there is none for machines of this kind."""
    path = path_of(platform.machine())
    return path if path.exists() else None


def record() -> str:
    """The content of `RECORD` if every library was compiled from the sources beside it: digests of both."""
    source = b"".join((_HERE / name).read_bytes() for name in SOURCES)
    found = sorted(_HERE.glob("everstep_profiler-*.so"))
    return "".join(
        f"{path.name} {hashlib.sha256(source).hexdigest()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in found
    )
