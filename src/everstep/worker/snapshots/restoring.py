"""The state that a rank begins with after a restart: a snapshot in its memory, or a checkpoint in the persistent tier.

Answers with the values to load; it loads nothing into the program's objects itself but for checkpoints, which are
spread over another number of ranks on the way. Raises SnapshotError, because a job that was to resume and silently
started over would be worse than one that ends with a reason; before that it reports to the agent, so that another
source is tried. Called by `everstep.State`, once.
"""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch

from everstep.checkpoint import arena as arenas
from everstep.checkpoint.packing import DamagedError
from everstep.checkpoint.pending import Pending
from everstep.checkpoint.stored import Stored
from everstep.errors import SnapshotError
from everstep.worker.process.saying import say
from everstep.worker.process.signals import came_from_signal
from everstep.worker.snapshots import spreading
from everstep.worker.snapshots.memory import pinning, pinning_ahead
from everstep.worker.snapshots.reading import Reading

if TYPE_CHECKING:
    from everstep.wire.frames import RankTells, RestoreTold, Source

MAX_THREADS = 4
"""That compare a snapshot with its sums: one reads some 10 to 20 GB/s."""

BEGIN_ANEW = "to begin from the start, end this run and start a new one"


class Runtime(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int
    world_size: int
    resume_step: int | None
    arenas: list[int]
    siblings: dict[int, list[int]]
    reading: "Attempt | None"
    restore_path: str
    init_from: str
    generation: int
    former_world: int
    former: dict[int, int]

    def tell(self, frame: "RankTells") -> None: ...


class Loaded(Protocol):
    """The result of `checkpoint.persist.read.reading.load_into`."""

    @property
    def step(self) -> int | None: ...
    @property
    def random(self) -> Any: ...  # noqa: ANN401
    @property
    def ddp_order(self) -> Any: ...  # noqa: ANN401
    @property
    def resharded(self) -> bool: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def read_ahead(runtime: Runtime) -> None:
    """Begin to read what the rank will resume from, while the program is busy with something else. Never raises."""
    try:
        is_own = runtime.resume_step is not None and not runtime.restore_path and not is_spread(runtime)
        if is_own and runtime.resume_step is not None and getattr(runtime, "reading", None) is None:
            runtime.reading = Attempt(runtime, runtime.resume_step)
    except Exception as error:
        if came_from_signal(error):
            raise
        runtime.reading = None  # no thread to be had: State reads it


def begin(runtime: Runtime) -> "Attempt | None":
    """The snapshot that all ranks resume from, as it is being read; None: there is none, or it lies elsewhere.

    Snapshots of later steps are forgotten: from here on the job writes another history.
    """
    step = runtime.resume_step
    for fd in runtime.arenas:
        arenas.invalidate_after(fd, -1 if step is None else step)
    if step is None or runtime.restore_path or is_spread(runtime):
        return None
    begun: Attempt | None = getattr(runtime, "reading", None)
    runtime.reading = None
    return begun or Attempt(runtime, step)


def is_spread(runtime: Runtime) -> bool:
    """Whether the snapshots that it resumes from were taken by another number of ranks."""
    return bool(getattr(runtime, "former_world", 0))


class Attempt:
    """To read one snapshot; says which rank's memory it failed at. All raise SnapshotError."""

    def __init__(self, runtime: Runtime, step: int) -> None:
        self._runtime = runtime
        self._step = step
        self._at_rank = runtime.rank  # whose snapshot is being read
        self._source: _Source | None = None
        self._pinned: pinning.Pinned | None = None
        self._ahead: pinning_ahead.PinningAhead | None = None
        self._reading = Reading(self._open)

    def opened(self) -> Stored:
        """Its bytes were not compared yet."""
        return self._told(self._reading.opened)

    @property
    def arena(self) -> arenas.Arena | None:
        """This rank's own memory, once it is open."""
        return self._source.arena if self._source is not None else None

    def pending(self, name: str, own: Callable[[], Mapping[str, torch.Tensor]]) -> Pending | None:
        """A part to be filled by the caller, which is the program's thread: what was on a device is made there now,
        unless it goes into `own`."""
        pending = self._reading.pending(name)
        if pending is not None:
            if pending.is_flat:
                pending.redirect(own())
            return pending
        stored = self._reading.opened()
        if not stored.devices:
            return None
        pending = stored.pending_on_devices(name, own())
        if self._pinned is None and self._source is not None:  # also for what is copied by the load itself
            self._pinned = pinning.begin_with(self._source.arena, stored.devices[0], self._source.snapshot.buffer)
        return pending

    def make_ready(self, view: torch.Tensor) -> None:
        """A device is about to read this view of the snapshot: wait until it may do so by itself."""
        if self._pinned is not None and view.nbytes:
            self._pinned.wait(view.data_ptr() + view.nbytes - 1)

    def whole(self) -> Stored:
        """All of it was compared with its sums, and what the reading thread fills is filled."""
        self._end_ahead()
        return self._told(self._reading.whole)

    def end(self) -> None:
        """It is not used."""
        self._end_ahead()
        self._reading.end()

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.end()

    def _open(self) -> tuple[Stored, Callable[[], None]]:
        runtime, rank = self._runtime, self._runtime.rank
        mine = self._source = _open(*_find(runtime, self._step))
        for device in [each for each in mine.stored.devices if each.type == "cuda"][:1]:
            self._ahead = pinning_ahead.begin(mine.arena, device, mine.snapshot.buffer)
        sources = {rank: mine}
        for self._at_rank in mine.stored.partners:
            sources[self._at_rank] = _open(*_find_partner(runtime, self._at_rank, self._step))
        self._at_rank = rank
        mine.stored.complete({other: one.stored for other, one in sources.items() if other != rank})

        def check() -> None:
            for self._at_rank, source in sources.items():
                source.check()
            self._at_rank = rank

        return mine.stored, check

    def _told(self, ask: Callable[[], Stored]) -> Stored:
        try:
            return ask()
        except SnapshotError:
            raise  # it is not there, or not for this job
        except Exception as error:
            if came_from_signal(error):
                raise
            is_damaged = not isinstance(error, OSError)
            rank = self._at_rank
            tell(self._runtime, "memory", "", str(error), is_damaged=is_damaged, rank=rank)
            what = "is damaged" if is_damaged else "cannot be read"
            why = f"the snapshot of step {self._step} on rank {rank} {what}: {error}; {BEGIN_ANEW}"
            raise SnapshotError(why) from error


def confirm(runtime: Runtime, stored: Stored) -> None:
    """Check that the snapshot stayed intact while it was read. Ranks that share a state resume at about the same time,
    and one that is ahead by several steps may have overwritten what this one still read. Raises SnapshotError."""
    if not stored.is_intact():
        why = "another rank of the node has overwritten its part while it was being read"
        tell(runtime, "memory", "", why, is_damaged=True)
        raise SnapshotError(f"the snapshot of step {runtime.resume_step} on rank {runtime.rank}: {why}; {BEGIN_ANEW}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """The snapshot of one rank."""

    stored: Stored
    arena: arenas.Arena
    snapshot: arenas.Snapshot

    def check(self) -> None:
        """Raises DamagedError, OSError."""
        damage = arenas.verify(self.arena.fd, self.snapshot, self.stored.memory, _num_threads())
        if damage:
            raise DamagedError(damage)


def _num_threads() -> int:
    """This rank's share of the CPUs, and few."""
    share = len(os.sched_getaffinity(0)) // max(1, int(os.environ.get("LOCAL_WORLD_SIZE") or 1))
    return max(1, min(MAX_THREADS, share))


def _open(fd: int, snapshot: arenas.Snapshot) -> _Source:
    """Raises DamagedError, OSError."""
    arena = arenas.Arena(fd)
    memory = arena.buffer(snapshot.buffer)
    place = snapshot.buffer, snapshot.step, snapshot.generation

    def is_there() -> bool:
        return any((s.buffer, s.step, s.generation) == place for s in arenas.inspect(fd).snapshots)

    parts = snapshot.length, snapshot.skeleton_bytes, snapshot.skeleton_crc
    try:
        stored = Stored(memory, *parts, is_sealed=snapshot.sealed, is_there=is_there)
    except DamagedError as error:
        damage = arenas.verify(fd, snapshot, memory)  # it knows which bytes
        raise DamagedError(damage or str(error)) from error
    return _Source(stored, arena, snapshot)


def from_disk(runtime: Runtime, objects: Mapping[str, Any]) -> Loaded | None:
    """Load the checkpoint that the job resumes from, or begins with, into the objects; None: there is none to load.
    Raises SnapshotError."""
    if is_spread(runtime):
        return _from_former(runtime, objects)
    path = runtime.restore_path if runtime.resume_step is not None else runtime.init_from
    if not path:
        return None
    from everstep.checkpoint.persist.read import reading  # needs fsspec, which few jobs load

    try:
        loaded: Loaded = reading.load_into(path, objects, rank=runtime.rank, world_size=runtime.world_size)
        if runtime.rank == 0:
            _say(loaded)
        return loaded
    except Exception as error:
        if came_from_signal(error):
            raise
        if isinstance(error, SnapshotError):
            _note_fixed(runtime, path, str(error))
            raise  # it is whole and does not fit: no other one would
        if runtime.resume_step is not None:
            tell(runtime, "disk", path, str(error), is_damaged=isinstance(error, DamagedError))
        raise SnapshotError(
            f"the checkpoint at {path} cannot be loaded on rank {runtime.rank}: {type(error).__name__}: {error}"
        ) from error


def _from_former(runtime: Runtime, objects: Mapping[str, Any]) -> Loaded:
    try:
        loaded = spreading.from_former(runtime, objects)
    except spreading.DamagedSourceError as error:
        tell(runtime, "memory", "", str(error), is_damaged=True, rank=error.rank)
        whose = f"rank {error.rank} of {runtime.former_world}"
        raise SnapshotError(f"the snapshot of step {runtime.resume_step} of {whose} is damaged: {error}") from error
    if runtime.rank == 0:
        _say(loaded, "the snapshot")
    return loaded


def _note_fixed(runtime: Runtime, path: str, why: str) -> None:
    """Whether it would fit with the number of ranks that wrote it, is for the run to find out: it goes back to that."""
    from everstep.checkpoint.persist.store.files import locate, read_manifest

    with contextlib.suppress(Exception):
        manifest = read_manifest(*locate(path))
        if manifest is not None and manifest.world_size != runtime.world_size:
            spreading.tell_fixed(runtime, manifest.world_size, why)


def _say(loaded: Loaded, what: str = "the checkpoint") -> None:
    """Print what is not as exact as usual; it is the same on all ranks, so one of them prints it."""
    notes = list(loaded.notes)
    if loaded.resharded and loaded.step is not None:
        notes.append(
            f"{what} of step {loaded.step} was written with another number of ranks or another layout: "
            "random state and the order of DDP's sums begin anew"
        )
    for note in notes:
        say(note)


def tell(
    runtime: Runtime,
    source: "Source",
    where: str,
    why: str,
    *,
    is_damaged: bool,
    is_unfit: bool = False,
    rank: int | None = None,
) -> None:
    """Report that what this rank was to begin with cannot be used.

    `is_damaged`: no rank can ever use it; otherwise it could not be read from here and now, which proves nothing about
    the bytes. `is_unfit`: it is whole, and the program does not load it. `rank`: whose it is, if not this rank's."""
    told: RestoreTold = {
        "step": runtime.resume_step,
        "source": source,
        "where": where,
        "why": why[:1000],
        "is_damaged": is_damaged,
    }
    if is_unfit:
        told["is_unfit"] = True
    if rank is not None and rank != runtime.rank:
        told["rank"] = rank
    runtime.tell({"restore_failed": told})


def _find(runtime: Runtime, step: int) -> tuple[int, arenas.Snapshot]:
    """The newest snapshot of `step` in any arena of this rank. Raises SnapshotError."""
    best: tuple[int, arenas.Snapshot] | None = None
    seen = []
    for fd in runtime.arenas:
        contents = arenas.inspect(fd)
        steps = [snapshot.step for snapshot in contents.snapshots]
        seen.append(contents.why or f"steps {steps} of rank {contents.rank}")
        if not contents.why and contents.world_size != runtime.world_size:
            raise SnapshotError(
                f"the snapshot of step {step} was taken with {contents.world_size} ranks, this generation has "
                f"{runtime.world_size}: state cannot be spread over another number of ranks. "
                f"Run with {contents.world_size} ranks again, or {BEGIN_ANEW}"
            )
        for snapshot in contents.snapshots if contents.rank == runtime.rank else ():
            if snapshot.step == step and (best is None or snapshot.generation >= best[1].generation):
                best = fd, snapshot
    if best is None:
        raise SnapshotError(
            f"rank {runtime.rank} was told to resume after step {step} but its memory does not hold that step: "
            f"{'; '.join(seen) or 'it was given none'}; {BEGIN_ANEW}"
        )
    return best


def _find_partner(runtime: Runtime, rank: int, step: int) -> tuple[int, arenas.Snapshot]:
    """Return the newest snapshot of `step` in any arena of another rank of this node. Raises DamagedError."""
    found = [
        (fd, snapshot)
        for fd in runtime.siblings.get(rank, ())
        for snapshot in arenas.inspect(fd).snapshots
        if snapshot.step == step
    ]
    if not found:
        raise DamagedError(f"rank {rank} of this node, which keeps a part of it, does not hold that step")
    return max(found, key=lambda each: each[1].generation)
