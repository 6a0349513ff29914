"""Keeps a rank's snapshots in the memory that its agent owns, and gives the chosen one back after a restart.

Answers: which snapshot does this process begin with, and where does the next one go. Called by `everstep.State`,
once per completed step. `take` never raises for a failure of ours: it says once on stderr what happened, reports
it, and training goes on with the last good snapshot or with none. Only `stored` raises, because a job that was
told to resume and silently began anew would be worse than one that ends with a reason.
"""

import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from everstep.errors import SnapshotError
from everstep.worker import arena as arenas
from everstep.worker.runtime import ArenaRefused
from everstep.worker.snapshot import DamagedError, Packer, PartError, Stored, Target

_SLACK_BYTES = 64 << 10
"""Room for a skeleton that grows by some digits a step; with 1/16 of the state on top."""


class Board(Protocol):
    def set_published_step(self, step: int) -> None: ...
    def add_stall_s(self, seconds: float) -> None: ...
    def add_restore_s(self, seconds: float) -> None: ...


class Runtime(Protocol):
    """What of `worker.runtime.Runtime` is used here."""

    rank: int
    world_size: int
    generation: int
    resume_step: int | None
    arenas: list[int]

    @property
    def board(self) -> Board: ...
    def request_arena(self, num_bytes: int) -> int: ...
    def report_fault(self, where: str, why: str) -> None: ...


class Keeper:
    """The snapshots of this process. One per State under `everstep run`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._packer = Packer()
        self._arena: arenas.Arena | None = None
        self._targets: list[Target] = []
        self._is_off = False  # refused memory: not asked for again in this process
        self._told: set[str] = set()

    def stored(self) -> Stored | None:
        """The snapshot that all ranks resume from, or None to begin anew. Raises SnapshotError.

        Snapshots of later steps are forgotten: from here on the job writes another history.
        """
        step = self._runtime.resume_step
        for fd in self._runtime.arenas:
            arenas.invalidate_after(fd, -1 if step is None else step)
        if step is None:
            return None
        fd, snapshot = self._find(step)
        memory = arenas.Arena(fd).buffer(snapshot.buffer)
        try:
            return Stored(memory, snapshot.length, snapshot.skeleton_bytes, snapshot.skeleton_crc)
        except DamagedError as error:
            raise SnapshotError(
                f"the snapshot of step {step} on rank {self._runtime.rank} is damaged: {error}; {_BEGIN_ANEW}"
            ) from error

    def take(self, step: int, parts: Callable[[], Mapping[str, Any]]) -> bool:
        """Snapshot what `parts` returns as the state after `step`; False if it could not be done."""
        if self._is_off:
            return False
        began = time.perf_counter()
        try:
            self._take(step, parts())
            self._runtime.board.set_published_step(step)
            return True
        except ArenaRefused as refusal:
            self._is_off = True
            self._tell("arena", str(refusal))
        except PartError as error:
            if error.__cause__ is not None and came_from_signal(error.__cause__):
                raise error.__cause__ from None
            self._tell(
                f"part {error.part}",
                f"no snapshot of step {step}: State keyword {error.part!r} could not be saved ({error}); the last good "
                "snapshot is kept and training goes on. Make its state_dict() return what pickle can store",
            )
        except Exception as error:
            if came_from_signal(error):
                raise
            self._tell("snapshot", f"no snapshot of step {step}: {type(error).__name__}: {error}; training goes on")
        finally:
            self._runtime.board.add_stall_s(time.perf_counter() - began)
        return False

    def warn(self, where: str, what: str) -> None:
        """Say once, on stderr and to the agent, that something of ours failed."""
        self._tell(where, what)

    def _find(self, step: int) -> tuple[int, arenas.Snapshot]:
        """The newest generation's snapshot of `step` in any arena of this rank. Raises SnapshotError."""
        runtime = self._runtime
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
                    f"Run with {contents.world_size} ranks again, or {_BEGIN_ANEW}"
                )
            for snapshot in contents.snapshots if contents.rank == runtime.rank else ():
                if snapshot.step == step and (best is None or snapshot.generation >= best[1].generation):
                    best = fd, snapshot
        if best is None:
            raise SnapshotError(
                f"rank {runtime.rank} was told to resume after step {step} but its memory does not hold that step: "
                f"{'; '.join(seen) or 'it was given none'}; {_BEGIN_ANEW}"
            )
        return best

    def _take(self, step: int, parts: Mapping[str, Any]) -> None:
        packed = self._packer.pack(parts)
        arena = self._arena
        if arena is None or arena.capacity_bytes < packed.num_bytes:
            arena = self._get_arena(packed.num_bytes)
        index = arena.begin(step, self._runtime.generation)
        arena.publish(*self._targets[index].write(packed))

    def _get_arena(self, num_bytes: int) -> arenas.Arena:
        """The newest arena of this rank if the state fits into it, otherwise a new one."""
        runtime = self._runtime
        for fd in runtime.arenas[-1:] if self._arena is None else ():
            contents = arenas.inspect(fd)
            is_ours = (contents.rank, contents.world_size) == (runtime.rank, runtime.world_size)
            if is_ours and contents.capacity_bytes >= num_bytes:
                return self._use(arenas.Arena(fd))
        needed_bytes = arenas.arena_bytes(num_bytes + num_bytes // 16 + _SLACK_BYTES)
        try:
            fd = runtime.request_arena(needed_bytes)
        except ArenaRefused as refusal:
            raise ArenaRefused(_refused_text(refusal, needed_bytes), refusal.free_bytes) from refusal
        arenas.format_arena(fd, rank=runtime.rank, world_size=runtime.world_size)
        return self._use(arenas.Arena(fd))

    def _use(self, arena: arenas.Arena) -> arenas.Arena:
        self._arena = arena
        self._targets = [Target(arena.buffer(index)) for index in range(arenas.NUM_BUFFERS)]
        return arena

    def _tell(self, where: str, what: str) -> None:
        if where in self._told:
            return
        self._told.add(where)
        print(f"everstep: rank {self._runtime.rank}: {what}", file=sys.stderr, flush=True)  # noqa: T201 - for people
        self._runtime.report_fault(f"state: {where}", what)


_BEGIN_ANEW = "to begin from the start, end this run and start a new one"


def _refused_text(refusal: ArenaRefused, needed_bytes: int) -> str:
    free = "unknown" if refusal.free_bytes is None else f"{refusal.free_bytes / 2**20:,.0f} MiB"
    return (
        f"training goes on without snapshots: this rank needs {needed_bytes / 2**20:,.0f} MiB of memory for two copies "
        f"of its state, free: {free} ({refusal.why}). After a fault the job begins again at its last common snapshot, "
        "or at step 0. Free memory on this node, use fewer ranks on it, or put less into State"
    )


def came_from_signal(error: BaseException) -> bool:
    """Whether a signal handler raised this while our code happened to run: then it is the program's, not ours."""
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False
