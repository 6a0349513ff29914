"""The agent's own part in snapshots: what it pins and gives back, and what ranks tell of those that do not restore."""

import os
from types import SimpleNamespace

import pytest
from filled_arena import filled

from everstep.agent.copies.anchors import Anchors
from everstep.agent.copies.backing_up import BackingUp
from everstep.agent.copies.stopping import wants_save
from everstep.agent.memory import arenas as memory_module
from everstep.agent.memory.arenas import Memory
from everstep.agent.ranks import granting
from everstep.agent.watching.rank_frames import RankFrames
from everstep.checkpoint import arena
from everstep.core.state.policy import Policy
from everstep.model import events
from everstep.model.facts import RankAccount


@pytest.fixture
def memory():
    made = Memory(lambda rank, fd: None)
    yield made
    made.close()


@pytest.mark.parametrize("num_buffers", [2, 3, 4, 5, 6])
def test_what_stays_for_many_steps_leaves_room_to_write(memory, num_buffers):
    fd = filled(0, num_buffers=num_buffers)
    memory.adopt(0, fd)
    memory.begin((0,), 0)
    memory.pin(0, arena.PIN_SPARE, 0)
    mine = arena.Arena(fd)
    for step in range(1, 20):
        assert mine.begin(step, 0, keep_previous=num_buffers >= 4) is not None
        mine.publish(8, 4, 0)
        if step == 5:
            memory.trust(5)
        memory.pin(0, arena.PIN_BACKUP, step)
    mine.close()
    assert (5 in arena.held_steps(fd)) is (num_buffers >= 3)
    assert (0 in arena.held_steps(fd)) is (num_buffers >= 4)


def test_a_pin_holds_for_memory_that_comes_later(memory):
    memory.begin((0,), None)
    memory.pin(0, arena.PIN_PERSIST, 7)
    memory.trust(5)
    fd = filled()
    memory.add(0, fd)
    assert arena.pins(fd)[:3] == (5, None, 7)
    memory.pin(0, arena.PIN_PERSIST, None)
    assert arena.pins(fd)[:3] == (5, None, None)


def test_a_step_that_is_trusted_before_the_ranks_are_known_is_kept(memory):
    """TrustStep right behind StartWorkers, on an agent that has adopted what the one before it had."""
    fd = filled(4, 5, 6)
    memory.adopt(0, fd)
    memory.trust(5)
    memory.begin((0,), 6)
    assert arena.pins(fd)[arena.PIN_TRUSTED] == 5
    memory.begin((0,), 4)
    assert arena.pins(fd)[arena.PIN_TRUSTED] is None, "the job went back before it"
    memory.begin((0,), 7)
    assert arena.pins(fd)[arena.PIN_TRUSTED] is None


def test_a_small_arena_keeps_room_to_write(memory):
    fd = filled(4, 5, num_buffers=2)
    memory.add(0, fd)
    memory.begin((0,), 5)
    memory.trust(4)
    mine = arena.Arena(fd)
    assert mine.begin(6, 1) is not None, "two buffers, one of them trusted: no snapshot could be taken any more"
    mine.close()


def test_going_back_takes_pins_and_trust_along(memory):
    fd = filled(4, 5, 6)
    memory.add(0, fd)
    memory.begin((0,), None)  # somebody else's life: nothing of it counts
    assert arena.held_steps(fd) == ()
    other = filled(4, 5, 6)
    memory.adopt(0, other)
    for which, step in ((arena.PIN_TRUSTED, 6), (arena.PIN_BACKUP, 6), (arena.PIN_PERSIST, 5)):
        arena.pin(other, which, step)  # by an agent that is no more
    memory.begin((0,), 5)
    assert arena.pins(other) == (None, None, None, None)
    assert arena.held_steps(other) == (4, 5)
    memory.trust(4)
    memory.begin((0,), 5)
    assert arena.pins(other)[arena.PIN_TRUSTED] == 4


def test_an_older_arena_stays_as_long_as_something_in_it_is_needed(memory):
    old = filled(4, 5)
    memory.add(0, old)
    memory.begin((0,), 5)
    memory.trust(4)
    memory.add(0, filled(6, 7))
    assert [each.steps for each in memory.held()] == [(4, 5, 6, 7)]
    memory.trust(6)
    assert [each.steps for each in memory.held()] == [(6, 7)]


def test_of_a_step_that_is_there_twice_the_newer_generation_counts(memory):
    memory.add(0, filled(7, generation=1))
    newer = filled(7, generation=3)
    memory.add(0, newer)
    found = memory.find(0, 7)
    assert found is not None
    assert (found[0], found[1].generation) == (newer, 3)
    assert memory.held()[0].generations == (3,)
    assert memory.find(0, 8) is None


def test_memory_for_what_is_fetched_is_there_at_once_and_the_rest_later():
    num_bytes = arena.arena_bytes(8 << 20, 6)
    fd = memory_module.make(num_bytes, 0, 2, 6, num_present=1)
    try:
        assert 8 << 20 <= os.fstat(fd).st_blocks * 512 < 10 << 20
        like = arena.Snapshot(buffer=-1, step=7, length=9, generation=0, skeleton_bytes=4, skeleton_crc=0)
        buffer = arena.receive(fd, like)
        os.pwrite(fd, b"x" * 9, arena.offset_of(arena.inspect(fd), buffer))
        arena.publish_received(fd, buffer, like)
        arena.allocate(fd)
        assert os.fstat(fd).st_blocks * 512 == num_bytes
        assert os.pread(fd, 9, arena.offset_of(arena.inspect(fd), buffer)) == b"x" * 9
        assert arena.held_steps(fd) == (7,)
    finally:
        os.close(fd)


def test_memory_that_is_promised_to_others_is_not_free():
    free = memory_module.free_bytes()
    assert free is not None
    with pytest.raises(memory_module.ArenaRefusal, match="are free"):
        memory_module.make(1 << 20, 0, 2, 2, promised_bytes=2 * free)  # others may give memory back meanwhile


def test_anchors_are_the_same_steps_for_all_who_began_together():
    anchors = Anchors(Policy(digest_every=10))
    anchors.begin(None)
    assert [step for step in range(40) if anchors.includes(step)] == [0, 9, 19, 29, 39]
    anchors.begin(22)
    assert [step for step in range(40) if anchors.includes(step)] == [22, 29, 39]
    assert not anchors.may_go(22, -1, 35), "no later one is complete at the peer"
    assert not anchors.may_go(22, 29, 33), "slower ranks may not have it yet"
    assert anchors.may_go(22, 29, 34)
    assert Anchors(Policy(digest_every=0)).every == 64


@pytest.mark.parametrize(
    ("first", "last", "published", "expected"),
    [
        (None, None, None, False),  # no step yet
        (5, 5, None, True),  # its first copy may be under way
        (5, 9, None, False),  # it keeps none
        (5, 9, 9, False),
        (5, 9, 8, True),
    ],
)
def test_only_a_rank_that_keeps_snapshots_and_lacks_one_is_asked_to_save(first, last, published, expected):
    account = RankAccount(
        rank=0, spawned_at=1.0, first_step=first, last_step=last, published_step=published, counts_own_steps=True
    )
    alive = SimpleNamespace(is_alive=True, watch=object())
    assert wants_save(alive, account) is expected
    assert not wants_save(SimpleNamespace(is_alive=False, watch=object()), account)
    assert not wants_save(SimpleNamespace(is_alive=True, watch=None), account)


class Heard:
    def __init__(self) -> None:
        self.events: list[events.Event] = []
        self.worker = SimpleNamespace(rank=3, has_entered=True)
        self.frames = RankFrames(
            "n0",
            SimpleNamespace(),
            SimpleNamespace(take=lambda *_: None),
            host=SimpleNamespace(
                report=self.events.append,
                spawn=lambda work: work.close(),
                account=lambda worker: SimpleNamespace(),
                learn_ahead=lambda told: None,
                take_twin=lambda worker, told, fd: None,
                refuse_twin=lambda worker, why: None,
                note_all_stepped=lambda: None,
            ),
        )
        self.frames.begin(SimpleNamespace(generation=4, workers={3: self.worker}), 8)


def test_a_snapshot_that_does_not_restore_is_told():
    heard = Heard()
    frame = {"restore_failed": {"step": 40, "source": "memory", "where": "", "why": "sums do not match"}}
    heard.frames.take(heard.worker, frame, [])
    (told,) = heard.events
    assert isinstance(told, events.RestoreFailed)
    assert (told.node, told.generation, told.rank, told.step, told.source) == ("n0", 4, 3, 40, "memory")
    assert told.why == "sums do not match"
    assert told.is_damaged
    heard.frames.take(heard.worker, {"restore_failed": {**frame["restore_failed"], "is_damaged": False}}, [])
    assert not heard.events.pop().is_damaged
    heard.frames.take(SimpleNamespace(rank=3, has_entered=True), frame, [])
    assert len(heard.events) == 1, "of a process that has no part in this generation"


@pytest.mark.parametrize(
    "told",
    [
        {},
        [],
        7,
        None,
        {"step": "x", "source": "memory"},
        {"step": -1, "source": "memory"},
        {"step": 4, "source": "moon"},
    ],
)
def test_garbage_from_a_rank_costs_the_frame_and_its_descriptors_are_closed(told):
    heard = Heard()
    fd = os.memfd_create("stray")
    heard.frames.take(heard.worker, {"restore_failed": told}, [fd])
    assert not heard.events
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_rank_says_for_how_many_buffers_it_asks():
    assert granting.asked({"bytes": 8192}) == granting.Asked(num_bytes=8192, num_buffers=arena.NUM_BUFFERS)
    assert granting.asked({"bytes": 8192, "buffers": 5}).num_buffers == 5


def test_the_first_anchor_stays_though_its_rank_formats_the_memory(memory):
    """Copies on other nodes may be late by more steps than a rank keeps: the anchor is what both have."""
    memory.begin((0,), None)
    memory.pin(0, arena.PIN_SPARE, 0)
    fd = filled(num_buffers=6)
    memory.add(0, fd)
    arena.format_arena(fd, rank=0, world_size=2, num_buffers=6)  # as a rank does that has asked for it
    mine = arena.Arena(fd)
    copying = BackingUp(memory, Policy(), Anchors(Policy()), "token", "run")
    for step in range(20):
        assert mine.begin(step, 0, keep_previous=True) is not None
        mine.publish(8, 4, 0)
        copying._pinned(0, None, 0 if step > 1 else -1)  # its copy is complete after step 1
    mine.close()
    assert arena.held_steps(fd) == (0, 15, 16, 17, 18, 19)
