"""Limits for reading one file: its CPU time is bounded, and what goes wrong is put into a sentence.

`Watch` is called for each file before it is read, so that the reader can be interrupted and knows at which file.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeAlias

from everstep.analyzer.reading.pickled import UnreadableError

Watch: TypeAlias = Callable[[str], contextlib.AbstractContextManager[None]]
"""Called with a path below the folder; empty: no file in particular."""


class TooLongError(BaseException):
    """One file has had its time. No Exception: a reader that catches everything must still stop."""


@contextlib.contextmanager
def unwatched(_path: str) -> Iterator[None]:
    """For a caller that trusts its files, or lives in a process that may not be interrupted."""
    yield


def timed(cpu_s: float, tell: Callable[[str], None]) -> Watch:
    """Limit CPU time for each file, in this process and in its main thread; `tell` is called with the current file."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooLongError(f"gave nothing within {cpu_s:g} s of CPU time")

    signal.signal(signal.SIGPROF, end)

    @contextlib.contextmanager
    def watch(path: str) -> Iterator[None]:
        tell(path)
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    return watch


def say(error: BaseException) -> str:
    """Why a file was not used, for a person."""
    if isinstance(error, UnreadableError | TooLongError):
        return str(error)
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, MemoryError):
        return "needs more memory than there is"
    return f"cannot be understood: {type(error).__name__}: {str(error)[:200]}"
