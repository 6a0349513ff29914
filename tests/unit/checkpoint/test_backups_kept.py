"""Copies of other nodes' snapshots: what is taken, what stays, what is refused, and what is given back."""

import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from everstep.checkpoint import arena
from everstep.checkpoint.backups import Backups
from everstep.checkpoint.transport.frames import Offer
from everstep.checkpoint.transport.incoming import Incoming
from everstep.checkpoint.transport.outcome import Refusal

LENGTH = 3 * arena.PAGE_BYTES
CAPACITY = 4 * arena.PAGE_BYTES


@pytest.fixture
def shelf() -> Iterator[Backups]:
    before = len(list(Path("/proc/self/fd").iterdir()))
    made = Backups(lambda: 1 << 30)
    yield made
    made.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def offer(step: int, generation: int = 0, rank: int = 0, length: int = LENGTH, world_size: int = 2) -> Offer:
    return Offer(
        rank=rank,
        world_size=world_size,
        capacity_bytes=max(CAPACITY, length + arena.PAGE_BYTES),
        step=step,
        generation=generation,
        length=length,
        skeleton_bytes=8,
        skeleton_crc=0,
    )


def put(shelf: Backups, given: Offer) -> None:
    """One transfer, as the server does it; the bytes do not matter here."""
    incoming = begun(shelf, given)
    finish(shelf, incoming)


def begun(shelf: Backups, given: Offer, stop: object = None) -> Incoming:
    incoming = shelf.begin(given, stop or (lambda: None))  # type: ignore[arg-type]
    assert incoming is not None
    return incoming


def finish(shelf: Backups, incoming: Incoming) -> None:
    for index in range(incoming.offer.num_pieces):
        incoming._put(index, b"", lambda view, _: None)
        incoming._right[index] = bytes(8)
    try:
        shelf.publish(incoming)
    finally:
        shelf.end(incoming)


def steps(shelf: Backups, rank: int = 0) -> tuple[int, ...]:
    return next((held.steps for held in shelf.held() if held.rank == rank), ())


def test_the_newest_copies_stay(shelf) -> None:
    for step in range(6):
        put(shelf, offer(step, generation=step // 3))
    assert [(h.rank, h.steps, h.generations) for h in shelf.held()] == [(0, (3, 4, 5), (1, 1, 1))]
    assert shelf.begin(offer(5, generation=1), lambda: None) is None


def test_the_trusted_step_stays(shelf) -> None:
    put(shelf, offer(0))
    shelf.trust(1)  # before it is there
    for step in range(1, 9):
        put(shelf, offer(step))
    assert steps(shelf) == (1, 7, 8)
    put(shelf, offer(0, rank=1))  # an arena that is made later
    shelf.trust(8)
    for step in range(9, 12):
        put(shelf, offer(step))
        put(shelf, offer(step, rank=1))
    assert steps(shelf) == (8, 10, 11)
    assert steps(shelf, rank=1) == (9, 10, 11)


def test_a_history_that_was_given_up_is_forgotten_and_not_taken_again(shelf) -> None:
    for step in (3, 4, 5):
        put(shelf, offer(step))
    shelf.invalidate_after(4, generation=1)
    assert steps(shelf) == (3, 4)
    with pytest.raises(Refusal, match="given up"):
        shelf.begin(offer(5, generation=0), lambda: None)
    put(shelf, offer(5, generation=1))
    with pytest.raises(Refusal, match="generation 0 is over"):
        shelf.begin(offer(4, generation=0), lambda: None)
    shelf.invalidate_after(None, generation=2)
    assert shelf.held() == ()


def test_a_transfer_of_a_history_that_is_given_up_is_ended(shelf) -> None:
    stopped = threading.Event()
    incoming = begun(shelf, offer(5), stopped.set)
    shelf.invalidate_after(5, generation=1)
    assert not stopped.is_set()
    shelf.invalidate_after(4, generation=2)
    assert stopped.is_set()
    with pytest.raises(Refusal, match="went back to step 4"):
        finish(shelf, incoming)
    assert shelf.held() == ()


def test_the_next_transfer_of_a_rank_takes_over(shelf) -> None:
    stopped = threading.Event()
    first = begun(shelf, offer(5), stopped.set)
    late: list[BaseException] = []

    def end_when_told() -> None:
        assert stopped.wait(60)
        try:
            finish(shelf, first)
        except Refusal as refusal:
            late.append(refusal)

    thread = threading.Thread(target=end_when_told)
    thread.start()
    put(shelf, offer(5))
    thread.join()
    assert len(late) == 1
    assert steps(shelf) == (5,)


def test_an_older_generation_does_not_take_over(shelf) -> None:
    incoming = begun(shelf, offer(5, generation=2))
    with pytest.raises(Refusal, match="generation 1 is over"):
        shelf.begin(offer(9, generation=1), lambda: None)
    finish(shelf, incoming)
    assert steps(shelf) == (5,)


def test_memory_is_refused_before_it_is_taken(shelf) -> None:
    free = [0]
    shelf._free_bytes = lambda: free[0]
    with pytest.raises(Refusal, match=r"no memory for copies of rank 0: it needs \d+ bytes, 0 are free"):
        shelf.begin(offer(1), lambda: None)
    free[0] = arena.PAGE_BYTES + 2 * CAPACITY  # for two buffers, not for three
    for step in (1, 2, 3):
        put(shelf, offer(step))
    assert steps(shelf) == (2, 3)
    free[0] = 0  # what is there goes on
    put(shelf, offer(4))
    with pytest.raises(Refusal, match="no memory"):
        shelf.begin(offer(5, length=2 * CAPACITY), lambda: None)
    assert steps(shelf) == (3, 4)


def test_unknown_memory_is_no_memory(shelf) -> None:
    shelf._free_bytes = lambda: None
    with pytest.raises(Refusal, match="it is not known how many are free"):
        shelf.begin(offer(1), lambda: None)


def test_memory_that_cannot_be_made_is_refused(shelf) -> None:
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CAPACITY, limit[1]))
    try:
        with pytest.raises(Refusal, match=r"could not be made: .*File too large"):
            shelf.begin(offer(1), lambda: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    put(shelf, offer(1))


def test_a_larger_snapshot_gets_a_successor_which_takes_over_when_it_holds_enough(shelf) -> None:
    for step in (1, 2):
        put(shelf, offer(step))
    put(shelf, offer(3, length=2 * CAPACITY))
    assert steps(shelf) == (1, 2, 3)
    put(shelf, offer(4, length=2 * CAPACITY))
    assert steps(shelf) == (3, 4)
    shelf.trust(3)
    put(shelf, offer(5, length=4 * CAPACITY))
    put(shelf, offer(6, length=4 * CAPACITY))
    assert steps(shelf) == (3, 4, 5, 6)  # the trusted step is only in the older one
    shelf.trust(6)
    put(shelf, offer(7, length=4 * CAPACITY))
    assert steps(shelf) == (5, 6, 7)


def test_another_number_of_ranks_begins_anew(shelf) -> None:
    put(shelf, offer(1))
    put(shelf, offer(2, generation=1, world_size=4))
    assert steps(shelf) == (2,)


def test_dropped_and_closed_in_the_middle_of_a_transfer(shelf) -> None:
    stopped = threading.Event()
    put(shelf, offer(1))
    incoming = begun(shelf, offer(2), stopped.set)
    shelf.drop(0)
    assert stopped.is_set()
    with pytest.raises(Refusal, match="no longer kept"):
        finish(shelf, incoming)
    assert shelf.held() == ()
    incoming = begun(shelf, offer(3))
    shelf.close()
    with pytest.raises(Refusal, match="is ending"):
        finish(shelf, incoming)
    with pytest.raises(Refusal, match="is ending"):
        shelf.begin(offer(4), lambda: None)


def test_what_is_given_out_outlives_the_shelf(shelf) -> None:
    assert shelf.duplicates(0) == []
    put(shelf, offer(7))
    (fd,) = shelf.duplicates(0)
    shelf.drop(0)
    assert arena.held(fd) == ((7, 0),)
    os.close(fd)


def test_memory_of_ranks_that_are_placed_elsewhere_by_now_is_given_to_one_that_is_placed_here() -> None:
    made: list[Backups] = []

    def free_bytes() -> int:
        """Room for two ranks, as much as is not in use."""
        fds = [fd for fd in made[0].duplicates(None) if not os.close(fd)]
        return (2 - len(fds)) * arena.arena_bytes(CAPACITY, 3)

    made.append(Backups(free_bytes))
    shelf = made[0]
    try:
        for rank in (0, 1):
            put(shelf, offer(3, rank=rank, world_size=3))
        with pytest.raises(Refusal, match="no memory for copies of rank 2"):
            shelf.begin(offer(3, rank=2, world_size=3), lambda: None)
        shelf.invalidate_after(3, generation=1)
        assert shelf.begin(offer(3, rank=1, world_size=3), lambda: None) is None, "here already, and wanted here"
        put(shelf, offer(3, rank=2, world_size=3))
        assert [held.rank for held in shelf.held()] == [1, 2]
        put(shelf, offer(4, rank=2, generation=1, world_size=3))
        with pytest.raises(Refusal, match="no memory for copies of rank 0"):
            shelf.begin(offer(4, rank=0, generation=1, world_size=3), lambda: None)
        assert [held.rank for held in shelf.held()] == [1, 2], "of this generation, and kept"
    finally:
        shelf.close()


def test_what_is_copied_elsewhere_goes_unless_a_later_generation_offers_it_here(shelf) -> None:
    for rank in (0, 1):
        put(shelf, offer(3, rank=rank))
    shelf.let_go(0, 0)
    assert [held.rank for held in shelf.held()] == [1]
    shelf.invalidate_after(3, generation=2)
    assert shelf.begin(offer(3, rank=1), lambda: None) is None
    shelf.let_go(1, 1)  # late
    assert [held.rank for held in shelf.held()] == [1]
    shelf.let_go(7, 3)  # nothing of it was ever here
    shelf.let_go(1, 3)
    assert not shelf.held()
