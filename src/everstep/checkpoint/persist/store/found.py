"""Directories of a tier that are named like checkpoints, as `scanning` finds them."""

import msgspec

from everstep.checkpoint.persist.form import form

NO_MANIFEST = "incomplete: it has no manifest"
NO_FOLDER = "a file, where a checkpoint's directory would be"


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A folder that is named like a checkpoint. `why`: what is wrong; with a manifest, too, if it was struck."""

    step: int
    folder: str
    manifest: form.Manifest | None = None
    why: str = ""

    @property
    def order(self) -> int:
        return self.manifest.order if self.manifest is not None else 0
