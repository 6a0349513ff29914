"""Remembers over a crash which input the controller died of, so that it is not taken again for ever.

Two crashes on the same input, and it is skipped and counted. Kept in `controller.crash.json`; a disk that cannot
take it costs only the memory.
"""

import contextlib
from pathlib import Path

import msgspec

from everstep.linux.regular import read_regular

NOTE_NAME = "controller.crash.json"
MAX_CRASHES = 2


class _Note(msgspec.Struct, kw_only=True):
    key: str = ""
    num_crashes: int = 0
    why: str = ""


class Poison:
    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / NOTE_NAME
        self._note = _Note()
        with contextlib.suppress(OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self._note = msgspec.json.decode(read_regular(self._path), type=_Note)

    @property
    def why(self) -> str:
        return self._note.why

    @property
    def is_known(self) -> bool:
        """Whether anything is: what a report is recognised by takes longer to make than the report to handle."""
        return self._note.num_crashes >= MAX_CRASHES

    def is_poison(self, key: str) -> bool:
        return self._note.key == key and self._note.num_crashes >= MAX_CRASHES

    def crashed(self, key: str, why: str) -> None:
        times = self._note.num_crashes + 1 if self._note.key == key else 1
        self._note = _Note(key=key, num_crashes=times, why=why)
        with contextlib.suppress(OSError):
            self._path.write_bytes(msgspec.json.encode(self._note))
