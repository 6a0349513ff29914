"""Sees which variables the program asks for: the dictionary below `os.environ`, until it is parked.

A spare, which does not know yet which rank it will be, must be parked at the first question. A twin must not be used
when a variable that the program has read since has another value now.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # `typing` would be imported before the program imports it
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType

IDENTITY = frozenset(
    {
        b"RANK", b"LOCAL_RANK", b"GROUP_RANK", b"ROLE_RANK", b"ROLE_NAME", b"WORLD_SIZE", b"LOCAL_WORLD_SIZE",
        b"ROLE_WORLD_SIZE", b"GROUP_WORLD_SIZE", b"MASTER_ADDR", b"MASTER_PORT", b"TORCHELASTIC_RESTART_COUNT",
        b"TORCHELASTIC_MAX_RESTARTS", b"TORCHELASTIC_RUN_ID", b"TORCHELASTIC_USE_AGENT_STORE",
        b"TORCHELASTIC_ERROR_FILE", b"EVERSTEP_GENERATION", b"EVERSTEP_RESUME_STEP", b"EVERSTEP_SLOT",
    }
)  # fmt: skip
"""What the launcher says of a rank; the rest is the user's own and the same for all."""

OF_ONE_GENERATION = ("EVERSTEP_GENERATION", "TORCHELASTIC_RESTART_COUNT")
"""Of those, the ones whose value changes with each generation: a process that has read one cannot continue in the
next."""

NAMES = b"(all names)"
"""Recorded when the program lists all variables: a spare lacks some of them. For a rank that is harmless: the names are
the same in all generations."""


class Asked(dict[bytes, bytes]):
    """The variables themselves, and a record of those that were read."""

    def __init__(self, variables: dict[bytes, bytes], on_question: Callable[[bytes], None]) -> None:
        super().__init__(variables)
        self._on_question = on_question

    def __getitem__(self, name: bytes) -> bytes:
        if name in IDENTITY:
            self._on_question(name)
        now: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        return dict.__getitem__(self if now is self else now, name)  # parked meanwhile: others may be the answers

    def __iter__(self) -> Iterator[bytes]:
        """Listing which variables exist also reveals whether this is a rank."""
        self._on_question(NAMES)
        now: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        return dict.__iter__(self if now is self else now)

    def __len__(self) -> int:
        self._on_question(NAMES)
        now: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
        return dict.__len__(self if now is self else now)


def why_of_one_generation(asked: Collection[str]) -> str:
    """Why a twin of a process that has read these would be valid in this generation only: an earlier one is made ready
    then. Empty if it would not."""
    found = [name for name in OF_ONE_GENERATION if name in asked]
    return f"the program has read {found[0]}, which each generation changes" if found else ""


def is_environment(frame: FrameType) -> bool:
    """It is in the functions of `os.environ` itself."""
    return frame.f_code.co_filename in ("<frozen os>", os.__file__) or "_collections_abc" in frame.f_code.co_filename


def is_walking(frame: FrameType | None) -> bool:
    """Whether the program iterates over all variables."""
    while frame is not None and is_environment(frame):
        if frame.f_code.co_name in _WALKS:
            return True
        frame = frame.f_back
    return False


_WALKS = frozenset({"__iter__", "items", "values", "copy", "__repr__"})


def watch(on_question: Callable[[bytes], None]) -> None:
    """`on_question` is called before each answer about IDENTITY, and may change what the answer is."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    _put(Asked(data, on_question))


def leave() -> None:
    """A plain dictionary again."""
    _put(dict(os.environ._data))  # type: ignore[attr-defined]


def _put(data: dict[bytes, bytes]) -> None:
    os.environ._data = data  # type: ignore[attr-defined]
    os.environb._data = data  # type: ignore[attr-defined]
