"""A quick scan of a persistent tier: manifests only, no torch.

Answers: which checkpoints can be restored from here, and why the others cannot. Whether every byte is right is
`verifying`'s question. Called by the launcher at the start of a run, by `everstep ckpt ls` and by retention.
"""

import msgspec

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store import fencing
from everstep.checkpoint.persist.store.found import NO_FOLDER, NO_MANIFEST, Found
from everstep.checkpoint.persist.store.plain import SMALL_BYTES
from everstep.checkpoint.persist.store.storage import Storage, open_storage, sentence
from everstep.checkpoint.persist.store.striking import STRUCK, reason
from everstep.errors import SnapshotError
from everstep.model.facts import Checkpoint


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    step: int
    path: str
    why: str


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    checkpoints: tuple[Checkpoint, ...]  # newest last
    refused: tuple[Refused, ...] = ()
    num_writing: int = 0  # begun, not committed (yet)


def scan(root: str) -> list[Checkpoint]:
    """Checkpoints that can be restored, newest last. A root that is not there yet holds none. Raises SnapshotError."""
    return list(scan_all(root).checkpoints)


def scan_all(root: str) -> Scanned:
    """With those that cannot be restored. Raises SnapshotError if the root cannot be read at all."""
    try:
        storage = open_storage(root)
        found = find_steps(storage)
        num_writing = sum(form.draft_of(name) is not None for name in storage.names(form.WRITING))
    except OSError as error:
        raise SnapshotError(f"checkpoints cannot be read: {sentence(error, root)}") from error
    except ImportError as error:
        raise SnapshotError(
            f"checkpoints in {root} cannot be read: {error}. Install what this kind of URL needs"
        ) from error
    checkpoints, refused = [], []
    for one in found:
        path, why = storage.path(one.folder), one.why or fencing.left_behind(one, found) or _overtaken(one, found)
        if one.manifest is None or why:
            refused.append(Refused(step=one.step, path=path, why=why))
        else:
            checkpoints.append(_checkpoint(one.manifest, path))
    return Scanned(checkpoints=tuple(checkpoints), refused=tuple(refused), num_writing=num_writing)


def find_steps(storage: Storage) -> list[Found]:
    """By step. Raises OSError: the root cannot be read."""
    found = []
    for name in storage.names():
        step = form.step_of(name)
        if step is not None:
            found.append(_look(storage, name, step))
    return sorted(found, key=lambda one: one.step)


def _look(storage: Storage, folder: str, step: int) -> Found:
    name = f"{folder}/{form.MANIFEST}"
    try:
        manifest = form.unseal(name, storage.read(name, SMALL_BYTES), form.Manifest)
        files = set(storage.names(folder))
        struck = reason(storage, folder, manifest) if STRUCK in files else ""
    except FileNotFoundError:
        return Found(step=step, folder=folder, why=NO_MANIFEST)
    except NotADirectoryError:
        return Found(step=step, folder=folder, why=NO_FOLDER)
    except OSError as error:  # of this one: the others may be as good as ever
        return Found(step=step, folder=folder, why=f"cannot be read: {sentence(error, storage.path(folder))}")
    except form.DamagedFileError as error:
        return Found(step=step, folder=folder, why=f"damaged: {error}")
    if manifest.step != step or len(manifest.parts) != manifest.world_size:  # before anything counts up to world_size
        return Found(step=step, folder=folder, why=f"its manifest is that of step {manifest.step}")
    missing = [rank for rank in range(manifest.world_size) if form.rank_name(rank) not in files]
    if missing or form.METADATA not in files:
        what = f"the parts of ranks {missing}" if missing else form.METADATA
        return Found(step=step, folder=folder, why=f"incomplete: {what} missing")
    return Found(step=step, folder=folder, manifest=manifest, why=struck)


def _overtaken(one: Found, found: list[Found]) -> str:
    """The job went back before this step and wrote other checkpoints since: what this one holds did not happen."""
    since = [other for other in found if other.manifest is not None and other.order > one.order]
    later = [other.step for other in since if other.step < one.step]
    if one.manifest is None or not later:
        return ""
    return f"the job went back before it: step {max(later)} was written later"


def _checkpoint(manifest: form.Manifest, path: str) -> Checkpoint:
    return Checkpoint(
        step=manifest.step,
        path=path,
        world_size=manifest.world_size,
        at=manifest.at,
        is_trusted=manifest.is_trusted,
        size_bytes=manifest.size_bytes,
    )
