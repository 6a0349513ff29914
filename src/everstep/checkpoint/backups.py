"""Copies of other nodes' snapshots that this node keeps, in arenas of the same form.

Answers which steps of which ranks could be restored from here, and takes in what is pushed, one transfer per rank at a
time. Memory is asked for before it is used, has no name anywhere and ends with this process. Where copies go, and which
of them count, is decided by `core`. Called by the agent's event loop (`held`, `invalidate_after`, `trust`, `drop`,
`close`: none of them waits) and by the threads of `transport.Server` (the rest).
"""

import contextlib
import dataclasses
import os
import threading
from collections.abc import Callable

from everstep.checkpoint import arena
from everstep.checkpoint.held import of_rank
from everstep.checkpoint.transport.frames import Offer
from everstep.checkpoint.transport.incoming import Incoming, Known
from everstep.checkpoint.transport.outcome import Refusal
from everstep.model.facts import Held

_MAX_ARENAS = 2
"""Per rank: one that holds copies, and its successor (snapshots that grew) until that holds enough itself."""

_ENOUGH = 2  # complete snapshots, so that one of them is a step that every other rank has as well
_TAKE_OVER_S = 5.0
_READ_OUT_S = 2.0
"""For reading what has arrived by a line that was cut, before its transfer begins again by another one."""


@dataclasses.dataclass(slots=True, eq=False)
class _Memory:
    """One arena. `known` says what lies in its buffers, piece by piece."""

    fd: int
    capacity_bytes: int
    world_size: int
    known: dict[int, Known] = dataclasses.field(default_factory=dict)
    is_busy: bool = False  # a thread writes into it; it is closed only afterwards


@dataclasses.dataclass(slots=True, eq=False)
class _Transfer:
    """A snapshot on its way in."""

    offer: Offer
    stop: Callable[[], None]
    memory: _Memory | None = None
    incoming: Incoming | None = None
    unwanted: str = ""  # why


class Backups:
    """All methods may be called from any thread."""

    def __init__(
        self,
        free_bytes: Callable[[], int | None],
        *,
        num_buffers: int = 3,
        is_candidate: Callable[[int], bool] = lambda _: False,
    ) -> None:
        """`free_bytes()`: what copies may take now; unknown (None) counts as none. `num_buffers`: newest, trusted, and
        one to write; with one more, the newest copy of a step that waits for its verdict (`is_candidate`) stays as
        well."""
        self._free_bytes = free_bytes
        self._num_buffers = num_buffers
        self._is_candidate = is_candidate
        self._memories: dict[int, list[_Memory]] = {}  # oldest first
        self._transfers: dict[int, _Transfer] = {}
        self._trusted: int | None = None
        self._resumed: dict[int, int] = {}  # generation: step after which it began anew
        self._generation = -1  # newest one that is known here
        self._pushed: dict[
            int, int
        ] = {}  # rank: generation in which it was last offered; others may be placed elsewhere
        self._is_closed = False
        self._dropped: list[_Memory] = []  # to be closed as soon as nothing writes there
        self._changed = threading.Condition()
        self._making = threading.Lock()  # memory that is being made counts as free until it is

    # For the agent.

    def held(self) -> tuple[Held, ...]:
        """The complete copies of all ranks, as their headers say now."""
        with self._changed:
            found = [of_rank(rank, [memory.fd for memory in self._memories[rank]]) for rank in sorted(self._memories)]
        return tuple(held for each in found for held in each)

    def invalidate_after(self, step: int | None, generation: int | None = None) -> None:
        """The job resumes after `step` (None: from the beginning); copies of later steps are forgotten, and not taken
        any more if a generation before `generation` made them."""
        step = -1 if step is None else step
        with self._changed:
            if generation is not None:
                self._resumed[generation] = step
                self._generation = max(self._generation, generation)
            for memory in self._all():
                arena.invalidate_after(memory.fd, step)
            for transfer in self._transfers.values():
                if transfer.offer.step > step and (generation is None or transfer.offer.generation < generation):
                    self._give_up(transfer, f"the job went back to step {step}")

    def trust(self, step: int) -> None:
        """Copies of this step stay until a newer one is trusted."""
        with self._changed:
            self._trusted = step
            for memory in self._all():
                _pin(memory.fd, arena.PIN_TRUSTED, step)

    def drop(self, rank: int) -> None:
        """Nothing is kept for this rank any more; a transfer that is under way ends."""
        with self._changed:
            self._drop(rank, self._memories.pop(rank, []))
        self._sweep()

    def close(self) -> None:
        """Everything is given back, and nothing taken any more."""
        with self._changed:
            self._is_closed = True
            for transfer in self._transfers.values():
                self._give_up(transfer, "this node is ending")
            for rank, memories in self._memories.items():
                self._drop(rank, memories)
            self._memories.clear()
        self._sweep()

    # For the threads of the server.

    def begin(self, offer: Offer, stop: Callable[[], None]) -> Incoming | None:
        """Where to put this snapshot; None: it is here already. Raises Refusal.

        A transfer of the same rank that is under way is ended: its sender has called again, or has been replaced."""
        transfer = _Transfer(offer=offer, stop=stop)
        with self._changed:
            self._refuse_stale(offer)
            self._generation = max(self._generation, offer.generation)
            self._pushed[offer.rank] = self._generation
            if self._has(offer):
                self._keep_candidate(offer)
                return None
            self._take_over(offer)
            self._refuse_stale(offer)
            self._transfers[offer.rank] = transfer
        try:
            memory = self._room(transfer)
            incoming = transfer.incoming = Incoming(memory.fd, offer, memory.known)
        except BaseException:
            self._end(transfer)
            raise
        return incoming

    def publish(self, incoming: Incoming) -> None:
        """All of it has arrived. Raises Refusal if it is not wanted any more."""
        rank = incoming.offer.rank
        with self._changed:
            transfer = self._transfers.get(rank)
            if transfer is None or transfer.incoming is not incoming:
                raise Refusal("another transfer of the same rank has begun")
            if transfer.unwanted:
                raise Refusal(transfer.unwanted)
            incoming.publish()
            self._keep_candidate(incoming.offer)
            self._drop_needless(rank)

    def end(self, incoming: Incoming) -> None:
        """The transfer is over, complete or not; what has arrived of it stays for the next one."""
        with self._changed:
            transfer = self._transfers.get(incoming.offer.rank)
        if transfer is not None and transfer.incoming is incoming:
            self._end(transfer)

    def let_go(self, rank: int, generation: int) -> None:
        """In this generation the rank is copied elsewhere, and the copy there is complete. One that a later generation
        offers here stays: then this comes too late."""
        with self._changed:
            if self._pushed.get(rank, -1) > generation:
                return
            self._drop(rank, self._memories.pop(rank, []))
        self._sweep()

    def duplicates(self, rank: int | None) -> list[int]:
        """Descriptors of the arenas that are kept for this rank, or for all of them; the caller's own."""
        with self._changed, contextlib.ExitStack() as made:
            fds = []
            for memory in self._all() if rank is None else self._memories.get(rank, []):
                fds.append(os.dup(memory.fd))
                made.callback(os.close, fds[-1])
            made.pop_all()
            return fds

    # With the lock held, except `_room`, `_drop_unpushed`, `_end` and `_sweep`.

    def _all(self) -> list[_Memory]:
        return [memory for memories in self._memories.values() for memory in memories]

    def _keep_candidate(self, offer: Offer) -> None:
        """It is complete here. It stays until a newer one is."""
        if self._is_candidate(offer.step):
            for memory in self._memories.get(offer.rank, []):
                _pin(memory.fd, arena.PIN_PERSIST, offer.step)

    def _has(self, offer: Offer) -> bool:
        return any(
            (snapshot.step, snapshot.generation) == (offer.step, offer.generation)
            for memory in self._memories.get(offer.rank, [])
            for snapshot in arena.inspect(memory.fd).snapshots
        )

    def _refuse_stale(self, offer: Offer) -> None:
        if self._is_closed:
            raise Refusal("this node is ending")
        for generation, step in self._resumed.items():
            if offer.generation < generation and offer.step > step:
                raise Refusal(
                    f"step {offer.step} of generation {offer.generation} is of a history that was given up: generation "
                    f"{generation} began after step {step}"
                )
        generations = [s.generation for m in self._memories.get(offer.rank, []) for s in arena.inspect(m.fd).snapshots]
        if offer.generation < max(generations, default=offer.generation):
            raise Refusal(f"generation {offer.generation} is over: copies of {max(generations)} are here")

    def _take_over(self, offer: Offer) -> None:
        other = self._transfers.get(offer.rank)
        if other is None:
            return
        if other.offer.generation > offer.generation:
            raise Refusal(f"generation {offer.generation} is over: one of {other.offer.generation} is being received")
        if other.offer == offer:  # the same sender, whose line was cut: what has arrived by it need not come twice
            self._changed.wait_for(lambda: self._transfers.get(offer.rank) is not other, _READ_OUT_S)
        self._give_up(other, "another transfer of the same rank has begun")
        if not self._changed.wait_for(lambda: offer.rank not in self._transfers, _TAKE_OVER_S):
            raise Refusal(f"another transfer of rank {offer.rank} does not end")

    def _give_up(self, transfer: _Transfer, why: str) -> None:
        transfer.unwanted = transfer.unwanted or why
        transfer.stop()

    def _drop(self, rank: int, memories: list[_Memory]) -> None:
        for memory in memories:
            self._dropped.append(memory)
        transfer = self._transfers.get(rank)
        if transfer is not None:
            self._give_up(transfer, "copies of this rank are no longer kept here")

    def _drop_unpushed(self) -> bool:
        """Whether something was dropped: copies of ranks that were not offered here in this generation. They may be
        placed elsewhere by now, and a copy that is placed here needs this memory."""
        with self._changed:
            unpushed = [rank for rank in self._memories if self._pushed.get(rank, -1) < self._generation]
            for rank in unpushed:
                self._drop(rank, self._memories.pop(rank))
        return bool(unpushed)

    def _drop_needless(self, rank: int) -> None:
        """An older arena goes when the newest holds enough, unless it has the trusted step."""
        memories = self._memories.get(rank, [])
        while len(memories) > 1:
            is_enough = len(arena.held_steps(memories[-1].fd)) >= _ENOUGH
            has_trusted = self._trusted in arena.held_steps(memories[0].fd)
            if len(memories) <= _MAX_ARENAS and (not is_enough or has_trusted):
                return
            self._dropped.append(memories.pop(0))

    def _room(self, transfer: _Transfer) -> _Memory:
        """An arena for it, marked busy: the newest of this rank if it is large enough, else a new one. Memory is made
        outside the lock, as that takes a while."""
        offer = transfer.offer
        with self._changed:
            memory = self._fitting(offer)
            if memory is not None:
                return self._occupy(transfer, memory)
        with self._making:
            try:
                made = self._make(offer)
            except Refusal:
                if not self._drop_unpushed():
                    raise
                self._sweep()
                made = self._make(offer)
        with self._changed:
            if self._trusted is not None:
                _pin(made.fd, arena.PIN_TRUSTED, self._trusted)
            if transfer.unwanted:
                self._dropped.append(made)
            else:
                self._memories.setdefault(offer.rank, []).append(made)
                self._drop_needless(offer.rank)
            return self._occupy(transfer, made)

    def _occupy(self, transfer: _Transfer, memory: _Memory) -> _Memory:
        if transfer.unwanted:
            raise Refusal(transfer.unwanted)
        memory.is_busy = True
        transfer.memory = memory
        return memory

    def _fitting(self, offer: Offer) -> _Memory | None:
        """The arena with room for this offer. Drops arenas with a different world size."""
        memories = self._memories.get(offer.rank, [])
        for memory in [m for m in memories if m.world_size != offer.world_size]:
            memories.remove(memory)
            self._dropped.append(memory)
        if memories and memories[-1].capacity_bytes >= offer.length:
            return memories[-1]
        return None

    def _make(self, offer: Offer) -> _Memory:
        """With as many buffers as there is memory for, two at least. Raises Refusal."""
        why = ""
        for num_buffers in dict.fromkeys((self._num_buffers, arena.NUM_BUFFERS)):
            num_bytes = arena.PAGE_BYTES + num_buffers * -(-offer.capacity_bytes // arena.PAGE_BYTES) * arena.PAGE_BYTES
            free = self._free_bytes()
            if free is None or num_bytes > free:
                why = f"it needs {num_bytes} bytes, {'it is not known how many' if free is None else free} are free"
                continue
            try:
                fd = arena.create(num_bytes, rank=offer.rank, world_size=offer.world_size, num_buffers=num_buffers)
            except (OSError, ValueError, OverflowError, arena.ArenaError) as error:
                why = f"the memory could not be made: {error}"
                continue
            return _Memory(fd=fd, capacity_bytes=arena.inspect(fd).capacity_bytes, world_size=offer.world_size)
        raise Refusal(f"no memory for copies of rank {offer.rank}: {why}")

    def _end(self, transfer: _Transfer) -> None:
        with self._changed:
            if transfer.memory is not None:
                transfer.memory.is_busy = False
            if self._transfers.get(transfer.offer.rank) is transfer:
                del self._transfers[transfer.offer.rank]
            self._changed.notify_all()
        self._sweep()

    def _sweep(self) -> None:
        """Without the lock: giving back gigabytes takes a while, and the agent's event loop must not wait for it."""
        with self._changed:
            free = [memory for memory in self._dropped if not memory.is_busy]
            self._dropped = [memory for memory in self._dropped if memory.is_busy]
        for memory in free:
            os.close(memory.fd)


_NUM_TO_PIN = {arena.PIN_TRUSTED: 3, arena.PIN_PERSIST: 4}
"""Buffers without which a pin would leave no room for the next copy."""


def _pin(fd: int, which: int, step: int) -> None:
    if arena.inspect(fd).num_buffers >= _NUM_TO_PIN[which]:
        arena.pin(fd, which, step)
