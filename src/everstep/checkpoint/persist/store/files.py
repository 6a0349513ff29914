"""Reads the files of a checkpoint, checked. No torch. Called by `reading`, `verifying`, `exporting`.

All raise OSError when a file cannot be read and DamagedFileError when it is not what was written.
"""

import errno
from contextlib import suppress

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store.plain import SMALL_BYTES
from everstep.checkpoint.persist.store.storage import Storage, open_storage
from everstep.errors import SnapshotError

MOST_OBJECT_BYTES = 256 << 20
"""Limit for an object of unknown size: many times what is ever written as one (a piece of 32 MiB)."""


def locate(path: str) -> tuple[Storage, str]:
    """The root and the folder's name of a checkpoint."""
    root, _, folder = path.rstrip("/").rpartition("/")
    return open_storage(root or "."), folder


def read_manifest(storage: Storage, folder: str) -> form.Manifest | None:
    """None: a checkpoint of torch.distributed.checkpoint's own. Raises SnapshotError, too: no checkpoint at all."""
    files = set(storage.names(folder))
    if not files:
        raise FileNotFoundError(errno.ENOENT, "there is nothing (any more)", storage.path(folder))
    name = f"{folder}/{form.MANIFEST}"
    if form.MANIFEST in files:
        return form.unseal(name, storage.read(name, SMALL_BYTES), form.Manifest)
    if any(file.startswith("rank-") for file in files):
        raise form.DamagedFileError(name, "is missing: the checkpoint is not whole")
    if form.METADATA not in files:
        raise SnapshotError(
            f"{storage.path(folder)} is not a checkpoint: it has neither {form.MANIFEST} nor {form.METADATA}; "
            f"it holds {', '.join(sorted(files)[:5])}"
        )
    return None


def read_part(storage: Storage, folder: str, manifest: form.Manifest, rank: int) -> form.RankPart:
    name = f"{folder}/{form.rank_name(rank)}"
    try:
        data = storage.read(name)
    except FileNotFoundError as error:
        raise form.DamagedFileError(name, "is missing") from error
    if rank >= len(manifest.parts) or form.checksum(data) != manifest.parts[rank]:
        raise form.DamagedFileError(name, "its checksum is not that of the manifest")
    return form.unseal(name, data, form.RankPart)


def read_object(storage: Storage, content: str, size: int | None = None) -> memoryview:
    """Read an object, whole and checked. One that is damaged, also when it is read once more, is put aside.

    One that is whole but not `size` long stays: it may be right for another checkpoint, and a writer measures it."""
    name = _checked_name(content)
    most = MOST_OBJECT_BYTES if size is None else max(size, form.FOOTER_BYTES)
    try:
        try:
            data = _read_object(storage, name, most)
        except form.DamagedFileError:  # by the disk, or on the way here
            try:
                data = _read_object(storage, name, most)
            except form.DamagedFileError:
                put_aside(storage, content)
                raise
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise form.DamagedFileError(name, f"{error.strerror}: it is longer than its checkpoint says") from error
    if size is not None and len(data) != size:
        raise form.DamagedFileError(name, f"has {len(data):,} bytes instead of {size:,}")
    return data


def put_aside(storage: Storage, content: str) -> None:
    """Rename a damaged object: the next checkpoint would treat it as the piece that it is named after, and leave that
    out of what it writes."""
    name = _checked_name(content)
    with suppress(OSError):  # who may not write here cannot write the next one either
        if storage.size(name) is not None:
            storage.rename(name, name + form.DAMAGED)


def _checked_name(content: str) -> str:
    """Raises DamagedFileError for what is not an object's name: it comes from a file, and becomes a path."""
    if not form.is_object(content):
        raise form.DamagedFileError(f"{form.OBJECTS}/{content[:80]!r}", "is not the name of an object")
    return form.object_name(content)


def _read_object(storage: Storage, name: str, most: int) -> memoryview:
    try:
        data = storage.read(name, most)
    except FileNotFoundError as error:
        raise form.DamagedFileError(name, "is missing") from error
    form.check_object(name, data)
    return memoryview(data)
