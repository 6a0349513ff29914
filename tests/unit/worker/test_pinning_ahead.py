"""The snapshot that a rank resumes from is page-locked while its program builds its model, once it uses the device."""

import threading

import pytest
import torch

from everstep.worker.snapshots.memory import pinning, pinning_ahead
from everstep.worker.snapshots.memory.pinning_ahead import PinningAhead

DEVICE = torch.device("cuda", 1)  # a name; no device is needed for it


class Device:
    """What torch says of it, and what was asked of the locking."""

    def __init__(self):
        self.is_initialized, self.has_context, self.is_looked_at = False, False, threading.Event()
        self.locked, self.is_locked = [], threading.Event()

    def has_primary_context(self, index):
        assert index == DEVICE.index
        self.is_looked_at.set()
        return self.has_context

    def begin_with(self, *asked):
        self.locked.append(asked)
        self.is_locked.set()


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: made.is_initialized)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", made.has_primary_context, raising=False)
    monkeypatch.setattr(pinning, "begin_with", made.begin_with)
    return made


def test_it_is_locked_as_soon_as_the_program_uses_the_device_and_once(device):
    ahead = PinningAhead("arena", DEVICE, 2)
    device.is_initialized = True
    assert device.is_looked_at.wait(60)
    assert not device.locked, "CUDA is there, the context of this device is not: nothing of ours makes it"
    device.has_context = True
    assert device.is_locked.wait(60)
    ahead.end()
    assert device.locked == [("arena", DEVICE, 2)]


def test_it_does_not_outlast_the_restore(device):
    ahead = PinningAhead("arena", DEVICE, 0)
    ahead.end()
    ahead.end()
    assert not ahead._thread.is_alive()
    assert not device.locked


def test_a_program_that_uses_no_device_is_not_looked_at_for_ever(device, monkeypatch):
    monkeypatch.setattr("everstep.worker.snapshots.memory.pinning_ahead._LIMIT_S", 0.02)
    ahead = PinningAhead("arena", DEVICE, 0)
    ahead._thread.join(60)
    assert not ahead._thread.is_alive()
    assert not device.locked
    ahead.end()


def test_a_torch_without_cuda_locks_nothing(device, monkeypatch):
    device.is_initialized = device.has_context = True
    monkeypatch.delattr(torch._C, "_cuda_hasPrimaryContext")
    ahead = PinningAhead("arena", DEVICE, 0)
    ahead._is_over.wait(0.05)
    ahead.end()
    assert not device.locked


def test_a_restore_does_not_fail_where_no_thread_is_to_be_had(monkeypatch):
    def start(_thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert pinning_ahead.begin("arena", DEVICE, 0) is None
