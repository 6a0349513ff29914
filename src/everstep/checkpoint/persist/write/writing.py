"""Writes a node's part of a checkpoint: its ranks' snapshots, from memory, into objects and one file per rank.

Answers: is the part of these ranks there, durable and whole. A process that is killed at any moment leaves older
checkpoints as they were, and this one without a part. Called by `python -m everstep.checkpoint.persist write`, which
the agent starts; nothing here runs in a rank.

Several nodes write at the same time. What they hold in common (replicated state) has the same objects; each begins at
another place of the list and leaves out what it finds there already, so together they write it about once.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress

import msgspec

from everstep.checkpoint.persist.form import form
from everstep.checkpoint.persist.read.streams import Layouts, ObjectPlan, Packer
from everstep.checkpoint.persist.store.claims import RENEW_S, STALE_S, Claim
from everstep.checkpoint.persist.store.retention import await_collector, claim_name, collect
from everstep.checkpoint.persist.store.storage import Storage, open_storage
from everstep.checkpoint.persist.write.sources import Source, open_all, open_source, plan_part
from everstep.errors import SnapshotError

_NUM_THREADS = 4
"""Writing waits for fsync and for round trips; serialising holds the interpreter only for a part of the time."""


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The report to the agent."""

    written_bytes: int = 0
    total_bytes: int = 0  # what it would have been without reused objects
    why: str = ""


def write(
    root: str, *, step: int, generation: int, world_size: int, arenas: Mapping[int, int], run: str = ""
) -> Written:
    """Persist `step` of these ranks (rank: fd of its arena). Raises OSError, SnapshotError."""
    storage = open_storage(root)
    draft = form.draft_name(step, generation, run)
    sources = [open_source(fd, step, rank, world_size) for rank, fd in sorted(arenas.items())]
    claim = _claim(storage, claim_name(draft, min(arenas)))
    writer = _Writer(storage, claim)
    try:
        await_collector(storage, claim)
        written = writer.write(sources, draft, generation, run)
    except BaseException as error:
        # A part that failed leaves nothing that takes space, above all when space is what was missing. What goes wrong
        # here is the fault that is being reported, once more.
        with suppress(OSError):
            writer.undo()
            claim.give_up()
            if isinstance(error, Exception):  # not when it is ended: there is a second until it is killed
                collect(storage)
        raise
    claim.give_up()
    return written


def _claim(storage: Storage, name: str) -> Claim:
    try:
        return Claim(storage, name)
    except OSError:
        with suppress(OSError):  # the disk may be full of what a killed process left
            collect(storage)
        return Claim(storage, name)


class _Writer:
    def __init__(self, storage: Storage, claim: Claim) -> None:
        self._storage = storage
        self._claim = claim
        self._made: list[str] = []
        self.written_bytes = 0

    def write(self, sources: list[Source], draft: str, generation: int, run: str) -> Written:
        packer, layouts = Packer(), Layouts()
        stored = open_all(sources)
        parts = [
            plan_part(source, stored[source.rank], packer, layouts, generation, run, self._go_on) for source in sources
        ]
        self._write_objects(list(packer.objects.values()), sources[0].rank / sources[0].world_size)
        for source in sources:
            if not source.is_intact():
                raise SnapshotError(
                    f"rank {source.rank} has overwritten the snapshot of step {source.snapshot.step} meanwhile"
                )
        for part in parts:
            self.written_bytes += self._storage.write(f"{draft}/{form.rank_name(part.rank)}", [form.seal(part)])
        total_bytes = sum(plan.num_bytes for plan in packer.objects.values())
        return Written(written_bytes=self.written_bytes, total_bytes=total_bytes)

    def _write_objects(self, plans: list[ObjectPlan], share: float) -> None:
        begin = int(share * len(plans))
        ordered = plans[begin:] + plans[:begin]
        with ThreadPoolExecutor(_NUM_THREADS) as pool:
            try:
                for future in [pool.submit(self._write_object, plan) for plan in ordered]:
                    while not future.done():
                        wait((future,), timeout=RENEW_S)
                        self._go_on()
                    self.written_bytes += future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _go_on(self) -> None:
        """Called at least every few seconds, whatever is under way."""
        if not self._claim.renew():
            raise SnapshotError(
                f"this process or the storage stood still for more than {STALE_S / 2:.0f} s: what was written "
                "may have been removed as what a killed process left"
            )

    def _write_object(self, plan: ObjectPlan) -> int:
        name = form.object_name(plan.name)
        found = self._storage.size(name)
        if found == plan.num_bytes:
            return 0
        num_bytes = self._storage.write(name, plan.chunks())
        if found is None:
            self._made.append(name)
        if num_bytes != plan.num_bytes:
            raise SnapshotError(f"{name} has {num_bytes:,} bytes instead of {plan.num_bytes:,}: a fault of everstep")
        return num_bytes

    def undo(self) -> None:
        """Remove what this attempt made. Nothing refers to it yet, or another attempt that does
        notices before it commits."""
        for name in self._made:
            self._storage.remove(name)
