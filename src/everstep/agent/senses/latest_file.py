"""A small file that always shows the latest text, written beside the event loop.

The file lies where the run writes, and that may be the very filesystem that hangs: the caller never waits, and while
one write hangs only the newest text is kept for the next. Called by `agent.senses.sensing`.
"""

import logging
import threading
from pathlib import Path

from everstep.linux.files import write_whole

_log = logging.getLogger(__name__)


class LatestFile:
    """`put` from any thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._text: str | None = None
        self._is_writing = False
        self._has_failed = False

    def put(self, text: str) -> None:
        with self._lock:
            self._text = text
            if self._is_writing:
                return
            self._is_writing = True
        threading.Thread(target=self._write_all, name="everstep-latest-file", daemon=True).start()

    def _write_all(self) -> None:
        while True:
            with self._lock:
                text, self._text = self._text, None
                if text is None:
                    self._is_writing = False
                    return
            try:
                write_whole(self._path, text.encode())
            except OSError as error:
                if not self._has_failed:
                    self._has_failed = True
                    _log.warning("%s cannot be written: %s", self._path, error)
