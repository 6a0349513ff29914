"""The head of an HTTP request, before it is parsed: whether what has come may still become one. Pure.

aiohttp reports what is wrong with a request, but keeps what was sent for as long as its error, and asks for more. So it
gets a whole head at once, or nothing.
"""

import re

MAX_BYTES = 32 << 10
"""Limit of a head: as much as a browser sends that carries the cookies of every program on this machine."""

_END = b"\r\n\r\n"
_MAX_LINE = 8190  # aiohttp's own limit
_LINE = re.compile(rb"[A-Z]{1,16} [!-~]{1,%d} HTTP/1\.[01]\r" % _MAX_LINE)
_BEGUN = re.compile(rb"[A-Z]{0,16}|[A-Z]{1,16} [!-~]{0,%d}( [!-~]{0,8}\r?)?" % _MAX_LINE)


class NoRequestError(Exception):
    """`status`: to answer with."""

    def __init__(self, why: str, status: int = 400) -> None:
        super().__init__(why)
        self.status = status


class Head:
    """Collects one. Memory: `MAX_BYTES` and one piece."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._line_is_whole = False

    def add(self, piece: bytes) -> bytes | None:
        """All that has come, once the head is in it; None: more must come. Raises NoRequestError and keeps nothing."""
        begin = max(0, len(self._bytes) - len(_END))
        self._bytes += piece
        try:
            self._check_line()
            if self._bytes.find(_END, begin) >= 0:
                return bytes(self._bytes)
            if len(self._bytes) > MAX_BYTES:
                raise NoRequestError("a request of too many bytes", 431)
        except NoRequestError:
            self._bytes.clear()
            raise
        return None

    def _check_line(self) -> None:
        if self._line_is_whole:
            return
        line, newline, _ = self._bytes.partition(b"\n")
        if not (_LINE if newline else _BEGUN).fullmatch(line):
            raise NoRequestError("not an HTTP request")
        self._line_is_whole = bool(newline)
