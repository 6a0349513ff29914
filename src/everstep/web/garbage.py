"""aiohttp's messages about invalid requests: counted or dropped, never written. A stranger could fill the disk, or
write to the terminal from which a page was started. Faults of ours are caught before, where requests are answered.
"""

import logging
from collections.abc import Callable

_MAX_SAID = 200


def garbage_log(name: str, note: Callable[[str], None]) -> logging.Logger:
    """A logger for `web.AppRunner`. `note` is called with each message, shortened."""
    logger = logging.Logger(name, logging.DEBUG)  # not in the tree: no handler of a parent writes it
    logger.addHandler(_Garbage(note))
    return logger


class _Garbage(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        cause = record.exc_info[1] if record.exc_info else None
        self._note(f"not an HTTP request: {cause or record.msg!s}"[:_MAX_SAID])
        if cause is not None:
            # Its frames have what was sent, and the error itself: they would wait for the garbage collector, up to
            # 256 KiB for each. A thousand of them were 100 MiB.
            cause.__traceback__ = None
