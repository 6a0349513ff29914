"""Notes beside a checkpoint that it must not be restored, and why: it is whole, but what it holds is not to be trusted.

Answers: was this one struck. A file of its own in the step's folder, so that nothing that was written is touched, and a
process that is killed leaves the note whole or none. It names the commit it is about: a checkpoint that is written at
the same step later is another one. Called by `python -m everstep.checkpoint.persist strike`, on demand of the
controller, and by `scanning`, `verifying`, `exporting`. It removes nothing; `retention` does that when the time comes.
"""

import time

import msgspec

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store.plain import SMALL_BYTES
from everstep.checkpoint.persist.store.storage import Storage, open_storage
from everstep.errors import SnapshotError

STRUCK = "struck.json"
_MAX_WHY = 1000


class Note(msgspec.Struct, frozen=True, kw_only=True):
    version: int = form.FORM_VERSION
    step: int
    order: int | None  # of the manifest it is about; None: it could not be read, and no manifest of this step counts
    why: str
    at: float


class Striking(msgspec.Struct, frozen=True, kw_only=True):
    """The report to the agent."""

    path: str
    was_struck: bool  # before this
    why: str = ""


def strike(root: str, *, step: int, why: str) -> Striking:
    """Once more changes nothing. Raises OSError, SnapshotError: there is no such step."""
    storage, folder = open_storage(root), form.step_name(step)
    names = storage.names(folder)
    if not names:
        raise SnapshotError(f"there is no step {step} in {storage.root}")
    manifest = _manifest(storage, folder)
    if STRUCK in names and reason(storage, folder, manifest):
        return Striking(path=storage.path(folder), was_struck=True)
    order = None if manifest is None else manifest.order
    note = Note(step=step, order=order, why=why[:_MAX_WHY] or "no reason was given", at=time.time())
    storage.write(f"{folder}/{STRUCK}", [form.seal(note)])
    return Striking(path=storage.path(folder), was_struck=False)


def reason(storage: Storage, folder: str, manifest: form.Manifest | None) -> str:
    """Why this checkpoint must not be restored; "" if it is not struck. Raises OSError."""
    name = f"{folder}/{STRUCK}"
    try:
        note = form.unseal(name, storage.read(name, SMALL_BYTES), Note)
    except FileNotFoundError:
        return ""
    except form.DamagedFileError as error:
        return f"struck, and why cannot be read: {error}"  # it was struck for some reason
    if manifest is not None and note.order not in (None, manifest.order):
        return ""  # of the one that was here before
    return f"struck: {note.why}"


def _manifest(storage: Storage, folder: str) -> form.Manifest | None:
    name = f"{folder}/{form.MANIFEST}"
    try:
        return form.unseal(name, storage.read(name, SMALL_BYTES), form.Manifest)
    except (FileNotFoundError, form.DamagedFileError):
        return None
