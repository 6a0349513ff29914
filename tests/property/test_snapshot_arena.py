"""Whatever is stopped or damaged, a complete snapshot stays complete and garbage never passes for one."""

import os

from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint import arena
from everstep.checkpoint.arena import Arena

SNAPSHOT_BYTES = 64


class KilledError(BaseException):
    pass


class MortalArena(Arena):
    """Dies just before its n-th write, of a cell or of a piece of data: all that a killed process can do."""

    writes_left = 1 << 30
    published: list[int] = []

    def _store(self, index: int, field: int, value: int) -> None:
        self._breathe()
        super()._store(index, field, value)

    def put(self, step: int, generation: int) -> None:
        index = self.begin(step, generation, lambda step: step % 5 == 0, keep_previous=generation % 2 == 0)
        if index is None:
            return
        data = self.buffer(index)
        for at in range(0, SNAPSHOT_BYTES, 16):
            self._breathe()
            data[at : at + 16] = content(step, generation)[at : at + 16]
        snapshot = self.publish(SNAPSHOT_BYTES, 8, 0)
        self.published = [*self.published, step]
        if step % 3 == 0:
            self._breathe()
            self.seal(snapshot)

    def _breathe(self) -> None:
        self.writes_left -= 1
        if self.writes_left < 0:
            raise KilledError


def content(step: int, generation: int) -> bytes:
    return f"step {step} of generation {generation} ".encode().ljust(SNAPSHOT_BYTES, bytes([step % 251]))


def check(fd: int, history: dict[int, int], had_one: bool) -> None:
    """`history`: step -> generation that wrote what is true now."""
    memory = Arena(fd)
    snapshots = memory.snapshots()
    for snapshot in snapshots:
        data = bytes(memory.buffer(snapshot.buffer)[: snapshot.length])
        assert data == content(snapshot.step, snapshot.generation)
        assert history[snapshot.step] == snapshot.generation, "a step of a history that was given up"
        assert arena.verify(fd, snapshot) == ""
    memory.close()
    assert snapshots or not had_one, "the last complete snapshot is gone"


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 90), st.integers(0, 1), st.integers(-1, 12)), min_size=1, max_size=8),
    st.integers(2, 6),
)
def test_killed_at_any_write_in_any_number_of_generations(lives: list[tuple[int, int, int]], num_buffers: int) -> None:
    """Each life: killed before its n-th write, then resumed at the newest or the one before (peers may lag). Somebody
    pins a step; it may be there, come, or never come."""
    fd = arena.create(arena.arena_bytes(SNAPSHOT_BYTES, num_buffers), rank=0, world_size=1, num_buffers=num_buffers)
    history: dict[int, int] = {}
    had_one = False
    for generation, (num_writes, back, pinned) in enumerate(lives):
        held = arena.held_steps(fd)
        resume = held[max(0, len(held) - 1 - back)] if held else -1
        arena.invalidate_after(fd, resume)
        history = {step: gen for step, gen in history.items() if step <= resume}
        memory = MortalArena(fd)
        memory.writes_left = num_writes
        arena.pin(fd, generation % arena.NUM_PINS, None if pinned < 0 else pinned)
        pinned_before = pinned in arena.held_steps(fd)
        step = resume
        try:
            while step < resume + 40:
                step += 1
                memory.put(step, generation)
        except KilledError:
            pass
        memory.close()
        history.update(dict.fromkeys(memory.published, generation))
        had_one = had_one or bool(memory.published)
        assert not pinned_before or pinned in arena.held_steps(fd), "a pinned step is gone"
        check(fd, history, had_one)
    os.close(fd)


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_damaged_header_never_raises_and_never_points_outside(data: st.DataObject) -> None:
    fd = arena.create(arena.arena_bytes(SNAPSHOT_BYTES), rank=0, world_size=1)
    memory = MortalArena(fd)
    memory.put(0, 0)
    memory.put(1, 0)
    memory.close()
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, 1100))
        os.pwrite(fd, data.draw(st.binary(min_size=1, max_size=16)), at)
    contents = arena.inspect(fd)
    for snapshot in contents.snapshots:
        assert 0 < snapshot.skeleton_bytes <= snapshot.length <= contents.capacity_bytes
        assert snapshot.step >= 0
    assert set(arena.held_steps(fd)) == {snapshot.step for snapshot in contents.snapshots}
    arena.invalidate_after(fd, -1)
    assert arena.held_steps(fd) == ()
    os.close(fd)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 3 * arena.PAGE_BYTES))
def test_cut_anywhere_holds_nothing(length: int) -> None:
    fd = arena.create(arena.arena_bytes(SNAPSHOT_BYTES), rank=0, world_size=1)
    memory = MortalArena(fd)
    memory.put(5, 0)
    memory.close()
    cut = os.memfd_create("cut")
    os.write(cut, os.pread(fd, length, 0))
    assert arena.held_steps(cut) == (() if length < 3 * arena.PAGE_BYTES else (5,))
    assert bool(arena.inspect(cut).why) == (length < 3 * arena.PAGE_BYTES)
    os.close(cut)
    os.close(fd)
