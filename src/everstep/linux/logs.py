"""Log files of our own processes: for this user alone, and of bounded size, whatever strangers make them say."""

import os
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

MAX_LOG_BYTES = 16 << 20
"""Then a new file is begun; one old one is kept."""


class PrivateLog(RotatingFileHandler):
    """Never written through a link."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=MAX_LOG_BYTES, backupCount=1)

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors="backslashreplace", opener=_opener)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
