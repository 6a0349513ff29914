"""Digests of parameters: one bit is never missed, whatever the type; who is a replica of whom."""

import dataclasses
import socket

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.wire import local
from everstep.worker.digests.digest import MAX_NAME, MAX_RANGES, ROW_WORDS, Digests, compact, fold, weigh
from everstep.worker.digests.replicas import Target, of_optimizer, of_state

TYPES = (
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.complex64, torch.complex128),
)
SIZES = st.one_of(st.integers(1, 40), st.sampled_from([d * ROW_WORDS + r for d in (1, 2, 5) for r in (-1, 0, 1, 3)]))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(TYPES), SIZES, st.integers(0, 3), st.randoms(use_true_random=False))
def test_every_single_flipped_bit_changes_the_digest(dtype, size, offset, dice):
    data = torch.empty((size + offset) * dtype.itemsize, dtype=torch.uint8).random_()
    tensor = data.view(dtype)[offset:]
    before = weigh(tensor).item()
    assert weigh(tensor.clone()).item() == before, "the address must not matter"
    place = dice.randrange(offset * dtype.itemsize, data.numel())
    data[place] ^= 1 << dice.randrange(8)
    assert weigh(tensor).item() != before


def test_the_order_of_rows_counts():
    tensor = torch.arange(4 * ROW_WORDS, dtype=torch.int64)
    swapped = torch.cat((tensor[ROW_WORDS:], tensor[:ROW_WORDS]))
    assert weigh(tensor).item() != weigh(swapped).item()


def test_empty_and_strided_tensors():
    assert weigh(torch.empty(0)).item() == 0
    strided = torch.randn(6, 6).t()
    assert weigh(strided).item() == weigh(strided.clone(memory_format=torch.contiguous_format)).item()
    assert weigh(torch.tensor(True)).item() != weigh(torch.tensor(False)).item()


@given(st.integers(1, 500), st.integers(0, 200))
def test_ranges_are_few_and_every_parameter_is_in_one(count, length):
    names = [f"{'x' * length}{i}" for i in range(count)]
    sums = list(range(count))
    values = fold(names, sums)
    assert len(values) == min(count, MAX_RANGES)
    assert all(len(name) <= MAX_NAME + 4 for name in values)
    for place in {0, count // 2, count - 1}:
        other = fold(names, [value + (i == place) for i, value in enumerate(sums)])
        assert sum(values[name] != other[name] for name in values) == 1


class Link:
    rank = 0

    def __init__(self):
        self.frames = []

    def tell(self, frame):
        self.frames.append(frame["digest"])


@given(st.lists(st.integers(0, 5000), max_size=40, unique=True).map(sorted), st.integers(0, 3), st.integers(1, 64))
def test_regular_ranks_are_named_by_their_ends(listed, first, stride):
    from everstep.controller.detectors.digests import DigestDetector

    for ranks in (listed, list(range(first, 5000, stride))):
        short, distance = compact(ranks)
        assert len(short) <= 40
        assert DigestDetector()._ranks((tuple(short), distance)) == tuple(ranks)


def test_too_many_irregular_ranks_are_not_declared():
    assert compact([rank * rank for rank in range(2000)]) == ((), 0)


def test_digests_are_taken_at_the_same_steps_everywhere():
    link = Link()
    digests = Digests(link, every=10)
    target = Target(parameters=[("w", torch.ones(3))], replicas=(0, 1))
    for step in range(5, 35):
        if digests.is_due(step):
            digests.after_step(step, target)
    assert [frame["step"] for frame in link.frames] == [5, 9, 19, 29]
    assert link.frames[0]["values"] == link.frames[1]["values"]
    assert link.frames[0]["replicas"] == (0, 1)


def test_a_frame_fits_into_the_kernels_buffer():
    link = Link()
    names = [(f"model.layers.{i}.{'attention.' * 20}weight", torch.ones(1)) for i in range(1000)]
    Digests(link, every=1).after_step(0, Target(parameters=names))
    assert len(local.pack({"digest": link.frames[0]})) < 16_384


def test_a_frame_that_is_too_large_is_lost_and_not_the_link():
    from everstep.agent.memory.board import Board
    from everstep.worker.link.runtime import Runtime
    from everstep.worker.process.board import BoardLine

    board = Board(1)
    board.reset(0, rank=0, generation=0)
    near, far = socket.socketpair()
    with near, far:
        assignment = {"rank": 0, "local_rank": 0, "world_size": 2, "generation": 0}
        runtime = Runtime(near, assignment, BoardLine(board.fd, 0), [])
        names = [(f"{i}{chr(0x4E00) * 200}", torch.ones(1)) for i in range(64)]  # six bytes for each, as JSON has it
        Digests(runtime, every=1).after_step(0, Target(parameters=names))
        runtime.tell({"small": 1})
        received = [local.recv(far) for _ in range(2)]
    assert [next(iter(frame)) for frame, _ in received if frame] == ["fault", "small"]
    board.close()


def test_why_there_is_no_digest_is_said_once():
    link = Link()
    digests = Digests(link, every=1)
    for step in range(3):
        digests.after_step(step, Target(parameters=[], missing="sharded"))
    assert [frame["missing"] for frame in link.frames] == ["sharded"]


def test_without_ddp_nobody_declares_replicas():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    by_state = of_state([optimizer, model], [])
    assert [name for name, _ in by_state.parameters] == ["1.weight", "1.bias"]
    assert by_state.replicas == ()
    assert len(of_state([optimizer], []).parameters) == 2
    assert len(of_optimizer(optimizer, []).parameters) == 2
    assert of_optimizer(object(), []).parameters == []


@pytest.fixture
def rank_3_of_4():
    """A process group that exists and does nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=3, world_size=4, store=FakeStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # torch's own, of private modules
def test_replicas_of_shards_are_those_that_hold_the_same_shard(rank_3_of_4):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate, Shard

    def target(shape, placements, *names):
        mesh = init_device_mesh("cpu", shape)
        tensors = [torch.nn.Parameter(DTensor.from_local(torch.ones(2), mesh, placements)) for _ in names]
        module = torch.nn.ParameterDict(dict(zip(names, tensors, strict=True)))
        return of_state([module], [])

    hybrid = target((2, 2), (Replicate(), Shard(0)), "w", "b")
    assert (hybrid.replicas, len(hybrid.parameters), hybrid.missing) == ((1, 3), 2, "")
    assert type(hybrid.parameters[0][1]) is not DTensor
    sharded = target((4,), (Shard(0),), "w")
    assert (sharded.parameters, sharded.replicas) == ([], ())
    assert "sharded" in sharded.missing
    same = target((2, 2), (Replicate(), Replicate()), "w")
    assert same.replicas == (0, 1, 2, 3)


@pytest.mark.filterwarnings("ignore")
def test_ddp_declares_its_ranks_and_what_it_ignores(rank_3_of_4, monkeypatch):
    ddp = "torch.nn.parallel.distributed."
    model = torch.nn.Linear(2, 2)
    torch.nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["bias"])
    monkeypatch.setattr(ddp + "_verify_param_shape_across_processes", lambda *_: None)  # there are no others
    monkeypatch.setattr(ddp + "_sync_module_states", lambda *_args, **_kwargs: None)
    instance = torch.nn.parallel.DistributedDataParallel(model)
    target = of_state([model], [instance])
    assert (target.replicas, [name for name, _ in target.parameters]) == ((0, 1, 2, 3), ["weight"])
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    assert of_optimizer(optimizer, [instance]).replicas == (0, 1, 2, 3)
    stranger = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert of_optimizer(stranger, [instance]).replicas == ()
    instance._comm_hooks.append((post_localSGD_hook, None))
    left_out = of_state([model], [instance])
    assert left_out.parameters == []
    assert "local SGD" in left_out.missing


def post_localSGD_hook():
    pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_on_a_gpu_nothing_waits_and_the_digest_is_the_same():
    link, tensor = Link(), torch.randn(5 * ROW_WORDS + 3)
    digests = Digests(link, every=1)
    target = Target(parameters=[("w", tensor.cuda())])
    digests.after_step(0, target)
    torch.cuda.synchronize()
    digests.poll()
    digests.after_step(1, dataclasses.replace(target, parameters=[("w", tensor)]))
    assert link.frames[0]["values"] == link.frames[1]["values"]
