"""Files of one JSON object a line."""

from pathlib import Path
from typing import TypeVar

import msgspec

from everstep.fabric.readers.text import read_bytes
from everstep.fabric.topology.values import FabricError

T = TypeVar("T")


def read_lines(path: str, kind: type[T], what: str, *, is_growing: bool = False) -> list[T]:
    """`is_growing`: somebody writes to it, and its last line may not be whole yet. Raises FabricError."""
    data = read_bytes(Path(path))
    found = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1 if is_growing else None].splitlines(), 1):
        if not line.strip():
            continue
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise FabricError(f"{path}:{number}: not {what}: {error}") from None
    return found
