"""Counts of nothing: "0 media errors", "critical warning: 0x00" name a fault and say that it did not happen.

Pure. Asked by `matcher` of a program's line that a signature knows; the kernel counts nothing that is not there.
"""

import re

_WORD = rb"[A-Za-z-]{1,24}"
_ZERO = rb"(?:0x)?0{1,8}(?:\.0{1,8})?(?![\w.%])"
_BEFORE = (
    rb"(?:^|[,;(|/:]\s{0,4}|\b(?:and|with|had|has|found|of)\s)0\s(?:" + _WORD + rb"\s){0,4}(?:[a-z]{1,24}s|[CU]E)\b"
)
_NAME = rb"(?:" + _WORD + rb"[ _]){0,5}(?:" + _WORD + rb"s|count|warning|total)"
_AFTER = rb"(?<![A-Za-z_-])" + _NAME + rb"(?:\s?\([^)\n]{1,24}\))?(?:\s{0,4}[:=]\s{0,4}|(?<=count)\s)" + _ZERO
_NOTHING = re.compile(_BEFORE + rb"|" + _AFTER)
_NO_COUNT = re.compile(rb"(?:status|address|class|process|bus|access|pass|this|was|is|has|args)\b[^\w]", re.IGNORECASE)
"""Words that end in s and count nothing."""


def without_zeros(message: bytes) -> bytes:
    """The same line without what it counts none of; itself where it counts nothing."""
    if b"0" not in message:
        return message
    return _NOTHING.sub(lambda found: found[0] if _NO_COUNT.search(found[0]) else b" ", message)
