"""Keeps a generation that is over from making checkpoints, also where its processes could not be ended.

Answers: may this commit still become visible; does this checkpoint belong to the history that its run is in. A machine
can stand still between any two acts of a commit, and continue when another generation has trained and committed. So:

- the controller names the generation that commits, and that one first moves away the drafts of all before it. In a
  folder this and the move that makes a step visible are both one act of the file system: one of them comes first, and
  if it was the fence, the other fails;
- a manifest records after which steps its run resumed. What an earlier generation did beyond them did not happen, and
  readers leave it out. That also holds where nothing is one act, as in an object store.

Called by `committing`, `scanning` and `retention`.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store.storage import Storage
from everstep.errors import SnapshotError

if TYPE_CHECKING:
    from everstep.checkpoint.persist.store.found import Found

FENCED_OFF = "a later generation of the run has fenced it off; it is not a checkpoint"


def fence(storage: Storage, run: str, generation: int) -> None:
    """No draft of an earlier generation of this run becomes a checkpoint from now on. Raises OSError."""
    for name in storage.names(form.WRITING):
        draft = form.draft_of(name)
        if draft is not None and draft.run == form.run_tag(run) and draft.generation < generation:
            storage.discard_folder(f"{form.WRITING}/{name}", form.WRITING, form.MANIFEST)


def refuse_if_overtaken(mine: form.Manifest, found: Sequence["Found"]) -> None:
    """Before the last act: a later generation has committed since this commit began. Raises SnapshotError."""
    if any(_is_later(one.manifest, mine) for one in found if one.manifest is not None):
        raise SnapshotError(f"step {mine.step} of generation {mine.generation}: {FENCED_OFF}")


def left_behind(one: "Found", found: Sequence["Found"]) -> str:
    """A sentence, if a later generation of its run resumed from a step before it; "" if none is known to have."""
    mine = one.manifest
    later = [other.manifest for other in found if mine is not None and other.manifest is not None]
    for manifest in later:
        if mine is None or not _is_later(manifest, mine):
            continue
        for generation, step in manifest.resumed:
            if mine.generation < generation <= manifest.generation and step < mine.step:
                return f"of a history that is void: generation {generation} of its run resumed after step {step}"
    return ""


def _is_later(other: form.Manifest, mine: form.Manifest) -> bool:
    """Committed since, by a later generation of the same run. The order matters as well: the name of a run may be used
    again, and its generations begin anew."""
    return other.run == mine.run and other.generation > mine.generation and other.order >= mine.order
