"""Readers of files with one JSON object per line."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.fabric.readers.text import read_bytes
from everstep.fabric.topology.values import FabricError
from everstep.linux.regular import regular

T = TypeVar("T")


def read_lines(path: str, kind: type[T], what: str, *, is_growing: bool = False) -> list[T]:
    """All lines of a file. `is_growing`: a writer may not have finished the last line yet. Raises FabricError."""
    data = read_bytes(Path(path), "file")
    return _decoded(data[: data.rfind(b"\n") + 1 if is_growing else None], path, kind, what)


def read_newest_lines(path: Path, kind: type[T], what: str, most_bytes: int) -> list[T]:
    """The complete lines in the last `most_bytes` of a file that may have grown for hours. Raises FabricError."""
    try:
        with regular(path) as file:
            begin = max(0, os.fstat(file.fileno()).st_size - most_bytes)
            file.seek(begin)
            data = file.read(most_bytes)
    except OSError as error:
        raise FabricError(f"{path}: cannot be read: {error.strerror}") from None
    first = data.find(b"\n") + 1 if begin else 0
    return _decoded(data[first : data.rfind(b"\n") + 1], str(path), kind, what, is_whole=not begin)


def _decoded(data: bytes, path: str, kind: type[T], what: str, *, is_whole: bool = True) -> list[T]:
    found = []
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            place = f"{path}:{number}" if is_whole else f"{path}: a line near its end"
            raise FabricError(f"{place}: not {what}: {error}") from None
    return found
