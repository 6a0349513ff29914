"""The arena on its own: what is held, where the next snapshot goes, and what garbage is taken for."""

import dataclasses
import os

import pytest

from everstep.checkpoint import arena, seal
from everstep.checkpoint.arena import Arena, ArenaError

PAGE = arena.PAGE_BYTES


@pytest.fixture
def fd():
    fd = arena.create(arena.arena_bytes(100), rank=1, world_size=4)
    yield fd
    os.close(fd)


def put(memory: Arena, step: int, generation: int = 0) -> int:
    index = memory.begin(step, generation)
    memory.buffer(index)[:100] = bytes([step % 256]) * 100
    memory.publish(100, 10, 7)
    return index


def test_new_arena_holds_nothing(fd: int) -> None:
    contents = arena.inspect(fd)
    assert (contents.why, contents.rank, contents.world_size) == ("", 1, 4)
    assert contents.capacity_bytes == PAGE
    assert arena.held_steps(fd) == ()


def test_holds_the_two_newest_steps(fd: int) -> None:
    memory = Arena(fd)
    for step in range(5):
        put(memory, step)
    assert arena.held_steps(fd) == (3, 4)
    assert [s.length for s in arena.inspect(fd).snapshots] == [100, 100]
    memory.close()


def test_begun_and_not_published_is_not_held(fd: int) -> None:
    memory = Arena(fd)
    put(memory, 0)
    put(memory, 1)
    memory.begin(2, 0)
    assert arena.held_steps(fd) == (1,)
    memory.begin(3, 0)  # gave up on 2: still the buffer that is not the newest complete one
    assert arena.held_steps(fd) == (1,)
    memory.close()


def test_after_a_restore_the_only_copy_stays_until_there_is_another(fd: int) -> None:
    memory = Arena(fd)
    put(memory, 6, generation=0)
    put(memory, 7, generation=0)
    memory.close()
    arena.invalidate_after(fd, 6)
    assert arena.held_steps(fd) == (6,)

    memory = Arena(fd)
    memory.begin(7, 1)
    assert arena.held_steps(fd) == (6,)
    memory.publish(100, 10, 7)
    assert [(s.step, s.generation) for s in memory.snapshots()] == [(6, 0), (7, 1)]
    memory.close()


def test_invalidate_keeps_older_steps_and_minus_one_forgets_all(fd: int) -> None:
    memory = Arena(fd)
    put(memory, 3)
    put(memory, 4)
    arena.invalidate_after(fd, 4)
    assert arena.held_steps(fd) == (3, 4)
    arena.invalidate_after(fd, -1)
    assert arena.held_steps(fd) == ()
    memory.close()


def test_publish_without_begin_is_refused(fd: int) -> None:
    memory = Arena(fd)
    with pytest.raises(ArenaError, match="nothing to publish"):
        memory.publish(10, 1, 0)
    memory.begin(0, 0)
    with pytest.raises(ArenaError, match="nothing to publish"):
        memory.publish(memory.capacity_bytes + 1, 1, 0)
    memory.close()


@pytest.fixture
def roomy():
    fd = arena.create(arena.arena_bytes(100, 5), rank=0, world_size=2, num_buffers=5)
    yield fd
    os.close(fd)


def put_all(fd: int, *steps: int, **options) -> list[int]:
    """The steps that were kept of these."""
    memory = Arena(fd)
    kept = []
    for step in steps:
        index = memory.begin(step, 0, **options)
        if index is not None:
            memory.buffer(index)[:100] = bytes([step % 256]) * 100
            memory.publish(100, 10, 7)
            kept.append(step)
    memory.close()
    return kept


def test_as_many_steps_as_buffers(roomy: int) -> None:
    assert arena.inspect(roomy).num_buffers == 5
    assert put_all(roomy, *range(9)) == list(range(9))
    assert arena.held(roomy) == tuple((step, 0) for step in range(4, 9))
    for buffers in (1, 9):
        with pytest.raises(ArenaError, match="2 to 8"):
            arena.create(1 << 20, rank=0, world_size=1, num_buffers=buffers)


def test_a_pinned_step_stays_also_when_it_was_pinned_before_it_existed(roomy: int) -> None:
    arena.pin(roomy, arena.PIN_BACKUP, 2)
    arena.pin(roomy, arena.PIN_TRUSTED, 4)
    assert arena.pins(roomy) == (4, 2, None, None)
    put_all(roomy, *range(12))
    assert arena.held_steps(roomy) == (2, 4, 9, 10, 11)
    arena.pin(roomy, arena.PIN_BACKUP, None)
    put_all(roomy, 12)
    assert arena.held_steps(roomy) == (4, 9, 10, 11, 12)
    with pytest.raises(ValueError, match="4"):
        arena.pin(roomy, 4, 1)


def test_when_all_others_are_pinned_a_snapshot_is_skipped_and_the_newest_stays(roomy: int) -> None:
    put_all(roomy, *range(5))
    for which, step in enumerate(range(4)):
        arena.pin(roomy, which, step)
    assert put_all(roomy, 5, 6) == []
    assert arena.held_steps(roomy) == (0, 1, 2, 3, 4)
    arena.pin(roomy, arena.PIN_SPARE, None)
    assert put_all(roomy, 7) == [7]
    assert arena.held_steps(roomy) == (0, 1, 2, 4, 7)


def test_the_newest_candidate_and_the_one_before_the_newest_stay_where_there_is_room(roomy: int) -> None:
    options = {"is_candidate": lambda step: step % 10 == 0, "keep_previous": True}
    put_all(roomy, *range(10, 18), **options)
    assert arena.held_steps(roomy) == (10, 14, 15, 16, 17)
    put_all(roomy, *range(18, 27), **options)
    assert arena.held_steps(roomy) == (20, 23, 24, 25, 26)
    arena.pin(roomy, arena.PIN_TRUSTED, 20)
    put_all(roomy, 27, 28, 29, 30, 31, 32, 33, 34, **options)
    assert arena.held_steps(roomy) == (20, 30, 32, 33, 34)
    arena.pin(roomy, arena.PIN_BACKUP, 32)
    put_all(roomy, 35, 36, **options)
    assert 30 not in arena.held_steps(roomy)  # no room for all: trust comes later
    assert arena.held_steps(roomy) == (20, 32, 34, 35, 36)
    arena.pin(roomy, arena.PIN_PERSIST, 34)
    put_all(roomy, 37, 38, **options)
    assert arena.held_steps(roomy) == (20, 32, 34, 37, 38)


def test_a_candidate_that_is_older_than_the_trusted_one_waits_for_nothing(roomy: int) -> None:
    arena.pin(roomy, arena.PIN_TRUSTED, 11)
    put_all(roomy, *range(10, 20), is_candidate=lambda step: step == 10)
    assert arena.held_steps(roomy) == (11, 16, 17, 18, 19)


def test_who_pins_in_the_moment_in_which_the_buffer_is_chosen_wins(roomy: int) -> None:
    put_all(roomy, *range(5))

    class Raced(Arena):
        def _store(self, index: int, field: int, value: int) -> None:
            super()._store(index, field, value)
            if value == arena.WRITING and field == 0:
                arena.pin(roomy, arena.PIN_BACKUP, 0)

    memory = Raced(roomy)
    put(memory, 5)
    memory.close()
    assert arena.held_steps(roomy) == (0, 2, 3, 4, 5)


def test_sealed_snapshots_are_verified_to_the_last_byte(fd: int) -> None:
    size = seal.PIECE_BYTES * 2 + 1000
    large = arena.create(arena.arena_bytes(size, 2), rank=0, world_size=1)
    memory = Arena(large)
    index = memory.begin(0, 0)
    memory.buffer(index)[:size] = os.urandom(size)
    snapshot = memory.publish(size, 10, 7)
    assert arena.verify(large, snapshot) == ""  # nobody has sealed it
    assert not snapshot.sealed
    assert memory.seal(snapshot)
    (sealed,) = arena.inspect(large).snapshots
    assert sealed.sealed
    assert sealed.extent_bytes == size + 3 * 8
    assert arena.verify(large, sealed) == ""
    start = arena.offset_of(arena.inspect(large), index)
    for at in (0, seal.PIECE_BYTES - 1, seal.PIECE_BYTES, size - 1):
        flip(large, start + at)
        piece = at // seal.PIECE_BYTES * seal.PIECE_BYTES
        assert arena.verify(large, sealed).startswith(f"bytes {piece} to ")
        flip(large, start + at)
    flip(large, start + size + 5)
    assert arena.verify(large, sealed) == "its table of sums is damaged"
    flip(large, start + size + 5)
    first, second = (os.pread(large, seal.PIECE_BYTES, start + n * seal.PIECE_BYTES) for n in range(2))
    os.pwrite(large, second + first, start)
    assert arena.verify(large, sealed) != ""  # pieces that changed places
    memory.close()
    os.close(large)


def flip(fd: int, at: int) -> None:
    os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 16]), at)


def test_a_seal_is_given_up_when_it_is_not_wanted_or_its_snapshot_has_gone(fd: int) -> None:
    memory = Arena(fd)
    memory.begin(0, 0)
    first = memory.publish(100, 10, 7)
    assert not memory.seal(first, lambda: False)
    put(memory, 1)
    put(memory, 2)
    assert not memory.seal(first)
    assert not any(snapshot.sealed for snapshot in memory.snapshots())
    memory.retract(2)
    assert arena.held_steps(fd) == (1,)
    memory.close()


def test_a_seal_that_was_broken_off_goes_on_where_it_was() -> None:
    size = 3 * seal.PIECE_BYTES + 5
    large = arena.create(arena.arena_bytes(size), rank=0, world_size=1)
    memory = Arena(large)
    memory.buffer(memory.begin(0, 0))[:size] = bytes(range(251)) * (size // 251) + bytes(size % 251)
    snapshot = memory.publish(size, 10, 7)
    table = bytearray()
    for num_pieces in (1, 2, 3, 4):
        assert not memory.seal(snapshot, lambda: False, table)
        assert len(table) == num_pieces * seal.SUM_BYTES
    assert memory.seal(snapshot, lambda: False, table)
    (sealed,) = memory.snapshots()
    assert sealed.sealed
    assert arena.verify(large, sealed) == ""
    memory.close()
    os.close(large)


def test_a_snapshot_from_elsewhere_is_published_whole(fd: int, roomy: int) -> None:
    memory = Arena(roomy)
    index = memory.begin(8, 3)
    memory.buffer(index)[:100] = bytes(range(100))
    assert memory.seal(memory.publish(100, 10, 7))
    memory.close()
    (like,) = arena.inspect(roomy).snapshots
    data = os.pread(roomy, like.extent_bytes, arena.offset_of(arena.inspect(roomy), index))

    put_all(fd, 5, 6)
    there = arena.receive(fd, like)
    assert arena.held_steps(fd) == (6,)
    start = arena.offset_of(arena.inspect(fd), there)
    os.pwrite(fd, data[:50], start)
    assert arena.receive(fd, like) == there  # the transfer broke off, and goes on where it was
    os.pwrite(fd, data[50:], start + 50)
    arena.publish_received(fd, there, like)
    assert arena.held(fd) == ((6, 0), (8, 3))
    received = arena.inspect(fd).snapshots[-1]
    assert received.sealed
    assert arena.verify(fd, received) == ""
    with pytest.raises(ArenaError, match="was not made ready"):
        arena.publish_received(fd, there, like)
    arena.pin(fd, arena.PIN_TRUSTED, 6)
    with pytest.raises(ArenaError, match="all 2 buffers"):
        arena.receive(fd, like)
    with pytest.raises(ArenaError, match="bytes; a buffer here has 4096"):
        arena.receive(fd, dataclasses.replace(like, length=5000))


def test_memory_is_allocated_and_cannot_be_cut(fd: int) -> None:
    assert os.fstat(fd).st_blocks * 512 >= arena.arena_bytes(100)
    with pytest.raises(PermissionError):
        os.ftruncate(fd, PAGE)


def plain_memory(data: bytes) -> int:
    fd = os.memfd_create("test")
    os.write(fd, data)
    return fd


def whole(fd: int) -> bytes:
    return os.pread(fd, os.fstat(fd).st_size, 0)


@pytest.mark.parametrize(
    ("name", "damage", "why"),
    [
        ("empty", lambda b: b"", "cut"),
        ("half a header", lambda b: b[: PAGE // 2], "cut"),
        ("one buffer missing", lambda b: b[: 2 * PAGE], "cut"),
        ("one byte missing", lambda b: b[:-1], "cut"),
        ("wrong magic", lambda b: b"x" + b[1:], "magic"),
        ("other version", lambda b: b[:8] + (99).to_bytes(8, "little") + b[16:], "version 99"),
        ("rank outside world", lambda b: b[:24] + (4).to_bytes(8, "little") + b[32:], "rank 4 of 4"),
        ("absurd capacity", lambda b: b[:32] + (1 << 63).to_bytes(8, "little") + b[40:], "cut"),
        ("zeros", lambda b: bytes(len(b)), "magic"),
    ],
)
def test_garbage_holds_nothing_and_has_a_reason(fd: int, name: str, damage, why: str) -> None:
    memory = Arena(fd)
    put(memory, 0)
    memory.close()
    damaged = plain_memory(damage(whole(fd)))
    try:
        assert arena.held_steps(damaged) == ()
        assert why in arena.inspect(damaged).why
        arena.invalidate_after(damaged, 0)
        with pytest.raises(ArenaError, match=why):
            Arena(damaged)
    finally:
        os.close(damaged)


def test_a_closed_descriptor_and_a_pipe_hold_nothing() -> None:
    read, write = os.pipe()
    assert arena.held_steps(read) == ()
    os.close(read)
    os.close(write)
    assert "cannot be read" in arena.inspect(read).why


def test_too_small_for_an_arena() -> None:
    with pytest.raises(ArenaError, match="too few"):
        arena.create(2 * PAGE, rank=0, world_size=1)


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("damaged", [(), (0,), (2,), (1, 4)])
def test_several_threads_find_the_damage_that_one_finds(num_threads, damaged):
    data = bytearray(os.urandom(1 << 20) * 18)  # four pieces and a half
    table = b"".join(seal.sums(memoryview(data)))
    for piece in damaged:
        data[piece * seal.PIECE_BYTES + 7] ^= 1
    found = seal.check(memoryview(data), table, seal.table_sum(table), num_threads)
    assert (f"bytes {damaged[0] * seal.PIECE_BYTES} to " in found) if damaged else not found
