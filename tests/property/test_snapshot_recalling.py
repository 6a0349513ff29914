"""A state dict that is told without being made is the one that the object would have made."""

import os
import signal
import weakref
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from everstep.checkpoint import recalling
from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.recalling import Part, PartError
from everstep.checkpoint.stored import Stored


class Extra(nn.Linear):
    def get_extra_state(self):
        return {"more": 3}

    def set_extra_state(self, state):
        pass


class Net(nn.Module):
    """Of everything that torch knows: parameters, buffers that are kept and others, shared modules, tied weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.more = nn.ModuleList([nn.Linear(3, 3, bias=False), self.first])
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.first.weight
        self.register_buffer("hidden", torch.zeros(2), persistent=False)
        self.register_buffer("shown", torch.ones(2))
        self.none = None


class Program:
    def __init__(self, kind: str) -> None:
        self.net = Net()
        makers: dict[str, Callable] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "rprop": torch.optim.Rprop}
        more = {"momentum": 0.9} if kind == "sgd" else {}
        self.optimizer = makers[kind](
            [{"params": self.net.first.parameters()}, {"params": self.net.norm.parameters(), "lr": 0.01}],
            lr=0.1,
            **more,
        )
        self.step()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.9)
        self.optimizer.step()

    @property
    def objects(self) -> dict:
        return {"net": self.net, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def step(self) -> None:
        for parameter in self.net.parameters():
            if parameter.dtype is torch.float32:
                parameter.grad = torch.rand_like(parameter)
        self.optimizer.step()


def nothing(program: Program) -> None:
    pass


def rate(program: Program) -> None:
    program.scheduler.step()


def rate_of_numpy(program: Program) -> None:
    import numpy as np

    program.optimizer.param_groups[0]["lr"] = np.float64(0.3)


def rate_of_tensor(program: Program) -> None:
    program.optimizer.param_groups[0]["lr"] = torch.tensor(0.2)


def note_in_group(program: Program) -> None:
    program.optimizer.param_groups[1]["note"] = ["a", 1, None]


def nest_in_group(program: Program) -> None:
    program.optimizer.param_groups[1]["nest"] = {"a": [1]}


def data(program: Program) -> None:
    program.net.first.weight.data = torch.rand(3, 3)


def kind(program: Program) -> None:
    weight = program.net.more[0].weight
    weight.data = weight.data.double() if weight.dtype is torch.float32 else weight.data.float()


def pruned(program: Program) -> None:
    weight = program.net.more[0].weight
    weight.data = weight.data[: max(1, len(weight) - 1)]


def parameter(program: Program) -> None:
    program.net.tied.bias = nn.Parameter(torch.rand(3))


def no_bias(program: Program) -> None:
    program.net.tied.bias = None


def untied(program: Program) -> None:
    program.net.tied.weight = nn.Parameter(torch.rand(3, 3))


def buffer(program: Program) -> None:
    program.net.shown = torch.rand(2)


def hidden(program: Program) -> None:
    program.net.register_buffer("shown", program.net.shown, persistent=False)


def renamed(program: Program) -> None:
    program.net.other = program.net._parameters.pop("other", None) or nn.Parameter(torch.rand(1))


def renamed_in_place(program: Program) -> None:
    own = program.net.norm._buffers
    own["mean"] = own.pop("running_mean", None) if "running_mean" in own else own.pop("mean")


def child(program: Program) -> None:
    program.net.more.append(nn.Linear(2, 2))


def other_child(program: Program) -> None:
    program.net.more[0] = nn.Linear(3, 3, bias=False)


def hook(program: Program) -> None:
    program.net.first.register_state_dict_post_hook(lambda _m, state, prefix, _l: state.update({prefix + "x": 7}))


def hook_before(program: Program) -> None:
    program.optimizer.register_state_dict_post_hook(lambda _o, state: {**state, "more": 1})


def own_dict(program: Program) -> None:
    made = nn.Module.state_dict
    program.net.state_dict = lambda *a, **k: {**made(program.net, *a, **k), "own": 3}


def other_class(program: Program) -> None:
    program.net.tied.__class__ = Extra


def version(program: Program) -> None:
    program.net.tied._version = 7


def attribute(program: Program) -> None:
    for state in program.optimizer.state.values():
        next(iter(state.values())).mine = 5


def turned(program: Program) -> None:
    program.net.more[0].weight.data = program.net.first.weight.data.t()


def turned_where_it_is(program: Program) -> None:
    program.net.first.weight.data = program.net.first.weight.data.t()


def fresh_state(program: Program) -> None:
    program.optimizer.state.clear()


def state_key(program: Program) -> None:
    for state in program.optimizer.state.values():
        state["mine"] = state.get("mine", 0) + 1


def state_tensor(program: Program) -> None:
    for state in program.optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, torch.Tensor):
                state[name] = value.clone()


def state_moved(program: Program) -> None:
    for state in program.optimizer.state.values():
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.data = value.data.clone()


def group(program: Program) -> None:
    program.optimizer.add_param_group({"params": [nn.Parameter(torch.rand(2))]})


CHANGES = {
    act.__name__: act
    for act in (
        nothing, rate, rate_of_numpy, rate_of_tensor, note_in_group, nest_in_group, data, kind, pruned, parameter,
        no_bias, untied, buffer, hidden, renamed, renamed_in_place, child, other_child, hook, hook_before, own_dict,
        other_class, version, attribute, turned, turned_where_it_is, fresh_state,
        state_key, state_tensor, state_moved, group,
    )
}  # fmt: skip


def is_told(part: Part) -> bool:
    """Whether the last walk went around it."""
    return part._noted_at is not None


def read(packed, names) -> list:
    memory = memoryview(bytearray(packed.num_bytes))
    stored = Stored(memory, *Target(memory).write(packed))
    found = [stored.load(name) for name in names]
    return [*found, [getattr(each, "_metadata", None) for each in found], [type(each) for each in found]]


def exact(value: object) -> object:
    """What can be compared, to the last bit: a tensor's text would leave out digits, and takes long to write."""
    if isinstance(value, torch.Tensor):
        data = value.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
        return type(value), value.dtype, value.shape, value.requires_grad, data
    if isinstance(value, dict):
        return type(value), [(exact(key), exact(each)) for key, each in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exact(each) for each in value]
    return str(value)


def check(program: Program, packer: Packer, parts: dict[str, Part]) -> None:
    packed = packer.pack(parts)
    made = Packer().pack({name: thing.state_dict() for name, thing in program.objects.items()})
    assert exact(read(packed, program.objects)) == exact(read(made, program.objects))
    assert packed.addresses == made.addresses
    assert packed.plan.entries == made.plan.entries


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["adamw", "sgd", "rprop"]),
    st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(1, 3)), max_size=6),
    st.integers(0, 3),
)
def test_what_is_told_is_what_would_have_been_made(kind: str, changes: list[tuple[str, int]], before: int) -> None:
    program, packer = Program(kind), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    for what, times in [("nothing", before), *changes]:
        CHANGES[what](program)
        for _ in range(times):
            if "own" not in program.net.state_dict():
                program.step()
            check(program, packer, parts)


@pytest.mark.parametrize("what", sorted(CHANGES))
def test_every_change_of_an_object_that_is_told(what: str) -> None:
    program, packer = Program("adamw"), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    for _ in range(4):
        program.step()
        check(program, packer, parts)
    assert is_told(parts["net"])
    assert is_told(parts["optimizer"])
    assert not is_told(parts["scheduler"])
    CHANGES[what](program)
    for _ in range(4):
        check(program, packer, parts)


def test_dicts_are_made_twice_and_then_told(monkeypatch: pytest.MonkeyPatch) -> None:
    program, packer = Program("adamw"), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    num_made = dict.fromkeys(parts, 0)
    make = Part.make

    def counted(part: Part) -> object:
        num_made[part.name] += 1
        return make(part)

    monkeypatch.setattr(Part, "make", counted)
    for _ in range(20):
        program.step()
        program.scheduler.step()
        packer.pack(parts)
    assert num_made == {"net": 3, "optimizer": 3, "scheduler": 20}


def test_what_is_new_every_time_is_not_noted_for_ever() -> None:
    program, packer = Program("adamw"), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    for number in range(recalling.MAX_IN_VAIN + 6):
        program.step()
        CHANGES["state_tensor" if number > 3 else "nothing"](program)
        check(program, packer, parts)
    assert parts["optimizer"]._make_up is None
    assert is_told(parts["net"])


def test_a_copy_that_has_begun_is_not_of_weights_that_were_put_there_since() -> None:
    """As an average's are for an evaluation: `parameter.data = ...` changes no count."""
    program, packer = Program("adamw"), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    for _ in range(4):
        packer.pack(parts)
    before = str(program.net.state_dict())
    packed = packer.pack(parts)
    for parameter in program.net.parameters():
        parameter.data = torch.full_like(parameter, 9.0)
    assert str(read(packed, ["net"])[0]) == before


def test_a_dict_that_cannot_be_made_is_said_by_name() -> None:
    class Broken(nn.Linear):
        def state_dict(self, *_args, **_kwargs):
            raise RuntimeError("no")

    with pytest.raises(PartError, match="RuntimeError: no") as found:
        Packer().pack({"net": Part("net", Broken(1, 1))})
    assert found.value.part == "net"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_modules_that_torch_does_not_take_apart_are_left_to_themselves() -> None:
    for net in (Extra(2, 2), nn.Sequential(nn.Linear(1, 1), Extra(2, 2)), torch.jit.script(nn.Linear(2, 2))):
        packer, part = Packer(), Part("net", net)
        for _ in range(5):
            packer.pack({"net": part})
        assert not is_told(part)


class Box:
    """A part that is walked through every time."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.tensors = tensors

    def state_dict(self):
        return list(self.tensors)

    def load_state_dict(self, _):
        pass


def test_a_part_whose_place_in_the_walk_has_moved() -> None:
    before, after = (Box([torch.full((2,), 10.0 * n), torch.full((2,), 10.0 * n + 1)]) for n in (1, 2))
    net = nn.ParameterList([torch.full((2,), float(number)) for number in range(3)])
    parts = {name: Part(name, thing) for name, thing in {"before": before, "net": net, "after": after}.items()}
    packer = Packer()
    for _ in range(4):
        packer.pack(parts)
    assert is_told(parts["net"])
    after.tensors.append(before.tensors.pop())
    assert str(read(packer.pack(parts), ["net"])[0]) == str(net.state_dict())


def test_shared_memory_in_another_order() -> None:
    net = nn.ModuleDict({"a": nn.Linear(3, 3, bias=False), "b": nn.Linear(3, 3, bias=False)})
    net["b"].weight = nn.Parameter(net["a"].weight.data)
    packer, part = Packer(), Part("net", net)
    for _ in range(4):
        packer.pack({"net": part})
    assert is_told(part)
    net["b"].weight.data = net["a"].weight.data.t()
    assert str(read(packer.pack({"net": part}), ["net"])[0]) == str(net.state_dict())


def test_what_was_noted_keeps_nothing_alive_once_it_is_something_else() -> None:
    program, packer, more = Program("adamw"), Packer(), Box([])
    parts = {name: Part(name, thing) for name, thing in {**program.objects, "more": more}.items()}
    for _ in range(4):
        packer.pack(parts)
    assert is_told(parts["optimizer"])
    gone = weakref.ref(next(iter(program.optimizer.state.values()))["exp_avg"])
    program.optimizer.state.clear()
    for _ in range(3):
        more.tensors.append(torch.ones(1))
        packer.pack(parts)
    assert gone() is None


def test_what_a_handler_raises_meanwhile_reaches_the_program() -> None:
    class Stop(Exception):
        pass

    def handler(_number, _frame):
        raise Stop

    program, packer = Program("adamw"), Packer()
    parts = {name: Part(name, thing) for name, thing in program.objects.items()}
    number = signal.SIGUSR2
    before = signal.signal(number, handler)
    look = recalling._OfModule._look

    def interrupted(self):
        os.kill(os.getpid(), number)
        return look(self)

    recalling._OfModule._look = interrupted
    try:
        packer.pack(parts)
        packer.pack(parts)
        with pytest.raises(PartError) as found:
            packer.pack(parts)
        assert isinstance(found.value.__cause__, Stop)
    finally:
        recalling._OfModule._look = look
        signal.signal(number, before)
