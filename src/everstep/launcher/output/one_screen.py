"""Several ranks on one screen, without writing into the middle of another's line. Pure.

`python -u` writes `print("step", 3)` in four pieces, so pieces of two ranks come mixed. A rank that has begun a line
has the screen until it ends; the others wait, but never for long, because a question at a prompt and a progress bar
have no end of line. While no other rank waits, every piece is shown at once.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

PATIENCE_S = 0.3
MAX_WAITING = 1 << 20
"""Limit of bytes that wait; above, they are shown even in the middle of a line."""

_LINE_END = re.compile(rb"\r?\n|\r")


@dataclass(eq=False)
class _Piece:
    owner: object
    stream: int
    data: bytes
    since: float


class OneScreen:
    """`write` takes a stream and bytes. Times in seconds, of any clock that does not go back."""

    def __init__(self, write: Callable[[int, bytes], None]) -> None:
        self._write = write
        self._waiting: list[_Piece] = []
        self._begun_by: object | None = None  # its line has no end yet

    def show(self, owner: object, stream: int, data: bytes, now: float) -> None:
        """Show what `owner` wrote to `stream`: at once, or when its turn comes."""
        self._waiting.append(_Piece(owner, stream, data, now))
        self._show_turns()
        self.look(now)

    def look(self, now: float) -> None:
        """Show what has waited for long enough."""
        while self._waiting and (now - self._waiting[0].since > PATIENCE_S or self._num_waiting() > MAX_WAITING):
            self._begun_by = None
            self._show_turns()

    def finish(self) -> None:
        """Show all that waits: nothing more comes."""
        while self._waiting:
            self._begun_by = None
            self._show_turns()
        self._begun_by = None

    def _show_turns(self) -> None:
        """Each piece that may be shown, in the order in which they came."""
        while piece := self._next():
            others_wait = any(other.owner is not piece.owner for other in self._waiting)
            ends = _LINE_END.search(piece.data) if piece.owner is self._begun_by and others_wait else None
            data, piece.data = (piece.data[: ends.end()], piece.data[ends.end() :]) if ends else (piece.data, b"")
            if not piece.data:
                self._waiting.remove(piece)
            self._write(piece.stream, data)
            self._begun_by = None if data.endswith((b"\n", b"\r")) else piece.owner

    def _next(self) -> _Piece | None:
        """The oldest piece that waits, or the oldest of the rank that has begun a line."""
        if self._begun_by is None:
            return self._waiting[0] if self._waiting else None
        return next((piece for piece in self._waiting if piece.owner is self._begun_by), None)

    def _num_waiting(self) -> int:
        return sum(len(piece.data) for piece in self._waiting)
