"""torch.distributed.checkpoint's reader, over objects that are checked before they are used.

Called by `resharding` and `exporting`. Each object is read once per plan, whole; it is never larger than a piece and
some small ones.
"""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta

from everstep.checkpoint.persist.store.files import read_object
from everstep.checkpoint.persist.store.storage import Storage


class CheckedReader(FileSystemReader):  # type: ignore[misc]
    """Reads one checkpoint of ours, whose metadata was checked already."""

    def __init__(self, storage: Storage, metadata: Metadata) -> None:
        super().__init__(storage.root)
        self.fs = _Objects(storage)
        self._metadata = metadata

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:  # noqa: ANN401 - as in the base class
        if self._metadata.storage_meta is None:
            self._metadata.storage_meta = StorageMeta()
        self._metadata.storage_meta.load_id = self.load_id
        return self._metadata


class _Objects:
    """The objects as a file system for torch's reader."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def concat_path(self, _: str | os.PathLike[str], suffix: str) -> str:
        return suffix

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], _: str) -> Iterator[io.IOBase]:
        yield io.BytesIO(read_object(self._storage, os.fspath(path).rsplit("/", 1)[-1]))


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that really happened, from the one that torch.distributed.checkpoint makes of it; None if
    that one does not hold it."""
    failures = getattr(error, "failures", None)
    return next(iter(failures.values()))[0] if failures else None
