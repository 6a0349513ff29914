"""Cheap fingerprints: whether a tensor or a generator is what it was at the last look."""

import random
from collections.abc import Sequence
from typing import Any

import torch

from everstep.worker.completeness.kept import Kept, plain_tensors
from everstep.worker.digests.digest import weigh

WHOLE_BYTES = 1 << 20
"""A larger tensor is known by as many of its bytes, evenly spread: what a step changes, it changes all over."""


def of_tensors(tensors: Sequence[torch.Tensor], kept: Kept) -> list[int]:
    """One for each tensor, of what is not packed of it. Waits for devices."""
    if not tensors:
        return []
    found: list[int] = [0] * len(tensors)
    by_device: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    with torch.no_grad():
        for at, tensor in enumerate(tensors):
            for left in (each for plain in plain_tensors(tensor) for each in kept.left_out(plain)):
                by_device.setdefault(left.device, []).append((at, weigh(_sampled(left))))
        for sums in by_device.values():
            for (at, _), value in zip(sums, torch.stack([each for _, each in sums]).tolist(), strict=True):
                found[at] = found[at] * 3 + value
    return found


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.nbytes <= WHOLE_BYTES or not tensor.is_contiguous():
        return tensor
    flat = tensor.view(-1)
    return flat[:: -(-tensor.nbytes // WHOLE_BYTES)].contiguous()


def of_generator(generator: Any) -> Any:  # noqa: ANN401
    """Its state as plain bytes or values that can be compared."""
    if type(generator) is torch.Generator:
        return bytes(generator.get_state().numpy())
    if isinstance(generator, random.Random):
        return generator.getstate()
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def are_equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - states of a generator
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(are_equal(one[key], other[key]) for key in one)
    try:
        return bool((one == other) if not hasattr(one, "tobytes") else one.tobytes() == other.tobytes())
    except Exception:
        return False
