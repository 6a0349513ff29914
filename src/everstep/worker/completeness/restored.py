"""Whether an object, once loaded, is what the snapshot has of it.

Compared by bytes, tensor by tensor, in the order in which the state dict has them. Only modules, optimizers and what
stands for them in a State are asked: their `state_dict` has no side effects. A tensor that was loaded by taking it over
is the given one itself and costs nothing.
"""

import io
import pickle
from typing import Any

import torch

from everstep.worker.completeness.kept import plain_tensors
from everstep.worker.digests.digest import weigh


def is_comparable(thing: object) -> bool:
    """Whether its state can be asked for once more. What stands for an object says so itself."""
    return isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)) or bool(getattr(thing, "is_comparable", False))


def _comparable(thing: Any, state: Any) -> Any:  # noqa: ANN401 - a state dict
    """Return the part of a state dict that a restore gives back at once: all of it, unless the object has its own
    `comparable`."""
    reduce = getattr(thing, "comparable", None)
    return state if reduce is None or isinstance(thing, (torch.nn.Module, torch.optim.Optimizer)) else reduce(state)


def _held(thing: Any) -> Any:  # noqa: ANN401 - a state dict
    """Return what an object holds now. One whose `state_dict` refuses between two steps has `held` for that."""
    is_torchs = isinstance(thing, (torch.nn.Module, torch.optim.Optimizer))
    return thing.state_dict() if is_torchs or not hasattr(thing, "held") else thing.held()


def wanted(thing: Any, given: Any) -> list[torch.Tensor] | None:  # noqa: ANN401
    """The tensors that an object must have once it has loaded this; None: it is not asked. Before it loads: a program
    may take the dict apart."""
    return tensors_of(_comparable(thing, given)) if is_comparable(thing) else None


def difference(thing: Any, wanted: list[torch.Tensor]) -> str:  # noqa: ANN401
    """How the state of an object differs from these tensors; empty: in none of them."""
    found = tensors_of(_comparable(thing, _held(thing)))
    if len(wanted) != len(found):
        return f"it has {len(found)} tensors, the snapshot {len(wanted)}"
    differing = [
        (number, why)
        for number, (one, other) in enumerate(zip(wanted, found, strict=True))
        if (why := _difference(one, other))
    ]
    if not differing:
        return ""
    number, why = differing[0]
    return f"{len(differing)} of {len(wanted)} tensors differ; the first is number {number}: {why}"


def _difference(wanted: torch.Tensor, found: torch.Tensor) -> str:
    if wanted.dtype != found.dtype:
        return f"{found.dtype} where the snapshot has {wanted.dtype}"
    if wanted.shape != found.shape:
        return f"shape {tuple(found.shape)} where the snapshot has {tuple(wanted.shape)}"
    if wanted.layout is not torch.strided or wanted.is_meta or found.is_meta:
        return ""
    if wanted.data_ptr() == found.data_ptr() and wanted.stride() == found.stride():
        return ""
    return "" if int(weigh(wanted)) == int(weigh(found)) else "other bytes"


class _Order(pickle.Pickler):
    """Meets the tensors of a nest as pickle does, each as often as it is there."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.met: list[torch.Tensor] = []

    def persistent_id(self, thing: Any) -> str | None:  # noqa: ANN401
        if not isinstance(thing, torch.Tensor):
            return None
        self.met.extend(plain_tensors(thing))
        return "tensor"


def tensors_of(state: object) -> list[torch.Tensor]:
    """In order."""
    order = _Order()
    with torch.no_grad():
        order.dump(state)
    return order.met
