"""Tensors that stepping optimizers own and a State does not pack: masters, moments, weights."""

from collections.abc import Iterator
from typing import Any

import torch

from everstep.worker.completeness.kept import Kept, plain_tensors

MAX_DEPTH = 3


def lost(optimizer: Any, kept: Kept) -> Iterator[tuple[torch.Tensor, int, bool]]:  # noqa: ANN401
    """Each tensor with the bytes that are missing, and whether it is one of the parameters (else a state of one)."""
    state = optimizer.state
    parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    parameters |= {id(key): key for key in list(state) if isinstance(key, torch.Tensor)}
    for parameter in parameters.values():
        is_stepped = parameter.requires_grad or bool(state.get(parameter))
        if is_stepped and (num_bytes := _lost_bytes(parameter, kept)):
            yield parameter, num_bytes, True
    for value in list(state.values()):
        for tensor in tensors_in(value):
            if id(tensor) not in parameters and (num_bytes := _lost_bytes(tensor, kept)):
                yield tensor, num_bytes, False


def tensors_in(value: Any, depth: int = MAX_DEPTH) -> Iterator[torch.Tensor]:  # noqa: ANN401
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict) and depth:
        for each in list(value.values()):
            yield from tensors_in(each, depth - 1)
    elif isinstance(value, (list, tuple)) and depth:
        for each in value:
            yield from tensors_in(each, depth - 1)


def _lost_bytes(tensor: torch.Tensor, kept: Kept) -> int:
    """Bytes that are not packed and not zero: padding stays zero, and a new object begins with it."""
    with torch.no_grad():
        return sum(
            kept.missing_bytes(plain)
            for plain in plain_tensors(tensor)
            if any(bool(left.any()) for left in kept.left_out(plain))
        )
