"""The signatures compiled for google-re2: a screen for whole blocks of text, sets for single lines.

Why RE2 (docs/adr/0010): every operation is linear in the text whatever the patterns and the text are, its sets find all
matching patterns in one pass, and it is maintained with wheels for every platform of ours. Texts are bytes, so that
garbage is no special case. Called by `loading` (to refuse bad patterns) and `matcher`.
"""

import re
import threading
from collections.abc import Iterable
from functools import lru_cache

import re2

from everstep.knowledge.causality.finished import LANDMARKS as FINISHED
from everstep.knowledge.causality.tone import Tone
from everstep.knowledge.screening.look import Look, Sieve
from everstep.knowledge.screening.screen import Screen, options, screen_of, without_anchors
from everstep.knowledge.signature import Signature

SIEVE_AFTER_BYTES = 256 << 10
"""The sieve takes half a second to make. So much text takes 0.1 to 0.8 s without it."""

LANDMARKS = (
    rb"Traceback \(most recent call last\)",
    rb"Root Cause \(first observed failure\)",
    b"Exception ignored in",
    b"Error in atexit._run_exitfuncs",
    b"--- Logging error ---",
    b'"message\\\\*": ?\\\\*"(?:[A-Za-z_]\\w*\\.)*[A-Z]\\w*(?:Error|Exception|Interrupt|Exit)\\b',
    *FINISHED,
)
"""Begins of blocks, and last words of a program: the screen has to stop at them, whatever the signatures say."""

_LEVEL_WITHIN_BYTES = 160
"""A log level stands near the begin of a line; further on it is a part of what is said."""

_CONTEXT = rb"(?i:error|exception|fatal|fail|critical|panic|traceback|abort|cannot|denied|unable)|^E\d{4} |\bE: "
_LOGGED_AS_ERROR = re.compile(rb"(?:^|\) )(?:ERROR|CRITICAL) \d\d-\d\d \d\d:")
"""A prefix that is taken off the message, and says what the message need not say again."""
_OF_PROGRAMS = frozenset({"storage", "network", "python", "training", "pytorch_dist", "nccl"})
"""Components of programs and their libraries: a request that is retried is no fault yet."""
_FORK = re.compile(rb"\b(?:CCOM|BKCL|[A-GI-MO-QS-Z]CCL)(?= (?:WARN|INFO|ERROR|TRACE) )")
"""Libraries made out of NCCL print its lines under a name of their own, as long as NCCL's. HCCL is not one."""


def as_nccl(text: bytes) -> bytes:
    """The text with the names of forks of NCCL replaced; its length stays."""
    return _FORK.sub(b"NCCL", text) if b"CCL " in text or b"CCOM " in text else text


_OWNED = (
    rb"\bUCX {1,4}(?:ERROR|WARN|FATAL|DIAG)\b|\blibfabric:|\b[A-Z]{1,5}CC?L (?:WARN|ERROR)\b|\bCCOM WARN\b"
    rb"|\bmlx[45]_\w+\b|\binfiniband \w|\bamdgpu\b|\bNVRM\b|\bhabanalabs\b|\bbnxt_\w+\b|\befa_\w+\b|\bnvidia-\w+:"
)
"""A library or driver that says in front of the line whose it is. A word of errno behind that is what it got from a
device; it says nothing of a file."""
_OF_FILES = frozenset({"fs", "storage", "disk"})
_CALM = (
    rb"(?: - |\[|\|)\s{0,4}(?:INFO|DEBUG|TRACE)\s{0,4}(?: - |\]|\|)"
    rb"|\] (?:INFO|DEBUG):? |\d (?:INFO|DEBUG) |^(?:INFO|DEBUG):"
    rb"|(?:^|\) )(?:INFO|DEBUG|WARNING) \d\d-\d\d \d\d:"
    rb"|level=(?:info|debug)|\bNCCL (?:INFO|TRACE)\b|^\[?I\d{3,4} |\[I [\w./]{1,80}\.(?:cpp|cc|h|hpp|cu)\b"
)
"""A program logged this line as information: whatever words it contains, nothing failed."""


_QUOTED = re.compile(
    rb"(?i)\b(?:last|original|underlying|inner|root) (?:error|exception|cause)(?: (?:was|is))?: (?=\S)"
)
"""Behind it a program that gave up repeats what a library had told it."""


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


class Engine:
    """Compiled signatures. `look` finds lines that may matter in a block, `match` says what one line is."""

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures: tuple[Signature, ...] = tuple(signatures)
        self.fallback = next((s for s in self.signatures if s.family == "traceback"), None)  # of an unknown exception
        self._floating = re2.Set.SearchSet(options())
        self._anchored = re2.Set.SearchSet(options())
        self._floating_owners: list[int] = []
        self._anchored_owners: list[int] = []
        screens: list[bytes] = list(LANDMARKS)
        self._wanted = [landmark.decode() for landmark in LANDMARKS]
        self._sieve: Sieve | None = None
        self._num_read = 0
        self._preparing = threading.Lock()
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
                    self._wanted.append(bare)
        self._screen = Screen(screens)
        self._compile()

    def _compile(self) -> None:
        # An empty set cannot be compiled; this pattern matches nothing.
        for compiled, owners in ((self._floating, self._floating_owners), (self._anchored, self._anchored_owners)):
            compiled.Add(rb"[^\x00-\xff]")
            owners.append(-1)
            compiled.Compile()
        self._context = re2.compile(_CONTEXT, options())
        self._calm = re2.compile(_CALM, options())
        self._owned = re2.compile(_OWNED, options())
        self._tone = Tone(options())
        self._negatives = {
            index: re2.compile(b"|".join(n.encode() for n in signature.negatives), options())
            for index, signature in enumerate(self.signatures)
            if signature.negatives
        }

    def matters(self, text: bytes) -> bool:
        """Whether any line of this text may match a signature. One pass, no positions."""
        return self._screen.matters(as_nccl(text))

    def look(self, data: bytes, *, may_prepare: bool = True) -> Look:
        """For the lines of this text that may match a signature, in their order. `may_prepare`: whether most of a
        second may be spent now on reading faster from here on."""
        self._num_read += len(data)
        if may_prepare and self._sieve is None and self._num_read > SIEVE_AFTER_BYTES:
            self.prepare()
        return Look(as_nccl(data), self._screen, self._sieve)

    def prepare(self) -> None:
        """Makes what reads much text fast, unless another thread is making it."""
        if self._preparing.acquire(blocking=False):
            try:
                self._sieve = self._sieve or Sieve(self._wanted)
            finally:
                self._preparing.release()

    def match(
        self, line: bytes, message: bytes, *, in_traceback: bool = False, from_kernel: bool = False
    ) -> Signature | None:
        """The most specific signature of a line. `message` is the line without stamps and tags. What the line supposes
        about itself counts only if what it reports says nothing; an error that it quotes, if that says more."""
        line, message = as_nccl(line), as_nccl(message)
        found = self._said(line, message, in_traceback=in_traceback, from_kernel=from_kernel)
        quoted = _QUOTED.search(message)
        if quoted is None:
            return found
        inner = message[quoted.end() :]
        told = self._match(inner, inner, in_traceback=in_traceback, from_kernel=from_kernel, whole=(line, message))
        if told is None or told.is_unknown or (found is not None and told.specificity <= found.specificity):
            return found
        return told

    def _said(self, line: bytes, message: bytes, *, in_traceback: bool, from_kernel: bool) -> Signature | None:
        reported = self._tone.reported(message)
        if reported and len(reported) < len(message):
            said = line[: len(line) - (len(message) - len(reported))] if line.endswith(message) else reported
            found = self._match(said, reported, in_traceback=in_traceback, from_kernel=from_kernel)
            if found is not None and not found.is_unknown:
                return found
        return self._match(line, message, in_traceback=in_traceback, from_kernel=from_kernel)

    def _match(
        self,
        line: bytes,
        message: bytes,
        *,
        in_traceback: bool,
        from_kernel: bool,
        whole: tuple[bytes, bytes] | None = None,
    ) -> Signature | None:
        """`whole`: line and message that this is quoted in: they say how it was logged, and whether it is source."""
        hits = {self._floating_owners[i] for i in self._floating.Match(line) or ()}
        hits.update(self._anchored_owners[i] for i in self._anchored.Match(message) or ())
        if not hits:
            return None
        logged, said = whole or (line, message)
        head = logged[:_LEVEL_WITHIN_BYTES]
        calm, coped = self._calm.search(head) is not None, False
        if not (in_traceback or from_kernel):
            if self._tone.is_source(said):
                return None
            calm, coped = calm or self._tone.is_warning(head), self._tone.is_coped_with(said, head)
        best: Signature | None = None
        for index in sorted(hits):
            signature = self.signatures[index]
            if best is not None and signature.specificity <= best.specificity:
                continue
            if signature.component in _OF_FILES and self._owned.search(head) is not None:
                continue
            is_information = (coped and not _spoken_by_drivers(signature)) or (calm and not signature.any_level)
            if is_information and signature.action.acts:
                continue
            if signature.context and not in_traceback and not self._speaks_of_an_error(message, head):
                continue
            if index in self._negatives and self._negatives[index].search(line) is not None:
                continue
            best = signature
        return best

    def _speaks_of_an_error(self, message: bytes, head: bytes) -> bool:
        return self._context.search(message) is not None or _LOGGED_AS_ERROR.search(head) is not None

    def is_calm(self, line: bytes, message: bytes) -> bool:
        """Whether this line was logged as information or as a warning, and not by a library that logs its errors so, or
        says itself that the program got over it."""
        head = line[:_LEVEL_WITHIN_BYTES]
        is_level = self._calm.search(head) is not None or self._tone.is_warning(head)
        return is_level or self._tone.is_coped_with(message, head)

    def is_source(self, message: bytes) -> bool:
        """Whether this is printed source. `message` begins with its first visible character."""
        return self._tone.is_source(message)

    def harmless_words(self, message: bytes) -> bytes:
        """For a line that matched nothing: the words that make it, and any other line that has them, harmless."""
        return self._tone.repeated_words(message)


def _spoken_by_drivers(signature: Signature) -> bool:
    """Whether its lines are the kernel's, a driver's or a daemon's, whose levels and words are not a program's."""
    return signature.any_level and signature.component not in _OF_PROGRAMS
