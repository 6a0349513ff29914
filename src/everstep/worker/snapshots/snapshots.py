"""Keeps a rank's snapshots in the memory that its agent owns.

Answers: where does the next snapshot go, and when is it copied. Called by `everstep.State`, once per completed step.
`take` never raises for a failure of ours: it says once on stderr what happened, reports it, and training continues with
the last good snapshot or with none. What a restart begins with is `worker.snapshots.restoring`'s business.

A large state is not waited for: what may change at any time is copied at once, parameters and optimizer state while
the next step runs (`worker.snapshots.copying`). Whether a step is copied, or only made ready so that it could be, is
`worker.snapshots.cadence`'s business.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from everstep.checkpoint import arena as arenas
from everstep.checkpoint.packing import Packed, Packer, Target, copy
from everstep.checkpoint.recalling import PartError
from everstep.worker.digests import ddp_order, replicas
from everstep.worker.link.hold import Hold
from everstep.worker.link.runtime import ArenaRefused
from everstep.worker.process.capturing import is_capturing
from everstep.worker.process.saying import say
from everstep.worker.process.signals import came_from_signal
from everstep.worker.snapshots import cadence
from everstep.worker.snapshots.copying import TORN, Copier, Job
from everstep.worker.snapshots.dividing import Dividing
from everstep.worker.snapshots.memory import pinning
from everstep.worker.snapshots.memory.space import Space
from everstep.worker.snapshots.stepping import Optimizers

if TYPE_CHECKING:
    from everstep.wire.frames import RankTells

SMALL_BYTES = 16 << 20
"""Copied in about 2 ms: less than handing it to a thread would cost a program that computes in Python."""

FELT_BYTES = 16 << 20
"""The same for what must be copied at once of a large state: more of it slows down the pace, as waiting does."""

MIN_UNHURRIED = 4
"""Buffers without which training waits for each copy: one is written, and the two newest must stay, as a peer that dies
during its copy has the older one only."""

NUM_SKIPPED = 30
"""Steps in a row for which no buffer is left before that is said: copies to a peer or to disk take a while."""

MODE_VARIABLE = "EVERSTEP_SNAPSHOT"

MAX_WHY = 1000

INCOMPLETE = "training continues, and after a fault the program begins as it does under torchrun"


class Board(Protocol):
    def set_published_step(self, step: int) -> None: ...
    def add_stall_s(self, seconds: float) -> None: ...
    def add_restore_s(self, seconds: float) -> None: ...


class Runtime(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int
    world_size: int
    generation: int
    siblings: dict[int, list[int]]
    divides: bool
    arenas: list[int]
    snapshot_buffers: int
    digest_every: int
    save_now: Callable[[float], tuple[int | None, str]] | None
    hold: Hold
    no_snapshots: str

    @property
    def board(self) -> Board: ...
    def request_arena(self, num_bytes: int, *, is_patient: bool = False) -> int: ...
    def report_fault(self, where: str, why: str) -> None: ...
    def tell(self, frame: "RankTells") -> None: ...


class Snapshots:
    """The snapshots of this process. One per State under `everstep run`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._packer = Packer()
        self._space = Space(runtime, lambda what: self._tell("memory", what))
        self._arena: arenas.Arena | None = None
        self._targets: list[Target] = []
        self.plan: object = None
        """Of what was packed last: the same object for as long as it has the same tensors."""
        self.optimizers = Optimizers()
        """Those that step in this process."""
        self._dividing = Dividing(runtime, self.optimizers)
        self._copier = Copier(self)
        self._cadence: cadence.Cadence | None = None
        self._pinned: pinning.Pinned | None = None
        self._is_off = bool(runtime.no_snapshots)  # also where memory is refused: it is not asked for again
        self._is_hurried = os.environ.get(MODE_VARIABLE) == "sync"
        self._is_compared = False
        self._step: int | None = None  # the last one that `take` was called for
        self._job: Job | None = None  # ... and its copy
        self._published_step: int | None = None
        self._taking = threading.Lock()
        self._num_skipped = 0
        self._num_done = 0  # steps that `take` was called for
        self._told: set[str] = set()
        self._pid = os.getpid()
        runtime.save_now = self.save_now
        _watch_optimizers(self)

    def begin(self, objects: Iterable[object]) -> None:
        """A loop begins. `objects`: what is kept, in which the replicas are declared."""
        if self._dividing.is_possible:
            self._dividing.begin(replicas.of_state(objects, ddp_order.find(objects)))

    def take(self, step: int, parts: Callable[[], Mapping[str, Any]]) -> bool:
        """Snapshot what `parts` returns as the state after `step`; False if it could not be done. Of a large state the
        copy may still run when this returns."""
        if self._is_off or os.getpid() != self._pid:
            return False
        began = time.perf_counter()
        self._copier.hold_sealing()
        try:
            with self._taking:
                self._step, self._job = step, None
                self._num_done += 1
                self._copier.settle()
                return self._take(step, parts())
        except ArenaRefused as refusal:
            self._is_off = True
            self._tell("arena", str(refusal))
        except PartError as error:
            if error.__cause__ is not None and came_from_signal(error.__cause__):
                raise error.__cause__ from None
            self._tell(
                f"part {error.part}",
                f"no snapshot of step {step}: State keyword {error.part!r} could not be saved ({error}); the last good "
                "snapshot is kept and training continues. Make its state_dict() return what pickle can store",
            )
        except Exception as error:
            if came_from_signal(error):
                raise
            self._tell("snapshot", f"no snapshot of step {step}: {type(error).__name__}: {error}; training continues")
        finally:
            self._copier.let_seal()
            self._runtime.board.add_stall_s(time.perf_counter() - began)
        return False

    def finish(self) -> None:
        """The loop is over: let the last copy come to its end."""
        if os.getpid() != self._pid:
            return  # a child of the program's own has this object too, and neither the thread nor a say
        began = time.perf_counter()
        job = self._copier.job
        if job is not None:
            self._copier.start(job)
        self._copier.settle()
        self._runtime.board.add_stall_s(time.perf_counter() - began)

    def save_now(self, limit_s: float) -> tuple[int | None, str]:
        """Complete the snapshot of the last completed step, from another thread; its step, or why not."""
        until = time.monotonic() + limit_s
        if not self._taking.acquire(timeout=limit_s):
            return None, "a snapshot is being taken, and does not come to its end"
        self._taking.release()
        step, job = self._step, self._job
        if step is None:
            return None, "no step is complete"
        if job is not None:
            self._copier.finish(job, until)
        if self._published_step == step:
            return step, ""
        why = _why_not(job) if job is not None else "it could not be taken"
        return None, f"step {step} was not kept: {why}"

    def refuse(self, step: int, why: str) -> None:
        """Stop taking snapshots: the State does not keep all that a step changes. No snapshot of this process is taken
        or trusted."""
        self._is_off = True
        self.finish()
        if self._arena is not None:
            arenas.invalidate_after(self._arena.fd, -1)
        self._published_step = None
        self._runtime.board.set_published_step(-1)
        say(f"rank {self._runtime.rank}: no snapshots from step {step} on: {why}; {INCOMPLETE}")
        self._runtime.tell({"incomplete": {"step": step, "why": why[:MAX_WHY]}})

    def warn(self, where: str, what: str) -> None:
        """Say something on stderr and report it, once per `where`."""
        self._tell(where, what)

    def _take(self, step: int, parts: Mapping[str, Any]) -> bool:
        has_stepped = self.optimizers.take_seen()
        packed = self._packer.pack(parts, self._dividing.of)
        self.plan = packed.plan
        # What waits for a device would hold up the program, however small it is.
        is_small = packed.plan.data_bytes <= SMALL_BYTES and not packed.devices
        wanted = self._runtime.snapshot_buffers
        if wanted >= MIN_UNHURRIED:
            wanted = min(wanted + 1, arenas.MAX_BUFFERS)  # the one before the newest
        arena = self._space.get(packed.num_bytes, wanted)
        if arena is None:
            return False
        self._use(arena, packed)
        has_room = arena.num_buffers >= MIN_UNHURRIED
        is_hurried = is_small or self._is_hurried or not has_stepped or not has_room
        is_due = not has_room or self._is_due(step, arena)
        if not is_due and (self._is_hurried or not has_stepped or self.optimizers.of(packed).now_bytes > FELT_BYTES):
            return False  # nothing would invalidate it, or staging it would stall the step
        index = arena.begin(step, self._runtime.generation, self.is_candidate, keep_previous=has_room)
        if index is None:
            self._skipped(step, arena)
            return False
        self._num_skipped = 0
        if is_hurried and is_due:
            self._take_at_once(arena, index, packed, is_small)
            return True
        job = self._job = self._divide(step, arena, index, packed)
        self._copier.prepare(job)
        if is_due:
            self._copier.start(job)
            self._is_compared = True
        return is_due

    def _is_due(self, step: int, arena: arenas.Arena) -> bool:
        """Whether this step is kept. Also where the pace is slower: steps that may come to be trusted, and those that
        are pinned or held for."""
        if self._cadence is None:
            self._cadence = cadence.begin(self._runtime.world_size, self._runtime.rank)
        self._cadence.step_done(time.monotonic())
        every = self._cadence.every
        is_due = self._cadence.is_due(self._num_done - 1)
        if self._cadence.every != every:
            self._tell(f"pace from step {step}", _pace_text(self._cadence, step))
        if self._cadence.why:
            self._tell("pace", f"the pace of snapshots stays every {every} steps: {self._cadence.why}")
        return is_due or self.is_candidate(step) or step in arenas.pins(arena.fd) or self._runtime.hold.is_due(step)

    def _skipped(self, step: int, arena: arenas.Arena) -> None:
        self._num_skipped += 1
        if self._num_skipped == NUM_SKIPPED:
            needed = sorted({pinned for pinned in arenas.pins(arena.fd) if pinned is not None})
            self._tell(
                "buffers",
                f"no snapshots of the last {NUM_SKIPPED} steps, up to step {step}: all {arena.num_buffers} buffers "
                f"hold steps that must stay (of use to others: {needed}); a larger snapshot_buffers in the policy "
                "leaves room",
            )

    def _take_at_once(self, arena: arenas.Arena, index: int, packed: Packed, is_small: bool) -> None:
        snapshot = arena.publish(*self._targets[index].write(packed))
        self.note_published(snapshot.step)
        if is_small:
            arena.seal(snapshot)  # its bytes are still in the CPU's caches
        else:
            self._copier.seal(arena, snapshot)

    def _divide(self, step: int, arena: arenas.Arena, index: int, packed: Packed) -> Job:
        """Copy now what may change at any time; the rest becomes the job."""
        target, theirs = self._targets[index], self.optimizers.of(packed)
        places, tensors = target.places(packed), packed.tensors
        later, now = theirs.later, theirs.now
        if packed.devices:
            # A copy on the device is in order with what the program does there, so nothing has to wait for it.
            tensors = list(tensors)
            for number in now:
                if tensors[number].device.type != "cpu":
                    tensors[number] = tensors[number].detach().clone(memory_format=torch.preserve_format)
            later = later + [number for number in now if tensors[number].device.type != "cpu"]
            now = [number for number in now if tensors[number].device.type == "cpu"]
        began = time.perf_counter()
        copy(_picked(now, places), _picked(now, tensors))
        took_s = time.perf_counter() - began
        return Job(
            step=step,
            arena=arena,
            where=target.write_skeleton(packed),
            places=_picked(later, places),
            tensors=_picked(later, tensors),
            owners=_picked(theirs.later, packed.owners),
            devices=packed.devices,
            is_to_compare=not self._is_compared and any(tensors[number].device.type == "cpu" for number in later),
            at_once_s=took_s if theirs.now_bytes > FELT_BYTES else 0.0,
        )

    def is_candidate(self, step: int) -> bool:
        """Whether this step's parameters are digested: it may come to be trusted."""
        every = self._runtime.digest_every
        return every > 0 and self._runtime.world_size > 1 and (step + 1) % every == 0

    def adopt(self, arena: arenas.Arena) -> None:
        """The state was restored from this memory of the rank's own, which is mapped already."""
        self._space.adopt(arena)

    def _use(self, arena: arenas.Arena, packed: Packed) -> None:
        if arena is not self._arena:
            self._arena = arena
            self._targets = [Target(arena.buffer(index)) for index in range(arena.num_buffers)]
            pinning.keep_only(arena)
        for device in packed.devices[:1]:
            pinned = self._pinned = pinning.begin(arena, device)
            if pinned is not None and pinned.why:
                what = f"memory for snapshots is not page-locked ({pinned.why}): optimizers wait longer for each copy"
                self._tell("pinning", what)

    def before_optimizer(self, optimizer: object) -> None:
        """Parameters are about to change."""
        try:
            if is_capturing():
                self._is_hurried = self.optimizers.is_hidden = True  # a replay of the graph does not call this hook
                return
            self._copier.hold_sealing()
            self.optimizers.saw(optimizer)
            job = self._copier.job
            if job is not None and not job.is_released:
                waited_s = self._copier.device_waited_s() + self._copier.before_change()
                self._runtime.board.add_stall_s(waited_s)
                is_usual = self._pinned is None or not self._pinned.is_under_way
                if self._cadence is not None and not job.why and is_usual:
                    self._cadence.waited(waited_s + job.at_once_s, self._num_done - 1, time.monotonic())
        except Exception as error:
            if came_from_signal(error):
                raise
            self._is_hurried = True
            self._tell("snapshot", f"{type(error).__name__}: {error}; training continues")

    def note_published(self, step: int) -> None:
        self._published_step = step
        self._runtime.board.set_published_step(step)

    def note_failed(self, job: Job) -> None:
        if self._published_step == job.step:  # it was taken back
            self._published_step = max(arenas.held_steps(job.arena.fd), default=None)
            self._runtime.board.set_published_step(-1 if self._published_step is None else self._published_step)
        if job.why == TORN:
            self._is_hurried = True
            self._tell("torn", f"no snapshot of step {job.step}: {TORN}; from now on training waits for each copy")
        else:
            self._tell("snapshot", f"no snapshot of step {job.step}: {job.why}; training continues")

    def _tell(self, where: str, what: str) -> None:
        if where in self._told:
            return
        self._told.add(where)
        say(f"rank {self._runtime.rank}: {what}")
        self._runtime.report_fault(f"state: {where}", what)


def _picked(numbers: list[int], among: list[torch.Tensor]) -> list[torch.Tensor]:
    """Those of these numbers."""
    return list(itemgetter(*numbers)(among)) if len(numbers) > 1 else [among[number] for number in numbers]


def _pace_text(pace: cadence.Cadence, step: int) -> str:
    share = "" if pace.share is None else f" (this rank's optimizers waited for {pace.share:.1%} of a step before)"
    if pace.every == 1:
        return f"from step {step} on each step is kept in memory again{share}"
    return f"from step {step} on one of {pace.every} steps is kept in memory{share}"


def _why_not(job: Job) -> str:
    """A copy that was to be finished is not published."""
    if job.is_withheld:
        return "the first copy of a process is kept once it was compared, when the next optimizer steps"
    return job.why or "its copy is not over in time"


def _watch_optimizers(snapshots: Snapshots) -> None:
    """Have torch call `before_optimizer`, for as long as this object lives."""
    reference = weakref.ref(snapshots)

    def before_step(optimizer: object, _args: object, _kwargs: object) -> None:
        alive = reference()
        if alive is not None:
            alive.before_optimizer(optimizer)

    before_step._torchdynamo_disable = True  # type: ignore[attr-defined]  # see worker.hooks
    handle = register_optimizer_step_pre_hook(before_step)
    weakref.finalize(snapshots, handle.remove)
