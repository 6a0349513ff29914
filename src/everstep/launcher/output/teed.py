"""One stream that --tee names, as torchrun shows it: text, line by line, each with its rank's prefix. Pure.

torchrun reads the file with Python's universal newlines: a carriage return ends a line as a line feed does, and bytes
that are no UTF-8 become U+FFFD. An unfinished line (a question at a prompt) is shown once it has been one for a while,
and its rest follows without another prefix.
"""

import codecs
import io

PATIENCE_S = 0.3
MAX_REST = 64 << 10
"""Characters of an unfinished line that are held back."""


class TeedLines:
    """`feed` what was written, `rest` when nothing came for a while, `finish` at the end."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._decoder = io.IncrementalNewlineDecoder(
            codecs.getincrementaldecoder("utf-8")(errors="replace"), translate=True
        )
        self._rest = ""
        self._is_open = False  # the beginning of this line is shown already

    def feed(self, data: bytes) -> list[str]:
        """Whole lines that this completes, with their prefix."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        shown = [self._mark(line) + "\n" for line in lines]
        return [*shown, *self.rest()] if len(self._rest) > MAX_REST else shown

    @property
    def has_rest(self) -> bool:
        return bool(self._rest)

    def rest(self) -> list[str]:
        """The unfinished line as far as it goes."""
        if not self._rest:
            return []
        text, self._rest = self._rest, ""
        marked, self._is_open = self._mark(text), True
        return [marked]

    def finish(self) -> list[str]:
        return [*self.feed(b""), *self._end()]

    def _end(self) -> list[str]:
        self._rest += self._decoder.decode(b"", final=True)
        return self.rest()

    def _mark(self, text: str) -> str:
        prefix = "" if self._is_open else self._prefix
        self._is_open = False
        return prefix + text
