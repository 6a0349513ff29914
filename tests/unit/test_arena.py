"""The arena on its own: what is held, where the next snapshot goes, and what garbage is taken for."""

import os

import pytest

from everstep.worker import arena
from everstep.worker.arena import Arena, ArenaError

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
