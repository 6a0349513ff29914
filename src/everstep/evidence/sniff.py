"""Kind of a file, from its first bytes. The name only counts if the bytes do not decide. Pure."""

import enum
import re

HEAD_BYTES = 8192


class Kind(enum.StrEnum):
    EMPTY = "empty"
    PICKLE = "pickle"
    JSON = "JSON"
    STACK_TEXT = "py-spy text"
    STACK_ERROR = "py-spy error"
    PROCESS_STATUS = "process status"
    LOG = "log"
    COMPRESSED = "compressed file"
    ARCHIVE = "archive"
    WIDE = "text in UTF-16"
    BINARY = "binary file"


_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_DUMP_NAME = re.compile(r"nccl_trace|flight|fr_trace|\.pkl$|\.pickle$|(^|[/_-])fr[_-]", re.I)
_STACK_NAME = re.compile(r"stack|py-?spy", re.I)
_LOG_NAME = re.compile(r"\.(?:log|out|err|txt)(?:\.\d{1,6})?$", re.I)
_PROCESS = re.compile(rb"^Process \d+: ?", re.M)


def kind_of(head: bytes, path: str) -> Kind:
    """`head` is the beginning of the file, up to HEAD_BYTES."""
    if not head:
        return Kind.EMPTY
    if head.startswith(_COMPRESSED):
        return Kind.COMPRESSED
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        return Kind.ARCHIVE
    if head.startswith(_WIDE):
        return Kind.WIDE
    if head[:1] == b"\x80" and len(head) > 1 and head[1] <= 16:
        return Kind.PICKLE
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text[:1] in (b"{", b"[") and (path.endswith(".json") or _opens_json(text)):
        return Kind.JSON
    if _DUMP_NAME.search(path.rpartition("/")[2]):
        return Kind.PICKLE  # an old protocol has no mark of its own; the reader refuses what it is not
    if _PROCESS.search(head) and (b"Thread " in head or b"Python v" in head):
        return Kind.STACK_TEXT
    if head.startswith(b"Name:\t") and b"\nState:\t" in head:
        return Kind.PROCESS_STATUS
    if text.startswith(b"Error: ") and (_STACK_NAME.search(path.rpartition("/")[2]) or b"py_spy" in head):
        return Kind.STACK_ERROR
    if b"\x00" in head and not _has_hole(head, path):
        return Kind.BINARY
    return Kind.LOG


def _has_hole(head: bytes, path: str) -> bool:
    """A log whose begin was cut away while it was written begins with a hole: bytes of zero."""
    return _LOG_NAME.search(path) is not None and b"\x00" not in head.strip(b"\x00")


def _opens_json(text: bytes) -> bool:
    """`[rank0]: text` and `{'loss': 1.0}` are log lines."""
    after = text[1:].lstrip()[:1]
    if text[:1] == b"{":
        return after in (b'"', b"}", b"")
    return after in (b"{", b"[", b"]", b"") or (after == b'"' and b'"' in text[3:])
