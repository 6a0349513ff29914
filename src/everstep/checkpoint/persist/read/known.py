"""The names that a snapshot's pickles may look up while it is only looked at: exact pairs of module and name.

A snapshot may come from another host's rank, so looking at it must run nothing. A name with a dot is walked by pickle
(`torch` and `os.system`), and a class or function of Python could be changed for the whole process by a pickle that
sets attributes on it; so names have no dot, and what can be changed is replaced by one of its own. Pure but for the
imports of torch and NumPy.
"""

import functools
import importlib
import types
from typing import Any

import torch

_HEAP, _IMMUTABLE = 1 << 9, 1 << 8  # Py_TPFLAGS
_TENSORS = "torch.distributed.tensor"

_PAIRS = frozenset(
    (module, name)
    for module, names in {
        # No `range` and no `bytes`: a few bytes would make a list, or a text, that takes all memory.
        "builtins": "set frozenset complex slice list dict tuple int float str bool object",
        "collections": "OrderedDict defaultdict deque Counter",
        "datetime": "date datetime time timedelta timezone",
        "array": "array _array_reconstructor",
        "copyreg": "_reconstructor",
        "torch": "Size device",
        "torch.serialization": "_get_layout",
        "torch._utils": "_rebuild_tensor_v2 _rebuild_parameter _rebuild_sparse_tensor _rebuild_meta_tensor_no_storage",
        "torch.distributed.device_mesh": "DeviceMesh",
        "torch.distributed._mesh_layout": "_MeshLayout _FlatLayout",
        f"{_TENSORS}._dtensor_spec": "DTensorSpec TensorMeta ShardOrderEntry",
        f"{_TENSORS}.placement_types": "Shard _StridedShard Replicate Partial",
        "numpy": "ndarray dtype",
        "numpy.core.multiarray": "_reconstruct scalar",
        "numpy._core.multiarray": "_reconstruct scalar",
        "numpy.core.numeric": "_frombuffer",
        "numpy._core.numeric": "_frombuffer",
    }.items()
    for name in names.split()
)


def known(module: str, name: str) -> Any:  # noqa: ANN401 - whatever a pickle may name
    """Return the object that a snapshot's pickle means by this name. None: the name is not looked up."""
    if (module, name) == ("builtins", "bytearray"):
        return _bytearray
    if module == "torch" and isinstance(found := vars(torch).get(name), torch.dtype):
        return found
    if (module, name) not in _PAIRS:
        return None
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # of another version
        return None
    return _unchangeable(found)


def _bytearray(data: bytes = b"") -> bytearray:
    """Make a bytearray from bytes only: from a number it would be as long as that number."""
    if not isinstance(data, bytes):
        raise TypeError("a bytearray of no bytes")
    return bytearray(data)


def _unchangeable(found: Any) -> Any:  # noqa: ANN401 - a class or a function
    if isinstance(found, types.FunctionType):
        return functools.partial(found)
    if not isinstance(found, type) or not found.__flags__ & _HEAP or found.__flags__ & _IMMUTABLE:
        return found
    if "__reduce__" in vars(found):  # it is called, as Counter is, and its values have to be its own
        return functools.partial(found)
    return type(found)(found.__name__, (found,), {"__slots__": (), "__setstate__": _set_state})


def _set_state(self: Any, state: dict[str, Any]) -> None:  # noqa: ANN401 - an instance of a class of torch
    """Set the state as pickle does by itself. With this method in a class, pickle does it to instances only."""
    theirs = getattr(super(type(self), self), "__setstate__", None)
    if theirs is not None:
        theirs(state)
    else:
        vars(self).update(state)
