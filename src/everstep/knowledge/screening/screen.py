"""A set of patterns over whole blocks of text: which line is the next one that any of them may match.

RE2's sets only say whether anything is in a piece, so pieces are galloped over and halved. Pure; used by `engine` with
all screened signatures, and by `look` with those of which no word is known.
"""

import re
from collections.abc import Iterable

import re2

_MEMORY_BYTES = 80 << 20
"""Budget of one automaton, its program included. Too low (64 MiB for 2,650 patterns): what is left for its cache is
filled again and again on text that is rich in near-misses, and such text is read at a fiftieth of the speed."""

MAX_LINE_BYTES = 64 << 10
"""Longer lines are read in windows of this size; each is matched as if it were a line."""
OVERLAP_BYTES = 4 << 10
"""What two windows of a long line share, so that nothing is lost at the cut. What stands in it is counted twice."""
_FIRST_PIECE_BYTES = 2 << 10
_LARGEST_PIECE_BYTES = 256 << 10
_NUM_PARTS = 6

_BOUNDED_GAP = re.compile(r"(?<!\\)\.\{0,\d+\}")
_WORD = re.compile(r"(?<!\\)[A-Za-z_]{2,}")
EVERYDAY = frozenset(
    {"nan", "inf", "rank", "world_size", "loss", "scale", "grad", "gradient", "step", "iteration", "epoch", "cuda"}
    | {"gpu", "nccl", "collective", "dataset", "data", "dataloader", "checkpoint", "ckpt", "torch", "node", "memory"}
    | {"error", "failed", "channel", "version", "config", "index", "thc", "cumem", "vocab", "tokenizer"}
)
"""Words that logs of healthy jobs are full of."""
_WEAK = frozenset(
    {"fail", "failure", "fails", "fatal", "errors", "exception", "timeout", "timed", "invalid", "lost", "abort"}
    | {"aborted", "unable", "cannot", "with", "from", "this", "that", "not", "was", "been", "exceeded", "unknown"}
    | {"found", "detected", "visible", "exist", "exists", "does", "such", "model", "safetensors", "save", "upload"}
    | {"missing", "none", "bytes", "time", "size", "file", "read", "write", "process", "device", "could"}
)
"""Words that are too common to look for by themselves."""


def options(max_bytes: int = _MEMORY_BYTES) -> "re2.Options":
    chosen = re2.Options()
    chosen.max_mem = max_bytes
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.never_nl = True  # no pattern reaches over the end of a line
    chosen.never_capture = True
    chosen.log_errors = False
    return chosen


def without_anchors(pattern: str) -> tuple[str, bool]:
    """The pattern without "^" (outside of classes), and whether there was one."""
    kept: list[str] = []
    in_class = False
    anchored = False
    position = 0
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            kept.append(pattern[position : position + 2])
            position += 2
            continue
        if char == "[" and not in_class:
            in_class = True
            # "]" and "^" right after the bracket belong to the class
            head = re.match(r"\[\^?\]?", pattern[position:])
            assert head is not None
            kept.append(head[0])
            position += len(head[0])
            continue
        if char == "]" and in_class:
            in_class = False
        if char == "^" and not in_class:
            anchored = True
        else:
            kept.append(char)
        position += 1
    return "".join(kept), anchored


def without_bounds(pattern: str) -> str:
    """The pattern with gaps of any length: it matches whatever this one does, with far fewer states."""
    return _BOUNDED_GAP.sub(".*", pattern)


def screen_of(pattern: str) -> str:
    """A pattern that matches whatever this one does, and costs less to look for. `pattern` has no "^".

    A gap of any length needs far fewer states than a bounded one. Where the words before it are everyday ones, the
    automaton would remember in each line that it has seen them, and in which combination with those of other patterns:
    then only what stands behind the gap is looked for.
    """
    screen = without_bounds(pattern)
    head, gap, tail = _split_at_gap(screen)
    if not gap or "(?i)" in head:
        return screen
    words = {word.lower() for word in _WORD.findall(head)}
    rare = {word.lower() for word in _WORD.findall(tail)} - EVERYDAY - _WEAK
    return tail if words and words <= EVERYDAY and any(len(word) > 3 for word in rare) else screen


def _split_at_gap(pattern: str) -> tuple[str, str, str]:
    """Before and behind the first gap outside of groups; no gap where alternatives stand outside too, or none is."""
    depth, position, found = 0, 0, -1
    while position < len(pattern):
        char = pattern[position]
        if char == "\\":
            position += 2
            continue
        if char == "[":
            head = re.match(r"\[\^?\]?(?:\\.|[^\]\\])*\]", pattern[position:])
            position += len(head[0]) if head else 1
            continue
        depth += (char == "(") - (char == ")")
        if depth == 0 and char == "|":
            return pattern, "", ""
        if depth == 0 and found < 0 and pattern.startswith(".*", position):
            found = position
        position += 1
    if found < 0:
        return pattern, "", ""
    return pattern[:found], ".*", pattern[found + 2 :].lstrip("?")


class Screen:
    """The automaton of many patterns, made of bytes of RE2's syntax."""

    def __init__(self, patterns: Iterable[bytes], max_bytes: int = _MEMORY_BYTES) -> None:
        self._set = re2.Set.SearchSet(options(max_bytes))
        self._set.Add(rb"[^\x00-\xff]")  # matches nothing: an empty set cannot be compiled
        for pattern in dict.fromkeys(patterns):
            self._set.Add(b"(?m)" + pattern)
        self._set.Compile()

    def matters(self, text: bytes) -> bool:
        """Whether any line of this text may match a signature. The fast path: one pass, no positions."""
        return bool(self._set.Match(text))

    def next_line(self, data: bytes, position: int, stop: int | None = None) -> tuple[int, int] | None:
        """Begin and end of the first line from `position` on that may match; of a very long line, a window. `stop`:
        where a line ends behind which nothing is looked for.

        Gallops: pieces grow while nothing is found, then the one with a hit is halved. So a hit costs in proportion
        to its distance. (Asking RE2 where it matched would need its automaton for the reversed patterns, which
        falls back to a slow one on text full of near-misses.)
        """
        size = _FIRST_PIECE_BYTES
        last = len(data) if stop is None else stop
        while position < last:
            end = min(last, _line_end(data, min(last, position + size)))
            if self.matters(data[position:end]):
                return self.locate(data, position, end)
            position, size = end, min(2 * size, _LARGEST_PIECE_BYTES)
        return None

    def locate(self, data: bytes, low: int, high: int) -> tuple[int, int] | None:
        """The first line that matters in [low, high), which is known to hold one. Looked for part by part: what is
        behind the first part with a hit is not read again."""
        while True:
            part = max(1, (high - low) // _NUM_PARTS)
            begin, end = low, _line_end(data, low + part)
            while end < high and not self.matters(data[begin:end]):
                begin, end = end, _line_end(data, min(high, end + part))
            if begin > low or end < high:
                low, high = begin, min(end, high)
                continue
            begin = data.rfind(b"\n", low, high - 1) + 1  # one line fills most of it: cut before that
            if begin <= low:
                break
            low, high = (low, begin) if self.matters(data[low:begin]) else (begin, high)
        if high - low <= MAX_LINE_BYTES:
            return low, high - 1 if data[high - 1 : high] == b"\n" else high
        for begin in range(low, high, MAX_LINE_BYTES - OVERLAP_BYTES):
            if self.matters(data[begin : begin + MAX_LINE_BYTES]):
                return begin, min(high, begin + MAX_LINE_BYTES)
        return None


def _line_end(data: bytes, position: int) -> int:
    """After the line that `position` is in, or `position` itself if it begins a line."""
    if position == 0 or data[position - 1 : position] == b"\n":
        return position
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end + 1
