"""The thread that copies parameters and optimizer state into a snapshot while the next step runs.

Answers: is the copy of the last step done, and is it whole? A copy may begin when a step is done and must be over
before an optimizer changes what it reads; the optimizer waits for it, and for nothing else. Every tensor counts its
changes in place: if a count moved while the copy ran, the program itself wrote to parameters outside of an optimizer's
step, the copy is torn, and it is never published. What is written behind torch's back is not counted: a job that
`is_to_compare` is published only after its copy was compared with its source, when the optimizer is there or the next
step is done, and stays hidden until then. A copy that was made ready and not begun (`Job` in stage READY) costs nothing
and can still be begun for as long as no optimizer has.

The thread also seals snapshots, when it has nothing to copy (`worker.snapshots.sealing`). Used by
`worker.snapshots.snapshots`; it decides what is copied and where to, and this module never raises into the program.
What lies on a device is copied by the device, and waited for there (`worker.snapshots.memory.device_copies`).
"""

import atexit
import contextlib
import dataclasses
import enum
import os
import threading
import time
from operator import attrgetter
from typing import Any, Protocol

import torch

from everstep.checkpoint import arena as arenas
from everstep.checkpoint.packing import copy
from everstep.worker.process.naming import name_thread
from everstep.worker.snapshots.memory import device_copies
from everstep.worker.snapshots.sealing import Sealing, Unsealed

CHUNK_BYTES = 256 << 20
"""Copied in one call, without taking the GIL in between. Getting it back may take 5 ms from a program that computes in
Python, so small pieces would be slow there."""

END_LIMIT_S = 30.0
"""How long the end of a program waits for a copy that runs. Above what the largest state of a rank takes."""

HELD_S = 0.05
"""How long sealing waits for a program that is about to complete a step: what a GPU's optimizer takes to be queued. One
that computes on this CPU for longer leaves time for it."""

_LOST_S = 1.0
"""How often a waiting thread looks whether the copying one is still there."""

_version = attrgetter("_version")


class Stage(enum.IntEnum):
    """In order. From PASSED on, tensors may change again."""

    READY = 0
    RUNNING = 1
    PASSED = 2  # everything was read, or will be before an optimizer's work on the device
    ENDED = 3


@dataclasses.dataclass(slots=True, eq=False)
class Job:
    """One snapshot, complete but for some tensors."""

    step: int
    arena: arenas.Arena
    where: tuple[int, int, int]  # what `Arena.publish` is given
    places: list[torch.Tensor]
    tensors: list[torch.Tensor]
    owners: list[torch.Tensor]  # they count the changes
    devices: tuple[torch.device, ...] = ()  # other than the CPU
    is_to_compare: bool = False  # withheld until the copies have been found equal, before an optimizer changes them
    at_once_s: float = 0.0  # what it took to copy the other tensors, where they are many
    stage: Stage = Stage.READY
    why: str = ""  # it was not published because of this
    is_released: bool = False  # the check is done: later changes mean nothing
    versions: list[int] = dataclasses.field(default_factory=list)
    begun: list[tuple[Any, Any]] = dataclasses.field(
        default_factory=list
    )  # of each device, the event of the step's end
    copied: list[tuple[Any, Any]] = dataclasses.field(default_factory=list)  # ... and that of the copy's

    def __post_init__(self) -> None:
        self.versions = list(map(_version, self.owners))
        self.begun = device_copies.mark(self.devices)

    @property
    def is_torn(self) -> bool:
        return list(map(_version, self.owners)) != self.versions

    @property
    def is_withheld(self) -> bool:
        """Copied, and not compared yet: only the program's own thread may say that it is right."""
        return self.stage is Stage.PASSED and self.is_to_compare and not (self.is_released or self.why)

    def let_go(self) -> None:
        """Nothing of the program is kept alive by a copy that is over."""
        self.places, self.tensors, self.owners = [], [], []


class CopyOwner(Protocol):
    """Whose snapshots are copied."""

    def note_published(self, step: int) -> None:
        """Called on the thread, with its lock held."""

    def note_failed(self, job: Job) -> None:
        """Called on either thread."""

    def is_candidate(self, step: int) -> bool:
        """Whether this step may come to be trusted; it is sealed first, then."""


class Copier:
    """The thread, begun with the first job, and what waits for it."""

    def __init__(self, owner: CopyOwner) -> None:
        self._owner = owner
        self._changed = threading.Condition()
        self._job: Job | None = None
        self._sealing = Sealing(owner.is_candidate)
        self._held_until = 0.0  # no sealing before (time.monotonic)
        self._is_ending = False
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._on_devices = device_copies.DeviceCopies()

    @property
    def job(self) -> Job | None:
        """The last one, until its copy is over."""
        return self._job

    def prepare(self, job: Job) -> None:
        """Keep it ready. No other one may be under way (`settle`)."""
        with self._changed:  # no wake-up: there is nothing to do yet
            self._job = job

    def start(self, job: Job) -> bool:
        """Begin the copy; False: an optimizer has begun since."""
        with self._changed:
            if job.stage is Stage.ENDED:
                return not job.why
            if job.stage is Stage.READY:
                job.stage = Stage.RUNNING
                self._be_there()
                self._changed.notify_all()
            return True

    def before_change(self) -> float:
        """An optimizer is about to step: wait until that is safe; how long it took. What was only ready is given up."""
        job = self._job
        if job is None or os.getpid() != self._pid:
            return 0.0
        began = time.perf_counter()
        with self._changed:
            if job.is_released:
                return 0.0
            if job.stage is Stage.READY:
                self._end(job, "an optimizer's step has begun since")
            self._await(job, Stage.PASSED)
            self._on_devices.hold_program(job.copied)
            self._release(job)
            if job.stage is Stage.ENDED:
                job.let_go()
                self._job = None
        return time.perf_counter() - began

    def device_waited_s(self) -> float:
        """How long devices stood still for earlier copies, reported once, when it is known. On the program's thread."""
        return self._on_devices.held_s()

    def settle(self) -> None:
        """Wait until the last copy is over, if it was begun; forget it if it was not."""
        job = self._job
        if job is None:
            return
        with self._changed:
            if job.stage is Stage.READY:
                self._end(job, "the next step is done")
            if job.is_to_compare:
                self._await(job, Stage.PASSED)
                self._release(job)
            self._await(job, Stage.ENDED)
            job.let_go()
            self._job = None

    def finish(self, job: Job, until: float) -> bool:
        """Begin the copy if it is only ready, and wait for its end until then (time.monotonic), or until it is
        withheld, as what that waits for will not come. True: it is published. From any thread."""
        self.start(job)
        with self._changed:
            while not (job.stage is Stage.ENDED or job.is_withheld) and (left := until - time.monotonic()) > 0:
                self._changed.wait(min(left, _LOST_S))
            return job.stage is Stage.ENDED and not job.why

    def seal(self, arena: arenas.Arena, snapshot: arenas.Snapshot) -> None:
        """Put sums behind this snapshot when there is time."""
        with self._changed:
            self._sealing.add(arena, snapshot)
            self._be_there()
            self._changed.notify_all()

    def hold_sealing(self) -> None:
        """Pause sealing: the program needs the CPU and the GIL now. Checksumming resumes later, or once `let_seal` is
        called. From the program's thread, without waiting for anything."""
        self._held_until = time.monotonic() + HELD_S

    def let_seal(self) -> None:
        if not self._held_until:
            return
        self._held_until = 0.0
        if not self._is_asked():  # or it looks by itself, after the copy, and need not be woken up twice
            with self._changed:
                self._changed.notify_all()

    def end(self) -> None:
        """The program ends: let the last copy come to its end, also one that was only ready."""
        thread = self._thread
        if thread is None or os.getpid() != self._pid:
            return
        with self._changed:
            job = self._job
            if job is not None and job.stage is Stage.READY:
                job.stage = Stage.RUNNING
            self._is_ending = True
            self._changed.notify_all()
            until = time.monotonic() + END_LIMIT_S
            while job is not None and job.stage < Stage.PASSED and thread.is_alive() and time.monotonic() < until:
                self._changed.wait(_LOST_S)
            if job is not None and job.is_withheld:
                self._release(job)
        thread.join(max(0.0, until - time.monotonic()))

    def _be_there(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            return
        if self._thread is None:
            # In torch while the interpreter is taken down, it would abort the process: so it ends before.
            atexit.register(self.end)
        self._thread = threading.Thread(target=self._run, name="everstep-copy", daemon=True)
        self._thread.start()

    def _await(self, job: Job, stage: Stage) -> None:
        """With the condition held."""
        while job.stage < stage:
            self._changed.wait(_LOST_S)
            if self._thread is None or not self._thread.is_alive():
                self._end(job, "the copying thread is gone")

    def _end(self, job: Job, why: str) -> None:
        job.why = why
        job.stage = Stage.ENDED
        self._changed.notify_all()

    def _release(self, job: Job) -> None:
        """Let the job's tensors change; first check whether the copy was torn or differs. On the program's thread, with
        the lock."""
        if not (job.is_released or job.why) and (job.is_torn or (job.is_to_compare and not _are_equal(job))):
            self._tear(job)
        job.is_released = True
        if job.is_to_compare:
            self._changed.notify_all()  # the copy may be withheld; a needless wake-up costs the program

    def _tear(self, job: Job) -> None:
        """It was torn, but not seen to be: what is published is taken back."""
        is_published = job.stage is Stage.ENDED
        job.why = TORN
        if is_published:
            job.arena.retract(job.step)
            self._owner.note_failed(job)

    def _run(self) -> None:
        name_thread("everstep-copy")
        while True:
            with self._changed:
                while not (self._is_ending or self._is_asked() or self._may_seal()):
                    held_s = self._held_until - time.monotonic()
                    self._changed.wait(max(held_s, 0.0) if self._sealing.is_waiting else None)
                job = self._job if self._is_asked() else None
                if job is None and self._is_ending:
                    return
                unsealed = self._sealing.next() if job is None else None
            if job is not None:
                self._carry_out(job)
            elif unsealed is not None:
                self._seal(unsealed)

    def _is_asked(self) -> bool:
        job = self._job  # looked at without the lock, too
        return job is not None and job.stage is Stage.RUNNING

    def _may_seal(self) -> bool:
        return self._sealing.is_waiting and time.monotonic() >= self._held_until

    def _carry_out(self, job: Job) -> None:
        why = ""
        try:
            self._copy(job)
            why = TORN if job.is_torn else ""
            with self._changed:
                job.why = job.why or why
                job.stage = Stage.PASSED
                self._changed.notify_all()
                while job.is_withheld:
                    self._changed.wait()
            for _, event in job.copied:
                event.synchronize()
        except Exception as error:  # nothing may be raised here; the optimizer waits for an end
            why = f"{type(error).__name__}: {error}"
        snapshot = None
        with self._changed:
            why = why or job.why  # torn, as the program's thread saw it
            if not why:
                try:
                    snapshot = job.arena.publish(*job.where)
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
            if snapshot is not None:
                self._sealing.add(job.arena, snapshot)
                self._owner.note_published(job.step)
            self._end(job, why)
            job.places, job.tensors = [], []  # clones on a device are large, and the optimizer may be far away
        if snapshot is None:
            self._owner.note_failed(job)

    def _copy(self, job: Job) -> None:
        if not job.begun:
            _copy_in_chunks(job.places, job.tensors)
            return
        here = [index for index, tensor in enumerate(job.tensors) if tensor.device.type == "cpu"]
        _copy_in_chunks([job.places[index] for index in here], [job.tensors[index] for index in here])
        for marked in job.begun:
            there = [index for index, tensor in enumerate(job.tensors) if tensor.device == marked[0]]
            places, tensors = [job.places[index] for index in there], [job.tensors[index] for index in there]
            job.copied.append(self._on_devices.queue(marked, places, tensors))

    def _seal(self, entry: Unsealed) -> None:
        is_broken_off = False

        def is_wanted() -> bool:
            nonlocal is_broken_off
            is_broken_off = self._is_asked() or self._is_ending or not self._may_seal()
            return not is_broken_off

        # An unsealed snapshot is restored all the same.
        with contextlib.suppress(Exception):
            if entry.arena.seal(entry.snapshot, is_wanted, entry.table):
                is_broken_off = False
        if not is_broken_off:
            with self._changed:
                self._sealing.done(entry)


def _copy_in_chunks(places: list[torch.Tensor], tensors: list[torch.Tensor]) -> None:
    start, num_bytes = 0, 0
    for index, tensor in enumerate(tensors):
        num_bytes += tensor.nbytes
        if num_bytes >= CHUNK_BYTES:
            copy(places[start : index + 1], tensors[start : index + 1])
            start, num_bytes = index + 1, 0
    copy(places[start:], tensors[start:])


def _are_equal(job: Job) -> bool:
    """Also of what was written behind torch's back (`tensor.data`), which no count shows."""
    for place, tensor in zip(job.places, job.tensors, strict=True):
        words = _WORDS.get(tensor.element_size())
        if tensor.device.type == "cpu" and words and not torch.equal(place.view(words), tensor.detach().view(words)):
            return False
    return True


_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Compared as integers, NaN is equal to itself."""

TORN = "the program changed parameters outside of an optimizer's step while they were copied"
