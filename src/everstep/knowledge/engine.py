"""The signatures compiled for google-re2: a screen for whole blocks of text, sets for single lines.

Why RE2 (docs/adr/0010): every operation is linear in the text whatever the patterns and the text are, its sets tell all
matching patterns in one pass, and it is maintained with wheels for every platform of ours. Texts are bytes, so that
garbage is no special case. Called by `loading` (to refuse bad patterns) and `matcher`.
"""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import re2

from everstep.knowledge.causality.finished import LANDMARKS as FINISHED
from everstep.knowledge.causality.tone import Tone
from everstep.knowledge.signature import Signature

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

LANDMARKS = (
    rb"Traceback \(most recent call last\)",
    rb"Root Cause \(first observed failure\)",
    b"Exception ignored in",
    b"Error in atexit._run_exitfuncs",
    b"--- Logging error ---",
    *FINISHED,
)
"""Begins of blocks, and last words of a program: the screen has to stop at them, whatever the signatures say."""

_LEVEL_WITHIN_BYTES = 160
"""A log level stands near the begin of a line; further on it is a part of what is said."""

_CONTEXT = rb"(?i:error|exception|fatal|fail|critical|panic|traceback|abort|cannot|denied|unable)|^E\d{4} |\bE: "
_OF_PROGRAMS = frozenset({"storage", "network", "python", "training", "pytorch_dist", "nccl"})
"""Components of which programs and their libraries tell: a request that is tried again is no fault yet."""
_CALM = (
    rb"(?: - |\[|\|)\s{0,4}(?:INFO|DEBUG|TRACE)\s{0,4}(?: - |\]|\|)"
    rb"|\] (?:INFO|DEBUG):? |\d (?:INFO|DEBUG) |^(?:INFO|DEBUG):"
    rb"|level=(?:info|debug)|\bNCCL (?:INFO|TRACE)\b|^\[?I\d{3,4} "
)
"""A program logged this line as information: whatever words it contains, nothing failed."""
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


def options() -> "re2.Options":
    chosen = re2.Options()
    chosen.max_mem = _MEMORY_BYTES
    chosen.encoding = re2.Options.Encoding.LATIN1
    chosen.never_nl = True  # no pattern reaches over the end of a line
    chosen.never_capture = True
    chosen.log_errors = False
    return chosen


@lru_cache(maxsize=1)
def _options_for_checks() -> "re2.Options":
    return options()


def refusal(pattern: str) -> str:
    """Why this pattern cannot be used; empty if it can."""
    try:
        compiled = re2.compile(pattern.encode(), _options_for_checks())
    except re2.error as error:
        return f"not a pattern of RE2: {_reason(error)}"
    if compiled.search(b"") is not None or compiled.search(b"q") is not None:
        return "matches lines that say nothing"
    return ""


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else error
    return first.decode(errors="replace") if isinstance(first, bytes) else str(first)


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


def screen_of(pattern: str) -> str:
    """A pattern that matches whatever this one does, and costs less to look for. `pattern` has no "^".

    A gap of any length needs far fewer states than a bounded one. Where the words before it are everyday ones, the
    automaton would remember in each line that it has seen them, and in which combination with those of other patterns:
    then only what stands behind the gap is looked for.
    """
    screen = _BOUNDED_GAP.sub(".*", pattern)
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


class Engine:
    """Compiled signatures. `next_line` finds lines that may matter in a block, `match` says what one line is."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures: tuple[Signature, ...] = tuple(signatures)
        self._floating = re2.Set.SearchSet(options())
        self._anchored = re2.Set.SearchSet(options())
        self._floating_owners: list[int] = []
        self._anchored_owners: list[int] = []
        screens: list[bytes] = list(LANDMARKS)
        self._screen = re2.Set.SearchSet(options())
        for index, signature in enumerate(self.signatures):
            for pattern in signature.patterns:
                bare, anchored = without_anchors(pattern)
                owners, compiled = (
                    (self._anchored_owners, self._anchored) if anchored else (self._floating_owners, self._floating)
                )
                compiled.Add(pattern.encode())
                owners.append(index)
                if signature.screened:
                    screens.append(screen_of(bare).encode())
        self._compile(screens)

    def _compile(self, screens: Sequence[bytes]) -> None:
        # An empty set cannot be compiled; this pattern matches nothing.
        for compiled, owners in ((self._floating, self._floating_owners), (self._anchored, self._anchored_owners)):
            compiled.Add(rb"[^\x00-\xff]")
            owners.append(-1)
            compiled.Compile()
        for screen in dict.fromkeys(screens):
            self._screen.Add(b"(?m)" + screen)
        self._screen.Compile()
        self._context = re2.compile(_CONTEXT, options())
        self._calm = re2.compile(_CALM, options())
        self._tone = Tone(options())
        self._negatives = {
            index: re2.compile(b"|".join(n.encode() for n in signature.negatives), options())
            for index, signature in enumerate(self.signatures)
            if signature.negatives
        }

    def matters(self, text: bytes) -> bool:
        """Whether any line of this text may match a signature. The fast path: one pass, no positions."""
        return bool(self._screen.Match(text))

    def next_line(self, data: bytes, position: int) -> tuple[int, int] | None:
        """Begin and end of the first line from `position` on that may match; of a very long line, a window.

        Gallops: pieces grow while nothing is found, then the one with a hit is halved. So a hit costs in proportion
        to its distance. (Asking RE2 where it matched would need its automaton for the reversed patterns, which
        falls back to a slow one on text full of near-misses.)
        """
        size = _FIRST_PIECE_BYTES
        while position < len(data):
            end = _line_end(data, min(len(data), position + size))
            if self.matters(data[position:end]):
                return self._locate(data, position, end)
            position, size = end, min(2 * size, _LARGEST_PIECE_BYTES)
        return None

    def _locate(self, data: bytes, low: int, high: int) -> tuple[int, int] | None:
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

    def match(
        self, line: bytes, message: bytes, *, in_traceback: bool = False, from_kernel: bool = False
    ) -> Signature | None:
        """The most specific signature of a line. `message` is the line without stamps and tags. What the line supposes
        about itself counts only if what it reports says nothing."""
        reported = self._tone.reported(message)
        if reported and len(reported) < len(message):
            said = line[: len(line) - (len(message) - len(reported))] if line.endswith(message) else reported
            found = self._match(said, reported, in_traceback=in_traceback, from_kernel=from_kernel)
            if found is not None and not found.is_unknown:
                return found
        return self._match(line, message, in_traceback=in_traceback, from_kernel=from_kernel)

    def _match(self, line: bytes, message: bytes, *, in_traceback: bool, from_kernel: bool) -> Signature | None:
        hits = {self._floating_owners[i] for i in self._floating.Match(line) or ()}
        hits.update(self._anchored_owners[i] for i in self._anchored.Match(message) or ())
        if not hits:
            return None
        head = line[:_LEVEL_WITHIN_BYTES]
        calm, coped = self._calm.search(head) is not None, False
        if not (in_traceback or from_kernel):
            if self._tone.is_source(message):
                return None
            calm, coped = calm or self._tone.is_warning(head), self._tone.is_coped_with(message, head)
        best: Signature | None = None
        for index in sorted(hits):
            signature = self.signatures[index]
            if best is not None and signature.specificity <= best.specificity:
                continue
            is_information = (coped and not _spoken_by_drivers(signature)) or (calm and not signature.any_level)
            if is_information and signature.action.acts:
                continue
            if signature.context and not in_traceback and self._context.search(message) is None:
                continue
            if index in self._negatives and self._negatives[index].search(line) is not None:
                continue
            best = signature
        return best

    def is_source(self, message: bytes) -> bool:
        """Whether this is printed source. `message` begins with its first visible character."""
        return self._tone.is_source(message)

    def harmless_words(self, message: bytes) -> bytes:
        """Of a line that matched nothing: the words that make it, and any other line that has them, harmless."""
        return self._tone.repeated_words(message)


def _spoken_by_drivers(signature: Signature) -> bool:
    """Whether its lines are the kernel's, a driver's or a daemon's, whose levels and words are not a program's."""
    return signature.any_level and signature.component not in _OF_PROGRAMS


def _line_end(data: bytes, position: int) -> int:
    """After the line that `position` is in, or `position` itself if it begins a line."""
    if position == 0 or data[position - 1 : position] == b"\n":
        return position
    end = data.find(b"\n", position)
    return len(data) if end < 0 else end + 1
