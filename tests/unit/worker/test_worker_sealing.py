"""Which snapshot is sealed next."""

import os
import time

import pytest

from everstep.checkpoint import arena
from everstep.worker.snapshots import copying
from everstep.worker.snapshots.sealing import Sealing


class Quiet:
    """Of snapshots that nobody asks about."""

    def note_published(self, step: int) -> None: ...

    def note_failed(self, job: copying.Job) -> None: ...

    def is_candidate(self, _step: int) -> bool:
        return False


@pytest.fixture
def memory():
    fd = arena.create(arena.arena_bytes(100, 4), rank=0, world_size=2, num_buffers=4)
    memory = arena.Arena(fd)
    yield memory
    memory.close()
    os.close(fd)


def put(memory: arena.Arena, sealing: Sealing, step: int) -> None:
    assert memory.begin(step, 0) is not None
    sealing.add(memory, memory.publish(100, 10, 7))


def test_the_newest_first_but_what_was_begun_is_finished_and_what_is_gone_forgotten(memory: arena.Arena) -> None:
    sealing = Sealing(lambda _: False)
    for step in range(3):
        put(memory, sealing, step)
    begun = sealing.next()
    assert begun.snapshot.step == 2
    begun.table += bytes(8)
    put(memory, sealing, 3)
    assert sealing.next() is begun
    put(memory, sealing, 4)  # over step 0
    sealing.done(begun)
    assert sealing.next().snapshot.step == 4
    for step in range(5, 9):
        put(memory, sealing, step)
    assert sealing.next().snapshot.step == 8
    for _ in range(4):
        sealing.done(sealing.next())
    assert (sealing.next(), sealing.is_waiting) == (None, False)


def test_what_stays_for_long_comes_first(memory: arena.Arena) -> None:
    sealing = Sealing(lambda step: step == 0)
    for step in range(3):
        put(memory, sealing, step)
    assert sealing.next().snapshot.step == 0
    sealing.done(sealing.next())
    arena.pin(memory.fd, arena.PIN_BACKUP, 1)
    begun = sealing.next()
    assert begun.snapshot.step == 2
    begun.table += bytes(8)
    arena.pin(memory.fd, arena.PIN_PERSIST, 1)
    assert sealing.next().snapshot.step == 1


def test_sealing_waits_for_a_program_that_needs_the_processor(
    memory: arena.Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "HELD_S", 3600.0)
    copier = copying.Copier(Quiet())
    copier.hold_sealing()
    assert memory.begin(0, 0) is not None
    copier.seal(memory, memory.publish(100, 10, 7))
    copier._thread.join(0.2)
    assert not memory.snapshots()[0].sealed
    copier.let_seal()
    wait_for(lambda: memory.snapshots()[0].sealed)
    copier.end()


def test_sealing_that_was_held_goes_on_by_itself(memory: arena.Arena) -> None:
    copier = copying.Copier(Quiet())
    copier.hold_sealing()
    assert memory.begin(0, 0) is not None
    copier.seal(memory, memory.publish(100, 10, 7))
    wait_for(lambda: memory.snapshots()[0].sealed)
    copier.end()


def wait_for(is_true) -> None:
    until = time.monotonic() + 20
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.005)
