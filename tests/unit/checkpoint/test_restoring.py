"""What a rank tells of something that it cannot begin with: damaged for everybody, or not to be read from here, now."""

import errno
import os
from types import SimpleNamespace
from typing import Any

import pytest

from everstep.checkpoint import arena
from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read import reading
from everstep.checkpoint.persist.store.storage import FolderStorage
from everstep.errors import SnapshotError
from everstep.worker.snapshots import restoring


class Rank(SimpleNamespace):
    def __init__(self, **more: Any) -> None:
        super().__init__(rank=0, world_size=1, resume_step=4, arenas=[], restore_path="", init_from="", told=[], **more)

    def tell(self, frame: dict[str, Any]) -> None:
        self.told.append(frame["restore_failed"])


def test_a_storage_that_fails_says_nothing_about_the_checkpoint(tmp_path, monkeypatch):
    folder = tmp_path / form.step_name(4)
    folder.mkdir()
    (folder / form.MANIFEST).write_bytes(b"{}")
    rank = Rank()
    rank.restore_path = str(folder)
    with pytest.raises(SnapshotError, match="damaged"):
        restoring.from_disk(rank, {})

    def fails(*_: object) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(folder))

    monkeypatch.setattr(FolderStorage, "read", fails)
    with pytest.raises(SnapshotError, match=f"{folder} cannot be read: .*mount it again"):
        restoring.from_disk(rank, {})
    rank.restore_path = str(tmp_path / "step-0000000009")
    with pytest.raises(SnapshotError, match="there is nothing"):
        restoring.from_disk(rank, {})
    assert [one["is_damaged"] for one in rank.told] == [True, False, False]


def test_a_disk_error_is_not_raised_as_damage(tmp_path, monkeypatch):
    (tmp_path / form.METADATA).write_bytes(b"no pickle")
    with pytest.raises(DamagedError):
        reading.load_into(str(tmp_path), {}, rank=0, world_size=1)

    def fails(*_: object) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path))

    monkeypatch.setattr(FolderStorage, "names", fails)
    with pytest.raises(OSError, match=r"cannot be read: .*Permission denied"):
        reading.load_into(str(tmp_path), {}, rank=0, world_size=1)


def test_memory_that_cannot_be_read_is_not_called_damaged(monkeypatch):
    fd = arena.create(arena.arena_bytes(100), rank=0, world_size=1)
    mine = arena.Arena(fd)
    mine.begin(4, 0)
    mine.publish(8, 4, 0)
    mine.close()
    rank = Rank()
    rank.arenas = [fd]

    def fails(*_: object) -> str:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(arena, "verify", fails)
    try:
        with pytest.raises(SnapshotError, match=r"cannot be read: .*Cannot allocate memory"):
            restoring.begin(rank).whole()
        monkeypatch.setattr(arena, "verify", lambda *_: "sums do not match")
        with pytest.raises(SnapshotError, match="is damaged: sums do not match"):
            restoring.begin(rank).whole()
    finally:
        os.close(fd)
    assert [(one["source"], one["is_damaged"]) for one in rank.told] == [("memory", False), ("memory", True)]
