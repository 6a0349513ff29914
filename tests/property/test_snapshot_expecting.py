"""A walk that guesses what it meets packs the same bytes as one that looks at every tensor."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint.packing import Packer, Target
from everstep.checkpoint.stored import Stored


class Program:
    """A state whose tensors are the same objects from step to step, and what a program may do to them."""

    def __init__(self) -> None:
        self.tensors = [torch.full((2, 3), float(number)) for number in range(4)]
        self.tensors.append(torch.nn.Parameter(torch.ones(2, 3)))
        self.tensors.append(torch.zeros(0))
        self.more: list[torch.Tensor] = []
        self.rate = 0.1

    def parts(self) -> dict:
        return {"first": {"all": self.tensors, "rate": self.rate}, "second": [self.tensors[0].detach(), *self.more]}

    def change(self, what: str, which: int) -> None:
        tensor, other = self.tensors[which], self.tensors[(which + 1) % len(self.tensors)]
        data = tensor.data
        CHANGES[what](self, which, tensor, data, other)


def values(program, which, tensor, data, other):
    data.add_(1)


def rate(program, which, tensor, data, other):
    program.rate += 0.1


def kind(program, which, tensor, data, other):
    tensor.data = data.double() if data.dtype is torch.float32 else data.float()


def shape(program, which, tensor, data, other):
    tensor.data = torch.full((3, 2), 7.0, dtype=data.dtype)


def order(program, which, tensor, data, other):
    tensor.data = torch.full((3, 2), 9.0, dtype=data.dtype).t()


def shared(program, which, tensor, data, other):
    tensor.data = other.data


def another(program, which, tensor, data, other):
    program.tensors[which] = data.clone()


def same(program, which, tensor, data, other):
    program.tensors[which] = other


def gradient(program, which, tensor, data, other):
    tensor.requires_grad_(not tensor.requires_grad)


def attribute(program, which, tensor, data, other):
    tensor.mine = 3


def sparse(program, which, tensor, data, other):
    program.tensors[which] = torch.eye(3).to_sparse()


def more(program, which, tensor, data, other):
    program.more.append(torch.full((2, 3), float(len(program.more))))


def fewer(program, which, tensor, data, other):
    program.more = program.more[1:]


CHANGES = {
    act.__name__: act
    for act in (values, rate, kind, shape, order, shared, another, same, gradient, attribute, sparse, more, fewer)
}


def read(packed) -> list[list]:
    memory = memoryview(bytearray(packed.num_bytes))
    stored = Stored(memory, *Target(memory).write(packed))
    return [stored.load("first"), stored.load("second")]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(CHANGES)), st.integers(0, 5), st.integers(1, 3)), max_size=8))
def test_a_guess_changes_no_byte(changes: list[tuple[str, int, int]]) -> None:
    program, packer = Program(), Packer()
    for change in [None, *changes]:
        if change is not None and not any(tensor.is_sparse for tensor in program.tensors):
            program.change(*change[:2])
        for _ in range(change[2] if change is not None else 3):
            packed, plain = packer.pack(program.parts()), Packer().pack(program.parts())
            assert packed.skeleton == plain.skeleton
            assert packed.addresses == plain.addresses
            assert packed.plan.entries == plain.plan.entries
            assert str(read(packed)) == str(read(plain))


def test_an_unchanged_state_is_guessed_and_one_that_another_took_the_place_of_is_not() -> None:
    program, packer = Program(), Packer()
    for _ in range(2):
        packer.pack(program.parts())
    expected = packer._expected
    assert expected is not None
    program.change("values", 1)
    program.change("another", 2)
    packer.pack(program.parts())
    assert packer._expected is expected
    program.change("shared", 1)
    packer.pack(program.parts())
    assert packer._expected is not expected
