"""A device's side of a snapshot, on a stand-in that notes what is asked of it, in order and by thread."""

import contextlib
import threading
import time

import pytest
import torch

from everstep.checkpoint import arena as arenas
from everstep.worker.process import capturing
from everstep.worker.snapshots.memory import device_copies, pinning

DEVICE = torch.device("cuda", 1)  # a name; no device is needed for it


class Fake:
    """In the place of `torch.cuda`. Its clock is the number of the call."""

    def __init__(self):
        self.calls = []
        self.is_done = True
        self.number = 0
        self.failing_from = None
        fake = self

        class Stream:
            def __init__(self, device=None, name="own"):
                self.name = name

            def wait_event(self, event):
                fake.note(f"{self.name} waits for {event.name}")

        class Event:
            def __init__(self, *, enable_timing=False, blocking=False):
                fake.number += 1
                self.name, self.is_timed, self.is_blocking = f"e{fake.number}", enable_timing, blocking
                self.at = None

            def record(self, stream):
                self.at = fake.note(f"{stream.name} records {self.name}")

            def query(self):
                return fake.is_done

            def elapsed_time(self, other):
                assert self.is_timed
                assert other.is_timed
                return float(other.at - self.at)

        self.Stream, self.Event = Stream, Event
        self.program = Stream(name="program")

    def note(self, what):
        self.calls.append(what)
        return len(self.calls)

    def current_stream(self, device):
        assert device == DEVICE
        return self.program

    def set_device(self, device):
        self.note(f"device {device.index}")

    @contextlib.contextmanager
    def stream(self, stream):
        self.note(f"on {stream.name}")
        yield

    def cudart(self):
        return self

    def is_initialized(self):
        return True

    def cudaHostRegister(self, address, size, flags):
        self.note(("lock", address, size))
        locked = sum(1 for call in self.calls if call[0] == "lock")
        return 2 if self.failing_from is not None and locked > self.failing_from else 0

    def cudaHostUnregister(self, address):
        self.note(("unlock", address))
        return 0

    def cudaGetErrorString(self, code):
        return "out of memory"


@pytest.fixture
def fake(monkeypatch):
    made = Fake()
    monkeypatch.setattr(torch, "get_device_module", lambda device: made)
    for name in ("set_device", "cudart", "is_initialized"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    return made


def test_a_copy_runs_between_the_end_of_its_step_and_the_next_change_and_no_thread_waits(fake):
    copies, place = device_copies.DeviceCopies(), torch.zeros(4)
    (marked,) = device_copies.mark((DEVICE,))
    copied = copies.queue(marked, [place], [torch.ones(4)])
    copies.hold_program([copied])
    assert fake.calls == [
        "program records e1",
        "device 1",  # before the stream: to come back from a stream to device 0 would make a context there
        "on own",
        "own waits for e1",
        "own records e2",
        "program records e3",
        "program waits for e2",
    ]
    assert copied[1].is_blocking, "the copying thread waits without a CPU that spins"
    assert place.tolist() == [1.0] * 4


def test_what_the_device_stood_still_is_told_once_and_only_when_it_is_known(fake):
    copies = device_copies.DeviceCopies()
    early = copies.queue(device_copies.mark((DEVICE,))[0], [], [])
    copies.hold_program([early])  # the copy was over when the program came there
    assert copies.held_s() == 0.0
    late = (DEVICE, fake.Event(enable_timing=True))
    copies.hold_program([late])
    late[1].at = len(fake.calls) + 40
    fake.is_done = False
    assert copies.held_s() == 0.0, "not known yet is not a wait"
    fake.is_done = True
    assert copies.held_s() == pytest.approx(0.041, abs=0.002)
    assert copies.held_s() == 0.0


@pytest.fixture
def arena():
    fd = arenas.create(arenas.arena_bytes(3 << 20, 2), rank=0, world_size=1, num_buffers=2)
    return arenas.Arena(fd)


def test_each_buffer_is_locked_in_one_call_beginning_with_the_one_that_is_read(fake, arena):
    """A device refuses a copy that begins in one locked range and ends in another."""
    pinned = pinning.begin_with(arena, DEVICE, 1)
    assert pinned is not None
    last = pinning.address_of(arena.buffer(1)) + arena.capacity_bytes - 1
    assert pinned.wait(last)
    time.sleep(0.05)
    assert pinned.num_bytes == arena.capacity_bytes, "the other one would hold up who reads this one"
    assert pinned.is_under_way
    assert pinned is pinning.begin(arena, DEVICE)
    assert pinned.wait()
    locks = [call for call in fake.calls if call[0] == "lock"]
    whole = [("lock", pinning.address_of(arena.buffer(buffer)), arena.capacity_bytes) for buffer in (1, 0)]
    assert locks == whole
    assert pinned.num_bytes == 2 * arena.capacity_bytes
    assert not pinned.wait(id(arena)), "another one's memory is not waited for"
    pinning.keep_only(object())
    until = time.monotonic() + 60
    while len([call for call in fake.calls if call[0] == "unlock"]) < len(locks):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_where_memory_cannot_be_locked_the_reason_is_kept_and_nobody_waits_for_the_rest(fake, arena):
    fake.failing_from = 1
    pinned = pinning.begin(arena, DEVICE)
    assert not pinned.wait()
    assert not pinned.is_under_way
    assert pinned.why == "cudaHostRegister: out of memory"
    assert pinned.num_bytes == arena.capacity_bytes
    assert pinned.wait(pinning.address_of(arena.buffer(0)))
    assert not pinned.wait(pinning.address_of(arena.buffer(1)))
    pinning.keep_only(object())


def test_nothing_is_locked_for_a_process_without_cuda(arena):
    assert pinning.begin(arena, torch.device("cuda", 0)) is None


def test_a_thread_is_relaxed_once_and_by_itself(monkeypatch):
    asked = []
    monkeypatch.setattr(capturing, "_exchange", lambda library, call: asked.append(library) or len(asked) > 1)
    monkeypatch.setattr(capturing, "_here", threading.local())
    assert capturing.relax()
    assert capturing.relax()
    assert asked == ["libcuda.so.1", "libcudart.so.13"], "the first that does it"
    thread = threading.Thread(target=capturing.relax)
    thread.start()
    thread.join()
    assert len(asked) == 3


def test_no_thread_is_relaxed_without_a_library_that_is_loaded():
    assert not capturing.relax()
