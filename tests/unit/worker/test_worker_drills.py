"""Silent faults by themselves: that the fault really happens, and nothing else."""

import pickle
import subprocess
import sys
import types

import pytest
import torch
import torch.distributed as dist

from everstep.core.faults.drills import why_bad_options, why_unwatched
from everstep.core.state.policy import Policy
from everstep.worker.drills import DrillRefusal, collectives, instances_of, loaded, parameters
from everstep.worker.drills.interception import COLLECTIVES, Call, Interception
from everstep.worker.drills.slow import BURST_S, Slowness


class Machine:
    """A clock that our sleep moves, and a program whose steps take what it says."""

    def __init__(self, **options) -> None:
        self.now = 100.0
        self.cpu = 0.0
        self.slept = 0.0
        self.slowness = Slowness(**{"waits_for_device": True, **options}, clocks=self)

    def monotonic(self) -> float:
        return self.now

    def thread_time(self) -> float:
        """To ask is to compute, for a microsecond."""
        self.now += 1e-6
        self.cpu += 1e-6
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += seconds

    def step(self, compute_s: float, cpu_share: float = 0.0) -> float:
        """How long it took."""
        began = self.now
        self.now += compute_s
        self.cpu += compute_s * cpu_share
        self.slowness(0)
        return self.now - began


def test_a_steady_slowness_is_a_share_of_the_ranks_own_step():
    machine = Machine(percent=30.0, pattern="steady", seconds=None)
    machine.step(0.1)  # the first one is not known to its beginning
    assert [machine.step(0.1) for _ in range(20)] == pytest.approx([0.13] * 20, rel=1e-3)


@pytest.mark.parametrize("cpu_share", [0.0, 0.4, 1.0])
def test_with_a_device_as_much_of_it_is_cpu_time_as_of_the_program(cpu_share: float):
    machine = Machine(percent=30.0, pattern="steady", seconds=None)
    for _ in range(20):
        machine.step(0.1, cpu_share)
    slept, cpu = machine.slept, machine.cpu
    assert [machine.step(0.1, cpu_share) for _ in range(10)] == pytest.approx([0.13] * 10, rel=0.01)
    assert machine.slept - slept == pytest.approx(10 * 0.03 * (1 - cpu_share), abs=0.001)
    assert machine.cpu - cpu == pytest.approx(10 * 0.13 * cpu_share, abs=0.001)


def test_without_a_device_all_of_it_is_cpu_time():
    machine = Machine(percent=30.0, pattern="steady", seconds=None, waits_for_device=False)
    for _ in range(20):
        machine.step(0.1, 0.2)
    slept, cpu = machine.slept, machine.cpu
    assert [machine.step(0.1, 0.2) for _ in range(10)] == pytest.approx([0.13] * 10, rel=0.01)
    assert machine.slept - slept == pytest.approx(0.0, abs=0.001)
    assert machine.cpu - cpu == pytest.approx(10 * (0.02 + 0.03), abs=0.001)


def test_one_long_step_does_not_count():
    machine = Machine(percent=50.0, pattern="steady", seconds=None)
    for _ in range(8):
        machine.step(0.1)
    assert machine.step(4.0) == pytest.approx(4.05, rel=1e-4)


def test_steps_too_short_to_sleep_in_are_saved_up():
    machine = Machine(percent=10.0, pattern="steady", seconds=None)
    machine.step(0.002)
    took = [machine.step(0.002) for _ in range(50)]
    assert sum(took) == pytest.approx(50 * 0.0022, rel=0.02)
    assert len({round(each, 6) for each in took}) > 1


def test_a_growing_slowness_grows_and_stays():
    slowness = Machine(percent=40.0, pattern="growing", seconds=20.0).slowness
    assert [slowness.share(age) for age in (0, 5, 10, 20, 500)] == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.4])


def test_an_intermittent_one_comes_in_bursts_and_both_end_when_asked():
    bursts = Machine(percent=40.0, pattern="intermittent", seconds=30.0).slowness
    ages = [0.0, BURST_S - 0.1, BURST_S + 0.1, 2 * BURST_S + 0.1, 31.0]
    assert [bursts.share(age) for age in ages] == [0.4, 0.4, 0.0, 0.4, 0.0]
    steady = Machine(percent=40.0, pattern="steady", seconds=30.0).slowness
    assert (steady.share(29.0), steady.share(30.0)) == (0.4, 0.0)


def bits(tensor: torch.Tensor) -> int:
    return int.from_bytes(tensor.reshape(-1).view(torch.uint8).numpy().tobytes(), "little")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(5, 7), (3,), ()])
def test_exactly_one_bit_is_flipped(dtype, shape):
    torch.manual_seed(1)
    tensor = torch.nn.Parameter(torch.randn(shape).to(dtype))
    before, version = tensor.detach().clone(), tensor._version
    said = parameters._flip_bit([("small", torch.zeros(0), True), ("weight", tensor.data, True)])
    changed = bits(before) ^ bits(tensor.detach())
    assert changed.bit_count() == 1
    assert torch.isfinite(tensor).all()
    assert torch.allclose(before, tensor.detach(), rtol=0.3)
    assert tensor._version == version, "autograd noticed"
    assert said.startswith(f"bit {parameters._MANTISSA_BITS[str(dtype)] // 2} of weight")


def test_a_transposed_tensor_is_changed_itself_and_not_a_copy():
    tensor = torch.arange(6.0).reshape(2, 3).t()
    before = tensor.clone()
    parameters._flip_bit([("weight", tensor, True)])
    assert (before != tensor).sum() == 1


def test_nan_goes_where_every_forward_meets_it():
    table, weight = torch.zeros(4, 4), torch.zeros(2, 3)
    assert "weight[0, 0]" in parameters._set_nan(
        [("table", table, False), ("weight", weight, True), ("bias", torch.zeros(2), True)]
    )
    assert weight.isnan().sum() == 1
    assert not table.isnan().any()


def test_parameters_are_found_through_the_optimizers_when_there_is_no_state():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Embedding(4, 2)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    mine = {id(parameter.data.untyped_storage()) for parameter in model.parameters()}
    found = {tensor.data_ptr(): used for _, tensor, used in parameters._parameters()}
    assert mine
    assert found[model[0].weight.data_ptr()] is True
    assert found[model[1].weight.data_ptr()] is False
    assert optimizer in instances_of(torch.optim.Optimizer)


class Group:
    def __init__(self, name: str) -> None:
        self.group_name = name


class Entered:
    """What really went to the library."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []

    def call(self, group: str, name: str = "allreduce", size: int = 8) -> Call:
        return Call(Group(group), name, ([torch.ones(size)],), {}, self._enter)

    def _enter(self, group: Group, tensors: list[torch.Tensor], *_rest: object) -> object:
        self.calls.append((group.group_name, [tensor.numel() for tensor in tensors]))
        return types.SimpleNamespace(wait=lambda: True)


@pytest.fixture
def said() -> list[str]:
    return []


class Parked(Exception):
    pass


@pytest.fixture
def parked(monkeypatch):
    def park() -> None:
        raise Parked

    monkeypatch.setattr(collectives, "_wait_outside", park)


def test_a_skipped_collective_parks_before_it_would_pair_with_the_others(parked, said):
    fault, entered = collectives.SkippedCollective(said.append), Entered()
    assert fault.on_call(entered.call("tp")).wait()
    assert fault.on_call(entered.call("dp")).wait()
    assert entered.calls == [("dp", [8])]
    assert said == ["left out allreduce in group tp"]
    with pytest.raises(Parked):
        fault.on_call(entered.call("tp"))


def test_ddp_leaves_out_one_reduction_and_is_as_before(parked, said):
    fault = collectives.SkippedCollective(said.append)
    ddp = types.SimpleNamespace(require_backward_grad_sync=True, process_group=Group("0"))
    fault.before_forward(ddp)
    assert not ddp.require_backward_grad_sync
    fault.after_forward(ddp)
    assert ddp.require_backward_grad_sync
    with pytest.raises(Parked):
        fault.before_forward(ddp)


def test_the_next_all_reduce_has_another_size_and_only_that_one(said):
    fault, entered = collectives.MismatchedShape(said.append), Entered()
    fault.on_call(entered.call("0", name="broadcast"))
    fault.on_call(entered.call("0"))
    fault.on_call(entered.call("0"))
    assert entered.calls == [("0", [8]), ("0", [7]), ("0", [8])]
    assert collectives._another(1) == 2


def test_the_larger_group_comes_first(monkeypatch, said):
    monkeypatch.setattr(collectives, "_containing_groups", lambda: {"tp": {"0"}, "dp": {"0"}})
    fault, entered = collectives.OppositeOrder(said.append), Entered()
    for group in ("tp", "dp", "tp", "0", "tp"):
        fault.on_call(entered.call(group))
    assert [group for group, _ in entered.calls] == ["dp", "0", "tp", "tp", "tp"]


def test_without_two_groups_it_is_refused(monkeypatch, said):
    monkeypatch.setattr(collectives, "_containing_groups", dict)
    with pytest.raises(DrillRefusal, match="no two process groups"):
        collectives.OppositeOrder(said.append)


@pytest.fixture
def alone():
    """A process group of one: collectives are real, and nobody else is needed."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_collectives_are_intercepted_by_whatever_name_and_given_back(alone, parked, said):
    before = {name: getattr(dist.ProcessGroup, name) for name in COLLECTIVES if hasattr(dist.ProcessGroup, name)}
    from torch.distributed import all_reduce  # as a program does that knows no other name

    interception = Interception(collectives.SkippedCollective(said.append))
    interception.install()
    seq = alone._get_sequence_number_for_group()
    all_reduce(torch.ones(3))
    assert (said, alone._get_sequence_number_for_group()) == (["left out allreduce in group 0"], seq)
    with pytest.raises(Parked):
        dist.barrier()
    interception.remove()
    all_reduce(torch.ones(3))
    assert alone._get_sequence_number_for_group() == seq + 1
    assert {name: getattr(dist.ProcessGroup, name) for name in before} == before


def test_a_ddp_module_in_which_a_fault_has_begun_can_be_pickled(alone, parked, said):
    forward = torch.nn.parallel.DistributedDataParallel.forward
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    interception = Interception(collectives.SkippedCollective(said.append))
    interception.install()
    try:
        pickle.dumps(ddp)
        ddp(torch.ones(1, 2))
        assert said == ["left out DDP's reduction of the gradients in group 0"]
        pickle.dumps(ddp)
        with pytest.raises(Parked):
            ddp(torch.ones(1, 2))
    finally:
        interception.remove()
    ddp(torch.ones(1, 2)).sum().backward()
    assert torch.nn.parallel.DistributedDataParallel.forward is forward


def test_what_finds_no_occasion_is_off_again(alone, said, monkeypatch):
    original = dist.ProcessGroup.allreduce
    monkeypatch.setattr("everstep.worker.drills.interception.PATIENCE_S", 0.0)
    Interception(collectives.SkippedCollective(said.append)).install()
    dist.all_reduce(torch.ones(3))
    assert said == []
    assert dist.ProcessGroup.allreduce == original


def test_a_skipped_collectives_work_is_done():
    work = collectives._done()
    assert (work.wait(), work.is_completed(), work.get_future().wait()) == (True, True, [])


def test_a_module_that_is_not_there_is_said():
    with pytest.raises(DrillRefusal, match="not imported no_such_module"):
        loaded("no_such_module")


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("slow", {}, ""),
        ("slow", {"percent": 30.0, "seconds": 5.0, "pattern": "growing"}, ""),
        ("slow", {"pattern": "sometimes"}, "steady, growing, intermittent"),
        ("slow", {"percent": 0.0}, "above 0"),
        ("slow", {"percent": float("nan")}, "above 0"),
        ("slow", {"seconds": "long"}, "above 0"),
        ("slow", {"percant": 3.0}, "no option percant"),
        ("nan", {"percent": 3.0}, "takes no options"),
    ],
)
def test_options(kind, options, why):
    answer = why_bad_options(kind, options)
    assert why in answer
    assert bool(why) == bool(answer)


@pytest.mark.parametrize(
    ("kind", "switch"),
    [
        ("skip-collective", "watch_hangs"),
        ("slow", "watch_slowness"),
        ("flip-bit", "digest_every"),
        ("nan", "watch_numbers"),
    ],
)
def test_nobody_causes_what_nobody_would_see(kind, switch):
    assert why_unwatched(kind, Policy()) == ""
    assert f"policy {switch}" in why_unwatched(kind, Policy(**{switch: 0}))


INTERRUPTED = """
import signal, threading, time, types
from everstep.worker.drills import drill
rung, put_back = [], []
signal.signal(drill.DRILL_SIGNAL, lambda *_: rung.append(1))
request = {"kind": "python-loop", "id": "d"}
drill.current = lambda: types.SimpleNamespace(take_drill=lambda: request, put_back=put_back.append)
in_torch = types.SimpleNamespace(f_code=types.SimpleNamespace(co_filename="/x/torch/nn/module.py"))
# As where a signal interrupts the main thread in join(); Python 3.13 has that lock no more.
with getattr(threading, "_shutdown_locks_lock", threading._active_limbo_lock):
    drill._on_signal(0, in_torch)
until = time.monotonic() + 10
while not rung and time.monotonic() < until:
    time.sleep(0.01)
print(len(rung), put_back)
"""


def test_a_drill_that_has_to_wait_does_not_lock_a_program_that_joins_a_thread():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "1 [{'kind': 'python-loop', 'id': 'd', 'tries': 1}]\n"
