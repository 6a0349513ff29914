"""At the program's end torch's threads may let go of what they did before the interpreter is taken down."""

import sys
import threading
import time
from types import ModuleType

import pytest

from everstep.worker.hooks.hooks import _wrap_rendezvous
from everstep.worker.process import communication
from everstep.worker.process.naming import name_thread


@pytest.fixture
def thread(request):
    """One that works for so many seconds, then waits until the test is over."""
    name, works_s = request.param
    named, over = threading.Event(), threading.Event()
    ended = []

    def work():
        name_thread(name)
        named.set()
        ends_at = time.monotonic() + works_s
        while time.monotonic() < ends_at:
            pass
        ended.append(time.monotonic())
        over.wait()

    one = threading.Thread(target=work)
    one.start()
    named.wait()
    yield ended
    over.set()
    one.join()


@pytest.mark.parametrize("thread", [("pt_gloo_runloop", 0.02)], indirect=True)
def test_a_thread_of_torch_that_works_is_waited_for(thread, monkeypatch):
    monkeypatch.setattr(communication, "LIMIT_S", 30.0)
    communication.let_go()
    assert thread, "it has done its work"


@pytest.mark.slow
@pytest.mark.parametrize("thread", [("pt_gloo_runloop", 3.0)], indirect=True)
def test_but_not_for_long(thread):
    communication.let_go()
    assert not thread


@pytest.mark.slow
@pytest.mark.parametrize("thread", [("mine", 3.0)], indirect=True)
def test_a_thread_of_the_program_is_not_waited_for(thread, monkeypatch):
    monkeypatch.setattr(communication, "LIMIT_S", 30.0)
    communication.let_go()
    assert not thread


def test_without_such_threads_nothing_is_waited_for(monkeypatch):
    monkeypatch.setattr(communication.time, "sleep", lambda seconds: pytest.fail("it waited"))
    monkeypatch.setattr(communication, "PREFIX", "none has this name")
    communication.let_go()


def test_a_thread_that_has_ended_is_asleep():
    assert not communication._is_at_work("999999999")


@pytest.mark.parametrize("thread", [("pt_gloo_runloop", 0.05)], indirect=True)
def test_a_process_group_is_destroyed_when_torchs_threads_have_let_go(thread, monkeypatch):
    """Who frees it holds the interpreter lock, and waits for a thread that may be asking for that lock."""
    destroyed = []

    def destroy_process_group(group=None):
        destroyed.append((group, list(thread)))

    module = ModuleType("torch.distributed.for_this_test")
    module.init_process_group, module.destroy_process_group = print, destroy_process_group
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(communication, "LIMIT_S", 30.0)
    _wrap_rendezvous(None, module)
    assert module.destroy_process_group is not destroy_process_group
    module.destroy_process_group(group="one")
    assert destroyed == [("one", thread)]
    assert thread, "the thread was done before"
