"""Any nest of tensors and objects comes back with the same bits, and owns its memory."""

import zlib

import pytest
import torch
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from everstep.checkpoint.packing import DamagedError, Packer, Target
from everstep.checkpoint.stored import Stored

DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.float8_e4m3fn,
)

shapes = st.lists(st.integers(0, 4), max_size=4)


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    dtype, shape = draw(st.sampled_from(DTYPES)), draw(shapes)
    seed = draw(st.integers(0, 1 << 30))
    num_bytes = torch.empty(shape, dtype=dtype).nbytes
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (num_bytes,), dtype=torch.uint8)
    raw.random_(0, 2 if dtype is torch.bool else 256, generator=torch.Generator().manual_seed(seed))
    tensor = raw.view(dtype).view(shape) if num_bytes else torch.empty(shape, dtype=dtype)
    match draw(st.integers(0, 3)):
        case 0 if tensor.dim() >= 2:
            return tensor.transpose(0, 1)
        case 1 if tensor.dim() >= 1 and tensor.shape[0] > 1:
            return tensor[::2]
        case 2 if tensor.dim() == 4:
            return tensor.to(memory_format=torch.channels_last)
    return tensor


leaves = st.one_of(tensors(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.none(), st.binary())
nests = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=12,
)


def store(parts: dict, packer: Packer | None = None) -> tuple[bytearray, tuple[int, int, int]]:
    packed = (packer or Packer()).pack(parts)
    memory = bytearray(packed.num_bytes + 128)
    return memory, Target(memoryview(memory)).write(packed)


def bits_of(tensor: torch.Tensor) -> bytes:
    """Also of one element with an odd stride, which `contiguous` leaves as it is and `view` then refuses."""
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(tensor.detach().flatten())
    return bytes(plain.view(torch.uint8).numpy())


def same(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor)
        equal = a.shape == b.shape and bits_of(a) == bits_of(b)
        return equal and (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@settings(max_examples=examples(200), deadline=None)
@given(st.dictionaries(st.sampled_from(["model", "optimizer", "sampler"]), nests, min_size=1))
def test_round_trip(parts: dict) -> None:
    memory, where = store(parts)
    stored = Stored(memoryview(memory), *where)
    loaded = {name: stored.load(name) for name in stored.names}
    memory[:] = bytes(b ^ 0xFF for b in memory)  # nothing may point into the snapshot
    assert same(parts, loaded)


@settings(max_examples=100, deadline=None)
@given(st.lists(nests, min_size=1, max_size=4))
def test_the_same_packer_and_target_for_states_that_change(states: list) -> None:
    packer = Packer()
    memory = bytearray(1 << 16)
    target = Target(memoryview(memory))
    for state in [*states, *states]:
        packed = packer.pack({"x": state})
        where = target.write(packed)
        assert same(Stored(memoryview(memory), *where).load("x"), state)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_damage_to_the_skeleton_is_seen(data: st.DataObject) -> None:
    memory, where = store({"x": {"a": torch.ones(3), "b": 1.5}})
    length, skeleton_bytes, crc = where
    at = data.draw(st.integers(length - skeleton_bytes, length - 1))
    memory[at] ^= data.draw(st.integers(1, 255))
    assert zlib.crc32(memory[length - skeleton_bytes : length]) != crc
    with pytest.raises(DamagedError):
        Stored(memoryview(memory), *where)
