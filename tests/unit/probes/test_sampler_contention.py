"""Whether somebody keeps the interpreter lock is told from naps that come late, but not from a lack of processors."""

import io
import itertools
import threading
import time

import pytest

from everstep.worker.link import sampler

LATE_S = 0.05


@pytest.mark.parametrize("waits_for_processor", [True, False])
def test_a_nap_that_is_late_for_want_of_a_processor_says_nothing_of_the_lock(monkeypatch, waits_for_processor):
    waited_ns = 0

    def late(_nap_s: float) -> None:
        nonlocal waited_ns
        began = time.perf_counter()
        threading.Event().wait(LATE_S)
        waited_ns += waits_for_processor * int((time.perf_counter() - began) * 1e9)

    monkeypatch.setattr(sampler.time, "sleep", late)
    monkeypatch.setattr(sampler, "_sched_ns", lambda _task: (0, waited_ns))
    others_ns = itertools.count(step=int(LATE_S * 1e9))  # another thread computes all the time
    monkeypatch.setattr(sampler.time, "process_time_ns", lambda: next(others_ns))
    took_s, is_contended = sampler._hand_over([])
    assert took_s >= sampler.NUM_NAPS * LATE_S
    assert is_contended is not waits_for_processor


@pytest.mark.parametrize("told", [b"0 0 0\n", b"", b"1 2\n", b"a b c\n"])
def test_a_kernel_that_does_not_count_says_nothing(monkeypatch, told):
    monkeypatch.setattr(sampler, "open", lambda *_: io.BytesIO(told), raising=False)
    assert sampler._sched_ns(1) is None
    assert sampler._cpu_ns(1) is None


def test_time_of_a_processor_is_counted():
    task = threading.get_native_id()
    before = sampler._cpu_ns(task)
    until = time.thread_time() + 0.02
    while time.thread_time() < until:
        pass
    assert sampler._cpu_ns(task) - before > 10_000_000
