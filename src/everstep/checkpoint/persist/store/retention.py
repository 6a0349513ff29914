"""Retention: which checkpoints stay, and which objects are not needed any more.

Answers: what may be removed, without harm to a checkpoint that stays or to one that is being written. Called by
`committing` (after a step became visible) and by `writing` (after a part failed).

A writer or committer first makes a claim and then waits until no collector is left; a collector first makes a claim,
then looks for writers, and gives way. So if two begin in the same moment, at least one sees the other. Each claim has a
name of its own, so that ending one takes away no other. References are read from the drafts first and from the steps
then, because a commit makes a step of a draft, never the other way round.
"""

import errno
import os
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.store import fencing
from everstep.checkpoint.persist.store.claims import Claim, is_claimed
from everstep.checkpoint.persist.store.found import NO_FOLDER, NO_MANIFEST, Found
from everstep.checkpoint.persist.store.scanning import find_steps
from everstep.checkpoint.persist.store.storage import DISCARDED, REPLACED, FolderStorage, Storage

_COLLECTING = "collecting"
_COMMITTING = "committing"
_CLAIM = "writing-"
_WAIT_S = 90.0
_HURRIED_WAIT_S = 2.0
"""A commit looks at every object again, so at worst the step is not there; nor would it be after a longer wait."""

HURRY_VARIABLE = "EVERSTEP_WRITER_HURRY"
"""As in `agent.copies.writer_main`: the machine will be taken away."""

_DRAFT_STALE_S = 3600.0
"""A draft whose commit has not come for so long: its run is gone."""


def claim_name(draft: str, rank: int) -> str:
    return f"{draft}/{_CLAIM}{rank:05d}"


def await_collector(storage: Storage, claim: Claim) -> None:
    """Wait until no collector is left, and keep `claim` alive. Raises OSError after the longest time that collecting
    should take."""
    is_hurried = os.environ.get(HURRY_VARIABLE) == "1"
    deadline = time.monotonic() + (_HURRIED_WAIT_S if is_hurried else _WAIT_S)
    while _is_anybody(storage, _COLLECTING):
        if time.monotonic() > deadline:
            if is_hurried:
                return
            raise TimeoutError(f"old checkpoints are being removed from {storage.root} for more than {_WAIT_S:.0f} s")
        claim.renew()
        time.sleep(0.05)


@contextmanager
def committing(storage: Storage) -> Iterator[None]:
    """Keep collectors from beginning while a draft becomes a step. Raises OSError."""
    claim = Claim(storage, _own_name(_COMMITTING))
    try:
        await_collector(storage, claim)
        yield
    finally:
        with suppress(OSError):
            claim.give_up()


def _own_name(kind: str) -> str:
    return f"{form.WRITING}/{kind}-{os.getpid()}-{os.urandom(4).hex()}"


def _is_anybody(storage: Storage, kind: str) -> bool:
    """Collecting, or committing. Raises OSError."""
    names = [name for name in storage.names(form.WRITING) if name.startswith(kind)]
    return any(is_claimed(storage, f"{form.WRITING}/{name}") for name in names)


def retain(storage: Storage, keep: int) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Drop all but the `keep` checkpoints that were committed last and the newest trusted one; their steps, and what is
    to be said. One that has lost a rank's part is not counted, and stays until it is older than all that are."""
    found = [one for one in find_steps(storage) if one.manifest is not None]
    found.sort(key=lambda one: one.order)
    damage = {
        one.step: why for one in found if (why := one.why or fencing.left_behind(one, found) or _damage(storage, one))
    }
    sound = [one for one in found if one.step not in damage]
    stay = {one.step for one in sound[-max(keep, 1) :]}
    trusted = [one.step for one in sound if one.manifest is not None and one.manifest.is_trusted]
    stay.update(trusted[-1:])
    first = min((one.order for one in sound[-max(keep, 1) :]), default=0) if len(sound) >= max(keep, 1) else 0
    dropped = [one.step for one in found if one.step not in stay and not (one.step in damage and one.order >= first)]
    for one in found:
        if one.step in dropped and _is_still(storage, one):
            storage.discard_folder(one.folder, form.WRITING, form.MANIFEST)
    notes = (f"step {step} is {why}; it is not counted among those that are kept" for step, why in damage.items())
    return tuple(sorted(dropped)), tuple(notes)


def _is_still(storage: Storage, one: Found) -> bool:
    """Not another checkpoint of the same step, made while this process stood still."""
    now = next((other for other in find_steps(storage) if other.step == one.step), None)
    return now is not None and now.manifest == one.manifest


def _damage(storage: Storage, one: Found) -> str:
    """Damage of the ranks' parts; "" if there is none."""
    assert one.manifest is not None
    for rank, expected in enumerate(one.manifest.parts):
        name = f"{one.folder}/{form.rank_name(rank)}"
        if form.checksum(storage.read(name)) != expected and form.checksum(storage.read(name)) != expected:
            return f"damaged: {name}: its checksum is not that of the manifest"
    return ""


def collect(storage: Storage, *, committed: tuple[int, str] | None = None) -> int:
    """Remove abandoned drafts and objects that no checkpoint or draft refers to; returns how many objects.

    `committed`: drafts up to this step of this run are superseded. Gives way to writers: then the next commit does it.
    """
    claim = _claim(storage)
    try:
        if _is_anybody(storage, _COMMITTING):
            return 0
        names = storage.names(form.WRITING)
        drafts = [name for name in names if form.draft_of(name) is not None]
        if any(_is_writing(storage, f"{form.WRITING}/{name}") for name in drafts):
            return 0
        for name in drafts:
            _drop_stale_draft(storage, name, committed)
        for name in set(names) - set(drafts):
            _drop_leftover(storage, name)
        for one in find_steps(storage):
            if one.why == NO_MANIFEST and _is_old(storage, one.folder):  # half removed, or half put in place
                storage.remove(one.folder)
        # List the objects before the references are read: objects made from now on are not in the list.
        objects = list(_all_objects(storage))
        return _drop_objects(storage, claim, objects, _referred(storage))
    except FileNotFoundError:
        return 0  # another process moves or removes what is being looked at: the next commit collects
    finally:
        if claim is not None:
            claim.give_up()


def _claim(storage: Storage) -> Claim | None:
    """None on a full disk, where collecting is what helps; a commit looks at every object again."""
    try:
        return Claim(storage, _own_name(_COLLECTING))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return None
        raise


def _is_old(storage: Storage, folder: str) -> bool:
    ages = [storage.age_s(f"{folder}/{file}") for file in storage.names(folder)]
    return all(age_s is not None and age_s > _DRAFT_STALE_S for age_s in ages)


def _is_writing(storage: Storage, draft: str) -> bool:
    return any(is_claimed(storage, f"{draft}/{name}") for name in storage.names(draft) if name.startswith(_CLAIM))


def _drop_leftover(storage: Storage, name: str) -> None:
    """Drop what is no draft: folders that were replaced, claims of processes that were killed."""
    path = f"{form.WRITING}/{name}"
    draft = form.draft_of(name.removesuffix(REPLACED))
    if name.endswith(REPLACED) and draft is not None and not storage.names(form.step_name(draft.step)):
        storage.rename(path, form.step_name(draft.step))  # who replaced it was killed before the other was there
        return
    is_claim = name.startswith((_COLLECTING, _COMMITTING))
    if name.endswith((REPLACED, DISCARDED)) or (is_claim and not is_claimed(storage, path)):
        storage.remove(path)


def _drop_stale_draft(storage: Storage, name: str, committed: tuple[int, str] | None) -> None:
    found = form.draft_of(name)
    draft = f"{form.WRITING}/{name}"
    is_superseded = (
        found is not None
        and committed is not None
        and (found.step <= committed[0] and found.run == form.run_tag(committed[1]))
    )
    if is_superseded or _is_old(storage, draft):
        storage.remove(draft)


def _referred(storage: Storage) -> set[str]:
    """Objects in use, of drafts first and then of steps. Raises OSError: something cannot be read, so its references
    are unknown; FileNotFoundError: a folder vanished meanwhile. Nothing is collected then."""
    used: set[str] = set()
    for name in storage.names(form.WRITING):
        if form.draft_of(name) is not None:
            used |= _objects_in(storage, f"{form.WRITING}/{name}")
    for one in find_steps(storage):
        if one.why != NO_FOLDER:
            used |= _objects_in(storage, one.folder, "" if one.manifest is None else form.MANIFEST)
    return used


def _objects_in(storage: Storage, folder: str, expected: str = "") -> set[str]:
    """Raises FileNotFoundError when `expected` is not there (any more)."""
    used: set[str] = set()
    names = storage.names(folder)
    if expected and expected not in names:
        raise FileNotFoundError(errno.ENOENT, "it vanished", storage.path(f"{folder}/{expected}"))
    for name in names:
        if name.startswith("rank-"):
            used.update(_objects_of(storage, f"{folder}/{name}"))
    if form.METADATA in names:
        # Of a step that has lost a rank's part, this is what others can still read.
        used.update(found.decode() for found in _NAMED.findall(storage.read(f"{folder}/{form.METADATA}")))
    return used


def _objects_of(storage: Storage, name: str) -> Iterable[str]:
    """The objects of a part; () if it is damaged, also when it is read once more: they cannot be known any more."""
    for _ in range(2):
        try:
            return form.unseal(name, storage.read(name), form.RankPart).objects
        except form.NewerFormError as error:
            raise OSError(0, f"{error}; its objects are not known, so none is removed", storage.path(name)) from error
        except form.DamagedFileError:
            continue
    return ()


_NAMED = re.compile(rb"objects/[0-9a-f]{2}/([0-9a-f]{32})")


def _all_objects(storage: Storage) -> Iterable[str]:
    if isinstance(storage, FolderStorage):
        storage.remove_leftovers(form.WRITING)
    for folder in storage.names(form.OBJECTS):
        if isinstance(storage, FolderStorage):
            storage.remove_leftovers(f"{form.OBJECTS}/{folder}")
        names = storage.names(f"{form.OBJECTS}/{folder}")
        yield from (name for name in names if form.is_object(name.removesuffix(form.DAMAGED)))


def _drop_objects(storage: Storage, claim: Claim | None, objects: list[str], used: set[str]) -> int:
    unused = [name for name in objects if name.removesuffix(form.DAMAGED) not in used]
    for number, name in enumerate(unused):
        if claim is not None and not claim.renew():
            return number  # writers may have begun: the rest is for the next commit
        storage.remove(form.object_name(name))
    return len(unused)
