"""Makes a step visible when every rank's part of it is there, and lets go of old ones.

Answers: is this checkpoint whole. Looks at every part and at every object it refers to, writes `.metadata`, then the
manifest, and puts the folder in place in one act. Called by `python -m everstep.checkpoint.persist commit` on one
node; may be called again for the same step, and then says the same.
"""

import time
from collections.abc import Sequence

import msgspec

from everstep.checkpoint.persist.form import form, metadata
from everstep.checkpoint.persist.store import fencing
from everstep.checkpoint.persist.store.found import Found
from everstep.checkpoint.persist.store.retention import collect, committing, retain
from everstep.checkpoint.persist.store.scanning import find_steps
from everstep.checkpoint.persist.store.storage import Storage, open_storage, sentence
from everstep.errors import SnapshotError
from everstep.version import __version__


class Committed(msgspec.Struct, frozen=True, kw_only=True):
    """The report to the agent."""

    path: str = ""
    size_bytes: int = 0
    dropped: tuple[int, ...] = ()
    at: float = 0.0
    why: str = ""
    notes: tuple[str, ...] = ()  # nothing that is wrong with this checkpoint


def commit(
    root: str,
    *,
    step: int,
    world_size: int,
    keep: int,
    is_trusted: bool = False,
    run: str = "",
    generation: int | None = None,
    resumed: Sequence[tuple[int, int]] = (),
) -> Committed:
    """`generation`: the controller's word for which one this is; those before it are fenced off, and only its parts are
    taken. None: the newest parts there are. `resumed`: the history that it belongs to, as in the manifest. Raises
    OSError, SnapshotError: the step is not there then, or as it was."""
    storage = open_storage(root)
    if generation is not None:
        fencing.fence(storage, run, generation)
    found = find_steps(storage)
    there = next((one for one in found if one.step == step), None)
    draft = _whole_draft(storage, step, world_size, run, generation)
    if draft is not None:
        order = 1 + max((one.order for one in found), default=0)
        with committing(storage):
            wanted = _Wanted(step=step, order=order, is_trusted=is_trusted, resumed=tuple(resumed))
            manifest = _publish(storage, draft, world_size, wanted)
    elif there is not None and there.manifest is not None:
        manifest = _again(storage, there, is_trusted=is_trusted)
    else:
        raise SnapshotError(_missing(storage, step, world_size, run))
    dropped, notes = _retire(storage, keep, step, run)
    return Committed(
        path=storage.path(form.step_name(step)),
        size_bytes=manifest.size_bytes,
        dropped=dropped,
        at=manifest.at,
        notes=notes,
    )


class _Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest's fields that no part knows."""

    step: int
    order: int
    is_trusted: bool
    resumed: tuple[tuple[int, int], ...]


def _drafts(storage: Storage, step: int, run: str) -> list[str]:
    """This run's drafts of this step, newest generation first."""
    found = [form.draft_of(name) for name in storage.names(form.WRITING)]
    mine = {one.generation for one in found if one is not None and (one.step, one.run) == (step, form.run_tag(run))}
    return [form.draft_name(step, generation, run) for generation in sorted(mine, reverse=True)]


def _whole_draft(storage: Storage, step: int, world_size: int, run: str, generation: int | None) -> str | None:
    """The one of this generation, or of the newest, in which no rank is missing."""
    mine = None if generation is None else form.draft_name(step, generation, run)
    for draft in _drafts(storage, step, run):
        if mine not in (None, draft):
            continue
        names = set(storage.names(draft))
        if all(form.rank_name(rank) in names for rank in range(world_size)):
            return draft
    return None


def _missing(storage: Storage, step: int, world_size: int, run: str) -> str:
    drafts = _drafts(storage, step, run)
    if not drafts:
        return f"no part of step {step} is in {storage.root}"
    names = set(storage.names(drafts[0]))
    missing = [rank for rank in range(world_size) if form.rank_name(rank) not in names]
    return f"step {step} in {storage.root} lacks the parts of ranks {missing}"


def _publish(storage: Storage, draft: str, world_size: int, wanted: _Wanted) -> form.Manifest:
    step, folder = wanted.step, form.step_name(wanted.step)
    parts, sums = _read_parts(storage, draft, step, world_size)
    size_bytes = _check_objects(storage, parts)
    merged = metadata.merge(parts, lambda name: storage.seen_from(folder, form.object_name(name)))
    pickled = metadata.metadata_bytes(merged)
    manifest = form.Manifest(
        step=step,
        generation=parts[0].generation,
        world_size=world_size,
        at=time.time(),
        order=wanted.order,
        size_bytes=size_bytes,
        parts=tuple(sums),
        metadata=form.checksum(pickled),
        is_trusted=wanted.is_trusted,
        unequal=tuple(sorted(merged.unequal)),
        resumed=wanted.resumed,
        run=parts[0].run,
        everstep=__version__,
        torch=parts[0].torch,
    )
    for name in storage.names(draft):
        if not name.startswith("rank-"):
            storage.remove(f"{draft}/{name}")  # markers; what an earlier commit left
    storage.write(f"{draft}/{form.METADATA}", [pickled])
    storage.write(f"{draft}/{form.MANIFEST}", [form.seal(manifest)])
    fencing.refuse_if_overtaken(manifest, find_steps(storage))
    try:
        storage.move_folder(draft, folder, form.MANIFEST)
    except FileNotFoundError as error:
        raise SnapshotError(f"step {step} of generation {manifest.generation}: {fencing.FENCED_OFF}") from error
    return manifest


def _read_parts(storage: Storage, draft: str, step: int, world_size: int) -> tuple[list[form.RankPart], list[str]]:
    parts, sums = [], []
    for rank in range(world_size):
        name = f"{draft}/{form.rank_name(rank)}"
        data = storage.read(name)
        try:
            part = form.unseal(name, data, form.RankPart)
        except form.DamagedFileError as error:
            raise SnapshotError(f"step {step} is not whole: {error}") from error
        if (part.step, part.rank, part.world_size) != (step, rank, world_size):
            raise SnapshotError(
                f"{name} is the part of rank {part.rank} of {part.world_size} at step {part.step}, "
                f"not of rank {rank} of {world_size} at step {step}"
            )
        parts.append(part)
        sums.append(form.checksum(data))
    return parts, sums


def _check_objects(storage: Storage, parts: list[form.RankPart]) -> int:
    """All there, and as long as they should be; their bytes in all."""
    objects = {name: size for part in parts for name, size in part.objects.items()}
    for name, size in objects.items():
        found = storage.size(form.object_name(name))
        if found != size:
            what = "is missing" if found is None else f"has {found:,} bytes instead of {size:,}"
            raise SnapshotError(f"step {parts[0].step} is not whole: {storage.path(form.object_name(name))} {what}")
    return sum(objects.values())


def _again(storage: Storage, there: Found, *, is_trusted: bool) -> form.Manifest:
    """Repeat a commit that is there already, or add trust that came later."""
    manifest = there.manifest
    assert manifest is not None
    if is_trusted and not manifest.is_trusted:
        manifest = msgspec.structs.replace(manifest, is_trusted=True)
        storage.write(f"{there.folder}/{form.MANIFEST}", [form.seal(manifest)])
    return manifest


def _retire(storage: Storage, keep: int, step: int, run: str) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Remove old checkpoints. A failure here leaves too much, which is not a fault of the checkpoint: it is returned as
    a note."""
    dropped: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    try:
        dropped, notes = retain(storage, keep)
        collect(storage, committed=(step, run))
        return dropped, notes
    except OSError as error:
        return dropped, (
            *notes,
            f"old checkpoints could not be removed: {sentence(error, storage.root)}",
        )
