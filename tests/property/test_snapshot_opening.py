"""Looking at a snapshot of another host's rank runs nothing, whatever its pickle names."""

import contextlib
import importlib
import io
import pickle
import pickletools
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import torch

from everstep.checkpoint.persist.read.known import known

MODULES = ("torch", "numpy", "collections", "builtins", "copyreg", "array", "datetime", "everstep", "_codecs", "random")
"""Packages of which any name was once looked up."""

VALUES = [
    Counter({3: 1}), OrderedDict(a=1), defaultdict(list, {1: [2]}), deque([1, 2], 5), {1, 2}, frozenset({1}),
    bytearray(b"ab"), 1 + 2j, slice(1, 2), datetime(2026, 1, 1, tzinfo=UTC), torch.float32, torch.bfloat16,
    torch.Size([2, 3]), torch.device("cpu"), torch.strided, np.float64(1.5), np.arange(4), np.dtype("int16"),
]  # fmt: skip


class Looking(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = known(module, name)
        if found is None:
            raise pickle.UnpicklingError(f"{module}.{name}")
        return found


def loaded(data: bytes) -> Any:
    return Looking(io.BytesIO(data)).load()


def reachable() -> list[tuple[str, str]]:
    """Every callable of the packages that are loaded, and one step further, by a name with a dot."""
    found = []
    for module in sorted(each for each in sys.modules if each.split(".")[0] in MODULES):
        for name, value in list(vars(sys.modules[module]).items()):
            if callable(value):
                found.append((module, name))
            if type(value).__name__ in ("module", "type"):
                found += [(module, f"{name}.{deeper}") for deeper in list(vars(value))[:40]]
    return found


def test_of_all_that_can_be_reached_little_is_looked_up_and_nothing_with_a_dot() -> None:
    importlib.import_module("torch.distributed.tensor")
    pairs = reachable()
    assert len(pairs) > 20_000
    taken = {pair for pair in pairs if known(*pair) is not None}
    assert len(taken) < 100
    assert not [pair for pair in taken if "." in pair[1]]
    assert not taken & {("builtins", name) for name in ("eval", "exec", "getattr", "type", "range", "bytes", "open")}
    own = [found for found in (known(*pair) for pair in taken) if type(found).__name__ == "module"]
    assert not own


@pytest.mark.parametrize("protocol", range(3, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("value", VALUES, ids=lambda each: type(each).__name__)
def test_what_states_hold_comes_back_as_it_was(value: Any, protocol: int) -> None:
    found = loaded(pickle.dumps(value, protocol))
    assert type(found) is type(value)
    assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value
    assert pickle.dumps(found, protocol) == pickle.dumps(pickle.loads(pickle.dumps(value, protocol)), protocol)


def changing(module: str, name: str) -> bytes:
    """A pickle that sets an attribute on what it names."""
    state = pickle.dumps((None, {"planted": 1}), 3)[2:-1]
    data = b"\x80\x03c" + f"{module}\n{name}\n".encode() + state + b"b."
    assert [op.name for op, _, _ in pickletools.genops(data)][-2:] == ["BUILD", "STOP"]
    return data


def test_no_pickle_changes_a_class_or_a_function_of_this_process() -> None:
    importlib.import_module("torch.distributed.tensor")
    for pair in {pair for pair in reachable() if known(*pair) is not None}:
        with contextlib.suppress(Exception):
            loaded(changing(*pair))
        assert not hasattr(getattr(sys.modules[pair[0]], pair[1]), "planted"), pair


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x03cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x03cbuiltins\nbytes\nJ\xff\xff\xff\x7f\x85R.",
        b"\x80\x03cbuiltins\nlist\ncbuiltins\nrange\nJ\xff\xff\xff\x7f\x85R\x85R.",
    ],
)
def test_a_few_bytes_make_no_long_value(data: bytes) -> None:
    with pytest.raises((pickle.UnpicklingError, TypeError)):
        loaded(data)
