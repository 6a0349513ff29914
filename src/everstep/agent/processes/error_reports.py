"""What a dead rank left behind: its error report and the last lines of its stderr, and what these mean.

Both are written by the user's process, so anything may be in them and in their place (a pipe, a device): what cannot be
read is unknown, never an error. What comes out of here can be sent and recorded, whatever went in.

What they mean is asked of the knowledge base, once per ended rank. The first call of a process compiles some hundreds
of signatures, a quarter of a second: `warm_up` does that in a thread beside the first start, so that no recovery waits
for it. A fault of ours in there costs the explanation, nothing else.
"""

import contextlib
import json
import logging
import math
import os
import re
from pathlib import Path
from typing import Any

from everstep.agent.processes.report_file import read_bytes
from everstep.knowledge.ending import end_of_rank
from everstep.linux.regular import regular
from everstep.model.facts import Alert, ErrorReport
from everstep.model.text import without_surrogates
from everstep.worker.process.modules import is_library_file, library_roots

MAX_OUTPUT_BYTES = 2048
_MAX_TEXT_CHARS = 32 << 10
"""Limit for a message or a traceback: the ends of all ranks of a node go in one report, and a report has a limit."""

_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_CRASH = "Fatal Python error: "
_CRASHED = re.compile(
    r'^Current thread 0x[0-9a-f]+ .*\n(?P<frames>(?:  File "[^"\n]+", line \d+ in .*\n?)+)', re.MULTILINE
)
"""What faulthandler writes when native code crashes: the innermost frame of the thread that did comes first."""
_EXTENSIONS = re.compile(r"^Extension modules: .*\n?", re.MULTILINE)
"""Its last line: every extension that is loaded, some KiB of names after the stacks that matter."""
MAX_WORDS_BYTES = 64 << 10
_KIND = re.compile(r"^[A-Za-z_][\w.]*$")

_log = logging.getLogger(__name__)


def read_error(path: Path) -> ErrorReport | None:
    """The report in TORCHELASTIC_ERROR_FILE, ours or torch's own; None if there is none that can be read."""
    try:
        report = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError, MemoryError):
        return None
    if not isinstance(report, dict):
        return None
    own = report.get("everstep")
    message = report.get("message")
    extra = message.get("extraInfo") if isinstance(message, dict) else None
    traceback = _text(extra.get("py_callstack")) if isinstance(extra, dict) else ""
    if isinstance(own, dict):
        return ErrorReport(
            kind=_text(own.get("kind")),
            message=_text(own.get("message")),
            traceback=traceback,
            at=_seconds(own.get("at")),
            place=_text(own.get("place")),
        )
    return _torch_report(message, extra, traceback)


def warm_up() -> None:
    """Raises nothing."""
    explain_end("-", None, rank=0, at=0.0)


def explain_end(last_output: str, error: ErrorReport | None, *, rank: int, at: float) -> Alert | None:
    """The strongest thing that its last lines and its own report say; None when nothing in them is known."""
    if not last_output and error is None:
        return None  # without a word there is nothing to look up, however cold the signatures are
    try:
        return end_of_rank(last_output, error, rank=rank, at=at)
    except Exception:
        _log.exception("the end of rank %d cannot be classified", rank)
        return None


def _torch_report(message: Any, extra: Any, traceback: str) -> ErrorReport | None:  # noqa: ANN401 - parsed JSON
    """`@record`'s form: {"message": {"message": "KeyError: 'labels'", "extraInfo": {...}}}, or just text."""
    text = _text(message.get("message")) if isinstance(message, dict) else _text(message)
    if not text:
        return None
    kind, separator, rest = text.partition(": ")
    if not separator or not _KIND.match(kind):
        kind, rest = "", text
    at = _seconds(extra.get("timestamp")) if isinstance(extra, dict) else None
    return ErrorReport(kind=kind, message=rest, traceback=traceback, at=at, place=place_of(traceback))


def place_of(traceback: str) -> str:
    """ "train.py:212": the innermost frame of a printed traceback that is in a file of the user's own."""
    roots = library_roots()
    for match in reversed(list(_FRAME.finditer(traceback))):
        file = match["file"]
        if not file.startswith("<") and not is_library_file(file, roots):
            return f"{Path(file).name}:{match['line']}"
    return ""


def crash_place(text: str) -> str:
    """The line of the thread whose native code crashed, "train.py:212": the user's own frame if there is one.

    Empty where faulthandler left no stack in these last words.
    """
    crashed_at = text.rfind(_CRASH)
    found = _CRASHED.search(text, crashed_at) if crashed_at >= 0 else None
    if found is None:
        return ""
    frames = _FRAME.findall(found["frames"])
    roots = library_roots()
    own = [frame for frame in frames if not frame[0].startswith("<") and not is_library_file(frame[0], roots)]
    file, line = (own or frames)[0]
    return f"{Path(file).name}:{line}"


def last_output(text: str) -> str:
    """The last lines of these last words, at most 2 KiB, whole lines if there are any."""
    text = _EXTENSIONS.sub("", text).rstrip("\n")
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_OUTPUT_BYTES:
        return text
    text = data[-MAX_OUTPUT_BYTES:].decode("utf-8", "replace")
    return text.split("\n", 1)[1] if "\n" in text else text


def last_words(path: Path, begin: int = 0, rest: bytes = b"") -> str:
    """The end of a log from `begin` on, and of what found no room there; whole lines if there are any."""
    start, data = 0, b""
    with contextlib.suppress(OSError), regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        start = max(begin if begin <= size else 0, size - MAX_WORDS_BYTES)
        data = os.pread(file.fileno(), MAX_WORDS_BYTES, start)
    text = (data + rest).decode("utf-8", "replace")
    return text.split("\n", 1)[1] if start > begin and "\n" in text else text


def _text(value: object) -> str:
    """Its beginning and its end, if it is long: what matters is hardly ever in the middle."""
    if not isinstance(value, str):
        return ""
    if len(value) > _MAX_TEXT_CHARS:
        half = _MAX_TEXT_CHARS // 2
        value = f"{value[:half]}\n... {len(value) - 2 * half} characters left out ...\n{value[-half:]}"
    return str(without_surrogates(value))


def _seconds(value: object) -> float | None:
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        return None
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        return None
    return seconds if math.isfinite(seconds) else None
