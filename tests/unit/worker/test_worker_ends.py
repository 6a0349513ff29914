"""What of ours runs in a training process when it ends, and what it must not do to the program."""

import gc
import subprocess
import sys
import weakref

import pytest
import torch

from everstep.worker.digests.digest import Digests
from everstep.worker.digests.replicas import Target
from everstep.worker.link import record
from everstep.worker.link.sequence import Sequence
from everstep.worker.process import capturing

ENDS = """
import atexit, socket, sys, time, traceback, types

class Group:
    def _get_sequence_number_for_group(self):
        time.sleep(0.05)  # native code without the interpreter lock
        return 1

world = types.SimpleNamespace(pg_map={Group(): None for _ in range(40)})
sys.modules["torch.distributed.distributed_c10d"] = types.SimpleNamespace(_world=world)

class Board:
    def set_communication(self, *args): pass
    def forget_communication(self): pass

@atexit.register  # runs after what is registered later
def see():
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    alive = [call for stack in stacks for call in stack if call.name in ("look", "_get_sequence_number_for_group")]
    print("alive" if alive else "ended", flush=True)

from everstep.worker.link import watch
watch.LOOK_S = 0.001
watch.END_LIMIT_S = 30
ours, theirs = socket.socketpair()
watch.start(Board(), theirs)
time.sleep(0.2)
"""


def test_the_watch_thread_ends_before_the_interpreter_is_taken_down():
    done = subprocess.run([sys.executable, "-c", ENDS], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


class Group:
    def __init__(self, number: int | None) -> None:
        self.number = number

    def _get_sequence_number_for_group(self) -> int:
        if self.number is None:
            raise RuntimeError("this backend does not count")
        return self.number


@pytest.fixture
def world(monkeypatch):
    monkeypatch.setattr("everstep.worker.link.sequence.LIMIT_S", 60.0)

    def of(*groups: Group) -> Sequence:
        known = type("World", (), {"pg_map": dict.fromkeys(groups)})
        module = type("Module", (), {"_world": known})
        monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", module)
        return Sequence()

    return of


def test_numbers_of_all_groups_are_added_and_those_that_do_not_count_are_left_out(world):
    assert world(Group(3), Group(None), Group(4)).look() == 7
    assert world(Group(None)).look() is None
    assert world().look() is None


def test_a_look_that_takes_too_long_goes_on_with_the_next(world, monkeypatch):
    groups = [Group(1), Group(10), Group(100)]
    sequence = world(*groups)
    assert sequence.look() == 111
    monkeypatch.setattr("everstep.worker.link.sequence.LIMIT_S", -1.0)
    for group in groups:
        group.number += 1
    assert [sequence.look() for _ in groups] == [112, 113, 114]


def test_a_group_that_is_gone_does_not_count(world, monkeypatch):
    groups = {Group(1): None, Group(10): None}
    sequence = world(*groups)
    assert sequence.look() == 11
    module = sys.modules["torch.distributed.distributed_c10d"]
    module._world.pg_map = dict(list(groups.items())[1:])
    assert sequence.look() == 10


class Teller:
    rank = 0

    def __init__(self) -> None:
        self.frames: list[dict] = []

    def tell(self, frame: dict) -> None:
        self.frames.append(frame)


def test_a_digest_keeps_no_parameter_alive():
    teller = Teller()
    digests = Digests(teller, 1)
    parameter = torch.nn.Parameter(torch.ones(8))
    alive = weakref.ref(parameter)
    digests.after_step(0, Target(parameters=[("w", parameter)]))
    del parameter
    gc.collect()
    assert alive() is None
    assert len(teller.frames) == 1


def test_parameters_that_are_too_large_to_be_read_on_the_processor_are_said(monkeypatch):
    monkeypatch.setattr("everstep.worker.digests.digest.MAX_CPU_BYTES", 16)
    teller = Teller()
    Digests(teller, 1).after_step(0, Target(parameters=[("w", torch.ones(8))]))
    assert teller.frames[0]["digest"]["values"] == {}
    assert "hold up the training" in teller.frames[0]["digest"]["missing"]


def test_nothing_is_captured_without_cuda():
    assert capturing.is_capturing() is False


def test_nccls_record_is_left_alone_where_its_thread_cannot_be_relaxed(monkeypatch):
    fake = type("Module", (), {"_dump_nccl_trace_json": staticmethod(lambda *_: b"{}")})
    world = type("World", (), {"pg_map": {"group": ("nccl", None)}})
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", fake)
    monkeypatch.setitem(sys.modules, "torch.distributed.distributed_c10d", type("M", (), {"_world": world}))
    monkeypatch.setattr(record, "relax", lambda: False)
    with pytest.raises(RuntimeError, match="without harm"):
        record.flight_record()
    monkeypatch.setattr(record, "relax", lambda: True)
    assert record.flight_record() == b"{}"
