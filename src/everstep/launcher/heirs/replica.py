"""The journal as a host keeps it for a successor: a prefix of the controller's, or of an earlier one's.

What comes for a new beginning does not replace what is there before it says more: until then this host's vote counts
with the old one. Files, no network; called by `heir`.
"""

import os
from pathlib import Path

from everstep.controller.record.spec_file import JOURNAL_NAME
from everstep.linux.files import write_whole
from everstep.wire.heirs import JournalPart

_NEW_NAME = "journal.new"


class Replica:
    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.path = folder / JOURNAL_NAME
        self._new_path = folder / _NEW_NAME
        write_whole(self.path, b"", mode=0o600)
        self._fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        self._new_fd = -1
        self._new_size = 0
        self.epoch, self.size = 0, 0

    @property
    def age(self) -> tuple[int, int]:
        """Age of the journal: of two journals, the one with the higher age has all that counts."""
        return self.epoch, self.size

    def take(self, part: JournalPart) -> int:
        """Store `part`; returns up to where this host has the sender's journal, which the sender may count on. Raises
        OSError, ValueError for a part that does not fit."""
        if part.at == 0 and self.size and self.epoch != part.epoch:
            self._begin_new()
        if self._new_fd >= 0:
            return self._take_new(part)
        if part.at > self.size or part.at < 0:
            raise ValueError(f"a part of the journal at {part.at}, where {self.size} bytes are")
        if self.epoch == part.epoch and part.at < self.size:
            raise ValueError(f"a part of the journal at {part.at} again, of which {self.size} bytes are here")
        if part.at < self.size:  # what an earlier controller wrote, and was never confirmed
            os.ftruncate(self._fd, part.at)
        _write(self._fd, part.data, part.at)
        self.size = part.at + len(part.data)
        self._note(part)
        return self.size

    def close(self) -> None:
        for fd in (self._fd, self._new_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._new_fd = -1

    def _begin_new(self) -> None:
        if self._new_fd >= 0:
            os.close(self._new_fd)
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self._new_fd, self._new_size = os.open(self._new_path, flags, 0o600), 0

    def _take_new(self, part: JournalPart) -> int:
        if part.at != self._new_size:
            raise ValueError(f"a part of the journal at {part.at}, where {self._new_size} bytes are")
        _write(self._new_fd, part.data, part.at)
        self._new_size += len(part.data)
        if self._new_size <= part.begins_at:
            return 0
        self._new_path.rename(self.path)
        os.close(self._fd)
        self._fd, self.size = self._new_fd, self._new_size
        self._new_fd, self._new_size = -1, 0
        self._note(part)
        return self.size

    def _note(self, part: JournalPart) -> None:
        if self.size > part.begins_at:
            self.epoch = part.epoch


def _write(fd: int, data: bytes, at: int) -> None:
    while data:
        written = os.pwrite(fd, data, at)
        data, at = data[written:], at + written
