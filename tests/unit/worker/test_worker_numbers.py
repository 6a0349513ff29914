"""What the program says of its steps: when it is sent, what is read, what is left out."""

import math
import socket

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from everstep.wire import local
from everstep.worker.digests import numbers
from everstep.worker.digests.numbers import MAX_POINTS, Numbers


class Link:
    """Takes frames as the runtime does."""

    def __init__(self) -> None:
        self.frames: list[dict] = []
        self.faults: list[str] = []

    def tell(self, frame):
        self.frames.append(frame)

    def report_fault(self, where, why):
        self.faults.append(why)

    @property
    def points(self):
        return [tuple(point) for frame in self.frames for point in frame["numbers"]]


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 100.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(numbers, "time", made)
    return made


def test_points_go_together_about_once_a_second(clock):
    link = Link()
    told = Numbers(link)
    for step in range(12):
        told.take(step, 1.0, None)
        clock.now += 0.125
    assert [len(frame["numbers"]) for frame in link.frames] == [1, 8]
    assert link.points[0] == (0, 1.0, None)
    assert not any(frame["urgent"] for frame in link.frames)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3.5])
def test_what_is_not_finite_or_stands_out_is_sent_at_once(clock, value):
    link = Link()
    told = Numbers(link)
    for step in range(5):
        told.take(step, 1.0, 1.0)
    clock.now += 0.2
    told.take(5, 1.0, value)
    assert link.frames[-1]["urgent"]
    assert repr(link.points[-1]) == repr((5, 1.0, value))
    assert local.FrameReader().next() is None
    reader = local.FrameReader()
    reader.feed(local.pack(link.frames[-1]))  # NaN survives the way
    assert reader.next() is not None


def test_a_loss_that_stays_nan_does_not_flood_the_link(clock):
    link = Link()
    told = Numbers(link)
    for step in range(20_000):
        told.take(step, math.nan, None)
        clock.now += 0.001
    assert 20 <= len(link.frames) <= 25
    assert sum(frame["urgent"] for frame in link.frames) <= 8
    assert [frame["urgent"] for frame in link.frames[:3]] == [True] * 3


@given(st.integers(1, 3000))
def test_a_frame_of_fast_steps_is_small_and_spans_all_of_them(count):
    link = Link()
    told = Numbers(link)
    told._sent_at = numbers.time.monotonic() + 1e6  # nothing is due
    for step in range(count):
        told.take(step, 1.0 + 1e-9 * step, 1.0)
    told._send()
    steps = [step for step, _, _ in link.points]
    assert steps == sorted(set(steps))
    assert len(steps) <= MAX_POINTS
    assert steps
    assert steps[-1] >= count - max(1, count // 8) - 1
    assert len(local.pack(link.frames[-1])) < 4096


def test_numbers_of_any_kind_are_read(clock):
    link = Link()
    told = Numbers(link)
    np = pytest.importorskip("numpy")
    parameter = torch.nn.Parameter(torch.tensor(3.0))
    for step, value in enumerate(
        (1, 2.0, parameter * 1, torch.tensor([4.0]), np.float32(5), torch.tensor(6.0).bfloat16())
    ):
        clock.now += 2
        told.take(step, value, None)
    assert [loss for _, loss, _ in link.points] == [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    assert not link.faults


def test_what_cannot_be_read_is_said_once(clock):
    link = Link()
    told = Numbers(link)
    for step in range(3):
        clock.now += 2
        told.take(step, torch.zeros(2), "high")
    assert not link.points
    assert len(link.faults) == 2


def test_values_of_a_device_are_kept_in_order_until_they_arrive(clock):
    """The queue behind `_Arriving`, with an event that says when the copy is there."""
    link = Link()
    told = Numbers(link)
    told.take(0, 1.0, None)  # sent at once: the first
    late = numbers._Arriving(None, None)
    late._copy, late._event = torch.tensor(2.0), Event()
    told._queue(1, late, None)
    told.take(2, 2.1, None)
    clock.now += 2
    told.take(3, 2.2, None)
    assert link.points == [(0, 1.0, None)]
    late._event.is_done = True
    clock.now += 2
    told.take(4, 2.3, None)
    assert link.points[1:] == [(1, 2.0, None), (2, 2.1, None), (3, 2.2, None), (4, 2.3, None)]


class Event:
    is_done = False

    def query(self):
        return self.is_done


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_values_on_a_gpu_are_read_when_they_are_there(clock):
    link = Link()
    told = Numbers(link)
    told.take(0, torch.tensor(1.5, device="cuda"), None)
    torch.cuda.synchronize()
    clock.now += 2
    told.take(1, 2.0, None)
    assert link.points == [(0, 1.5, None), (1, 2.0, None)]


def test_a_step_that_is_told_is_counted_once():
    from everstep.agent.memory.board import Board
    from everstep.worker.link.runtime import Runtime
    from everstep.worker.process.board import BoardLine

    board = Board(1)
    board.reset(0, rank=0, generation=0)
    near, far = socket.socketpair()
    with near, far:
        assignment = {"rank": 0, "local_rank": 0, "world_size": 1, "generation": 0}
        runtime = Runtime(near, assignment, BoardLine(board.fd, 0), [])
        assert [runtime.told_step() for _ in range(3)] == [0, 1, 2]
        board.reset(0, rank=0, generation=1)
        runtime.is_told_steps = False
        runtime.step_done(0)  # the optimizer's hook has counted this step before the program tells of it
        assert [runtime.told_step() for _ in range(3)] == [0, 1, 2]
        assert board.account(0).last_step == 2
    board.close()
