"""The worker's last words: an uncaught exception becomes a report for the incident, then the usual traceback.

The file is TORCHELASTIC_ERROR_FILE and has torch elastic's form, plus our own keys. A file that exists is left alone:
torch's `@record` was first. Nothing here changes what the user sees, except that our own frames are cut off the top.
"""

import json
import linecache
import os
import sys
import time
import traceback
from types import TracebackType

from everstep.worker.process.modules import is_library_file, library_roots

_OURS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
MAX_TRACEBACK_CHARS = 64_000
"""A recursion error repeats itself; both ends of such a traceback are worth keeping, not its middle."""


def trim(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames through which we started the program."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_OURS):
        tb = tb.tb_next
    return tb


def place_of(error: BaseException) -> str:
    """ "train.py:212": the innermost frame in a file of the user's own; empty if there is none."""
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return f"{os.path.basename(error.filename)}:{error.lineno}"
    roots = library_roots()
    place = ""
    tb = error.__traceback__
    while tb is not None:
        name = tb.tb_frame.f_code.co_filename
        if not name.startswith(("<", _OURS)) and not is_library_file(name, roots):
            place = f"{os.path.basename(name)}:{tb.tb_lineno}"
        tb = tb.tb_next
    return place


def is_failure(ended: SystemExit) -> bool:
    """Whether the interpreter will end with another exit code than 0 because of it."""
    return ended.code is not None and ended.code != 0


def report_exception(path: str, error: BaseException) -> None:
    """Write the report of an uncaught exception, unless there is one already."""
    text = "".join(traceback.format_exception(type(error), error, trim(error.__traceback__)))
    write_report(path, kind=type(error).__name__, message=_message(error), text=text, place=place_of(error))


def write_report(path: str, *, kind: str, message: str, text: str = "", place: str = "") -> None:
    """Write a report whole or not at all. Raises OSError when it cannot be written."""
    if os.path.exists(path):
        return
    now = time.time()
    if len(text) > MAX_TRACEBACK_CHARS:
        half = MAX_TRACEBACK_CHARS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    report = {
        "message": {
            "message": f"{kind}: {message}",
            "extraInfo": {"py_callstack": text, "timestamp": str(int(now))},
        },
        "everstep": {"kind": kind, "message": message, "place": place, "at": now},
    }
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8", errors="backslashreplace") as file:
        json.dump(report, file)
    try:
        os.link(draft, path)  # fails if the name exists: the first report stays
    except FileExistsError:
        pass
    finally:
        os.unlink(draft)


def tell(error: BaseException) -> None:
    """Print the exception the way the interpreter would, through the program's own hook if it has one."""
    tb = error.__traceback__ = trim(error.__traceback__)  # the interpreter's own hook prints the exception's
    linecache.checkcache()
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, tb
    try:
        sys.excepthook(type(error), error, tb)
    except Exception as hook_error:
        print("Error in sys.excepthook:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(hook_error)
        print("\nOriginal exception was:", file=sys.stderr)  # noqa: T201
        traceback.print_exception(type(error), error, tb)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<its __str__ raised>"
