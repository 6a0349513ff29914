"""How a line is meant: source code that was printed, a warning about what the program copes with, or neither.

Words alone do not make a fault: `raise ValueError("CUDA out of memory")` in a listing is what a program *could* say,
and "connection refused, retrying (2/5)" is what it got over. Pure. Called by `engine` for lines that match a signature.
"""

import re2

from everstep.knowledge.causality.repeats import wording

_SOURCE = (
    rb"^(?:\d{1,6}[:|>]?\s{1,12}|[+-]\s{0,8})?(?:"
    rb"raise\s+[\w.]+\s*\(|raise [\w.]+$|assert\s+[\w.(].*,\s*f?[\"']|return\s+[\w.]+\("
    rb"|(?:if|elif|while|for|with)\s.*:$"
    rb"|except\b.*:$|(?:async )?def \w+\(|class \w+.*:$|(?:self\.)?(?:_?log(?:ger|ging)?|warnings)\.\w+\(|print\("
    rb"|(?:sys\.|os\._?)?exit\(-?\d*\)$|throw\s+[\w:]+\s*\(|(?:TORCH_CHECK\w*|AT_ERROR|[A-Z]+CHECK)\s*\("
    rb"|(?:[a-z_]\w*\.)+[a-z_]\w*\([^:]*\)$|f?printf\s*\(|std::c(?:err|out)\b|echo [\"'])"
    rb"|^(?://|/\*|\"\"\")"
    rb"|^(?:\"[^\"]{0,400}\"|'[^']{0,400}')[,)]{1,3}$|^case [\"'].{0,80}:$"
    rb"|^[rbf]{1,2}[\"'].{0,400}[\"'](?:[,)]{0,3}| % [(\w].{0,200})$"
    rb"|\(\s*f[\"'].{0,400}\{[A-Za-z_][\w.\[\]()]*"
    rb"|^[A-Za-z_][\w.\[\]]{0,80} = .{1,200} if .{1,200} else [\w(\[\"'].{0,200}$"
    rb"|^[\"'][a-z]\w* [a-z][\w ]{0,60}[\"']: [rbf]{0,2}[\"'].{0,400}[\"'],$"
)
"""Statements, comments and literals of Python, C++ and shells, with the line number of a listing or the sign of a diff
before them. A table's key of several small words is a person's; logs in JSON have names there."""

_WARNING = (
    rb"\[W\d{3,4} |^\W{0,2}W\d{3,4} \d\d:|\[W [\w./]{1,80}\.(?:cpp|cc|h|hpp|cu|py)\b|\[W\]"
    rb"|(?: - |\[|\|)\s{0,4}WARN(?:ING)?\s{0,4}(?: - |\]|\|)|\] WARN(?:ING)?:? |\d WARN(?:ING)? |^WARN(?:ING)?:"
    rb"|level=warn|\b\w{0,40}Warning: |^\s{0,8}warnings\.warn\("
)
_MILD = rb"non-?fatal|not fatal"
"""A program that logs this continues. A communication library that logs it names what its adapter reported."""
_COPED_WITH = (
    rb"(?i:\b(?:will (?:be )?(?:retr(?:y|ied)|reconnect|try again)|re-?trying|trying again|retry (?:in|\d{1,4})"
    rb"|(?:safely |can be |, |: )ignor(?:ed|ing)|ignoring\b"
    rb"|falling back|fall(?:s)? back to|(?:continuing|going on|carrying on) (?:anyway|without)"
    rb"|thrown while requesting (?:head|get|put|post|patch)\b"
    rb"|start(?:s|ing) (?:from (?:scratch|nothing|zero)|afresh|anew)"
    rb"|" + _MILD + rb"|skipping|nothing to do|is not an error|halving|reducing (?:the )?(?:micro.?)?batch"
    rb"|(?:was|were|been) (?:caught|handled|recovered)|caught (?:and|an?|the)? ?(?:cuda |gpu )?(?:oom|out of memory)"
    rb"|recovered from|succeeded (?:on|after)|using (?:the )?(?:default|fallback|next)|disabling"
    rb"|\busing \S.{0,80}\binstead|(?:^|[.;:,] |(?:can|may|please|safely|should) )ignore (?:above|this)\b"
    rb"|(?:is|are) not (?:needed|required)\b|will be (?:skipped|ignored)))"
)
_ATTEMPT = rb"(?i:\b(?:attempt|retry|try)\b ?#?:? ?\(?(\d{1,4}) ?(?:/|of|out of) ?(\d{1,4}))"
_SUPPOSED = (
    rb"(?i:[.;:(\]] {0,2}\(?(?:this|it|that|which)(?: (?:error|failure|message|warning|problem|issue))?"
    rb" (?:can|may|might|could|usually|often|most likely|likely|typically|generally|indicates?|means?|happens?"
    rb"|is (?:usually|often|likely|probably|most likely|typically|generally))\b"
    rb"|\b(?:some |the |there are )*(?:potential|possible|common|likely|probable) (?:root )?(?:causes?|reasons?)\b"
    rb"|\b(?:is|are|was|were|been)? ?(?:perhaps|probably|possibly|maybe|presumably)\b)"
)
"""Where a line continues with possible causes: a list of suspicions, not a report."""
_LIBRARY = rb"\bNCCL (?:WARN|ERROR)\b|\bRCCL\b|\bWARN: Function: "
"""NCCL and its plug-ins print their errors as WARN."""


class Tone:
    """Compiled once per engine."""

    def __init__(self, options: "re2.Options") -> None:
        capturing = re2.Options()
        capturing.encoding, capturing.log_errors = options.encoding, False
        self._source = re2.compile(_SOURCE, options)
        self._warning = re2.compile(_WARNING, options)
        self._coped = re2.compile(_COPED_WITH, options)
        self._mild = re2.compile(rb"(?i:" + _MILD + rb")", options)
        self._attempt = re2.compile(_ATTEMPT, capturing)
        self._library = re2.compile(_LIBRARY, options)
        self._supposed = re2.compile(_SUPPOSED, capturing)

    def is_source(self, message: bytes) -> bool:
        """Whether this is a line of a program's text. `message` begins with its first visible character."""
        return self._source.search(message) is not None

    def reported(self, text: bytes) -> bytes:
        """The line up to where it begins to suppose what may be behind it."""
        found = self._supposed.search(text)
        return text if found is None else text[: found.start()]

    def is_warning(self, head: bytes) -> bool:
        """Whether it was logged as a warning. `head`: the begin of the line, where its level stands."""
        return self._library.search(head) is None and self._warning.search(head) is not None

    def is_coped_with(self, message: bytes, head: bytes = b"") -> bool:
        """Whether the line itself says that the program tries again, does without, or has got over it.
        `head`: the begin of the line, where a library names itself."""
        attempt = self._attempt.search(message)
        if attempt is not None:
            return int(attempt[1]) < int(attempt[2])  # the last one that fails is the failure
        found = self._coped.search(message)
        if found is None:
            return False
        return self._mild.fullmatch(found[0]) is None or self._library.search(head) is None

    def repeated_words(self, message: bytes) -> bytes:
        """The words by which every line that holds them is coped with; empty when a number decides."""
        if self._attempt.search(message) is not None:
            return b""
        found = self._coped.search(message)
        return wording(message, found.start(), found.end()) if found is not None else b""
