"""The memory that this rank's snapshots are written to: what earlier generations left, or new memory from the agent.

Answers: into which arena does a state of so many bytes go. Large memory takes a second to make, so it is asked for on a
thread, and the steps done meanwhile have no snapshot. If the node has no room for all the buffers that were wished for,
the least is asked for. Raises ArenaRefused, once; afterwards there is nothing to ask for. Called by
`worker.snapshots.snapshots`.
"""

import threading
from collections.abc import Callable
from typing import Protocol

from everstep.checkpoint import arena as arenas
from everstep.worker.link.runtime import ArenaRefused

ASK_APART_BYTES = 64 << 20
"""Making less than this takes some ten milliseconds; more would be felt in the first step."""

_SLACK_BYTES = 64 << 10
"""Room for a skeleton that grows by some digits a step; with 1/16 of the state on top."""


class Runtime(Protocol):
    """The part of `worker.link.runtime.Runtime` that is used here."""

    rank: int
    world_size: int
    arenas: list[int]

    def request_arena(self, num_bytes: int, *, is_patient: bool = False) -> int: ...


class Space:
    """The snapshot memory of one rank."""

    def __init__(self, runtime: Runtime, on_scarce: Callable[[str], None]) -> None:
        """`on_scarce` is called when there was room for the least number of buffers only."""
        self._runtime = runtime
        self._on_scarce = on_scarce
        self._arena: arenas.Arena | None = None
        self._mapped: arenas.Arena | None = None
        self._asking: threading.Thread | None = None
        self._answer: arenas.Arena | ArenaRefused | None = None

    def adopt(self, arena: arenas.Arena) -> None:
        """One of this rank's arenas is mapped already."""
        self._mapped = arena

    def get(self, num_bytes: int, num_buffers: int) -> arenas.Arena | None:
        """The arena for a state of this size; None: it is being made. Raises ArenaRefused."""
        if self._asking is not None and not self._take_answer():
            return None
        if self._arena is None:
            self._adopt(num_bytes)
        if self._arena is not None and self._arena.capacity_bytes >= num_bytes:
            return self._arena
        wanted = num_bytes + num_bytes // 16 + _SLACK_BYTES
        if arenas.arena_bytes(wanted, num_buffers) <= ASK_APART_BYTES:
            self._arena = self._ask(wanted, num_buffers)
            return self._arena
        self._asking = threading.Thread(
            target=self._ask_apart, args=(wanted, num_buffers), name="everstep-memory", daemon=True
        )
        self._asking.start()
        return None

    def _adopt(self, num_bytes: int) -> None:
        """The newest arena that this rank has already, if the state fits into it."""
        runtime = self._runtime
        for fd in runtime.arenas[-1:]:
            contents = arenas.inspect(fd)
            is_ours = (contents.rank, contents.world_size) == (runtime.rank, runtime.world_size)
            if is_ours and contents.capacity_bytes >= num_bytes:
                is_mapped = self._mapped is not None and self._mapped.fd == fd
                self._arena = self._mapped if is_mapped else arenas.Arena(fd)
                if self._arena is not None and num_bytes > ASK_APART_BYTES:
                    threading.Thread(target=self._arena.populate, name="everstep-memory", daemon=True).start()

    def _take_answer(self) -> bool:
        is_over = self._asking is not None and not self._asking.is_alive()
        answer = self._answer
        if answer is None and not is_over:
            return False
        self._asking = self._answer = None
        if isinstance(answer, arenas.Arena):
            self._arena = answer
            return True
        raise answer or ArenaRefused("our own failure: the thread that asked for it ended")

    def _ask_apart(self, wanted: int, num_buffers: int) -> None:
        try:
            arena = self._ask(wanted, num_buffers, is_patient=True)
            self._answer = arena
            arena.populate()
        except ArenaRefused as refusal:
            self._answer = refusal
        except Exception as error:
            self._answer = ArenaRefused(f"our own failure: {type(error).__name__}: {error}")

    def _ask(self, wanted: int, num_buffers: int, *, is_patient: bool = False) -> arenas.Arena:
        try:
            return self._make(wanted, num_buffers, is_patient)
        except ArenaRefused as refusal:
            least = arenas.NUM_BUFFERS
            if refusal.free_bytes is None or num_buffers <= least:
                raise self._refused(refusal, arenas.arena_bytes(wanted, num_buffers)) from refusal
            why = _scarce_text(refusal, arenas.arena_bytes(wanted, num_buffers), num_buffers)
        try:
            arena = self._make(wanted, least, is_patient)
        except ArenaRefused as refusal:
            raise self._refused(refusal, arenas.arena_bytes(wanted, least)) from refusal
        self._on_scarce(why)
        return arena

    def _make(self, wanted: int, num_buffers: int, is_patient: bool) -> arenas.Arena:
        fd = self._runtime.request_arena(arenas.arena_bytes(wanted, num_buffers), is_patient=is_patient)
        runtime = self._runtime
        arenas.format_arena(fd, rank=runtime.rank, world_size=runtime.world_size, num_buffers=num_buffers)
        return arenas.Arena(fd)

    def _refused(self, refusal: ArenaRefused, needed_bytes: int) -> ArenaRefused:
        return ArenaRefused(
            f"training continues without snapshots: this rank needs {_mib(needed_bytes)} MiB of memory for two copies "
            f"of its state, free: {_free(refusal)} ({refusal.why}). After a fault the job begins again at its last "
            "common snapshot, or at step 0. Free memory on this node, use fewer ranks on it, or put less into State",
            refusal.free_bytes,
        )


def _scarce_text(refusal: ArenaRefused, needed_bytes: int, num_buffers: int) -> str:
    return (
        f"memory for two copies of the state instead of {num_buffers} ({_mib(needed_bytes)} MiB, free: "
        f"{_free(refusal)}): training waits for each snapshot, and no older one is kept for when numbers turn "
        "out to be corrupted"
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.0f}"


def _free(refusal: ArenaRefused) -> str:
    return "unknown" if refusal.free_bytes is None else f"{_mib(refusal.free_bytes)} MiB"
