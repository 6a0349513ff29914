"""A state of a given size and a step of a given length, on any device, and clocks for both.

The step is matrix products, then the optimizer: what a training does to the device as far as a snapshot can feel it.
Gradients are set once; the optimizer changes every byte of the state in every step.
"""

import itertools
import math
import statistics
import time
from typing import Any

import torch
from torch import nn

NUM_LAYERS = 24


def model_of(state_gb: float, device: str) -> nn.Module:
    """Parameters that with Adam's moments are so many gigabytes of float32."""
    width = max(8, math.isqrt(int(state_gb * 1e9 / 12 / NUM_LAYERS)))
    with torch.device(device):
        return nn.Sequential(*(nn.Linear(width, width) for _ in range(NUM_LAYERS)))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    return torch.optim.AdamW(model.parameters(), lr=1e-5)


def bytes_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    return sum(tensor.nbytes for tensor in tensors_of(model, optimizer))


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    moments = [value for slot in optimizer.state.values() for value in slot.values()]
    return [*model.parameters(), *(value for value in moments if isinstance(value, torch.Tensor) and value.numel() > 1)]


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


class Work:
    """So many matrix products that they take `seconds` on this device."""

    def __init__(self, device: str, seconds: float) -> None:
        side, dtype = (512, torch.float32) if device == "cpu" else (4096, torch.bfloat16)
        self._a, self._b, self._c = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(3))
        self._number = 1
        for _ in range(3):
            self()
        synchronize(device)
        began = time.perf_counter()
        self._number = 10
        self()
        synchronize(device)
        self._number = max(1, round(10 * seconds / (time.perf_counter() - began)))

    def __call__(self) -> None:
        for _ in range(self._number):
            torch.mm(self._a, self._b, out=self._c)


class Clock:
    """Lengths of steps as the device has them; on the CPU as the program has them."""

    def __init__(self, device: str) -> None:
        self._is_cuda = device != "cpu"
        self._device = device
        self._marks: list[Any] = []

    def mark(self) -> None:
        """A step begins, or the last one ends."""
        if not self._is_cuda:
            self._marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append(event)

    def lengths_s(self) -> list[float]:
        """Between marks; forgets them."""
        synchronize(self._device)
        marks, self._marks = self._marks, []
        pairs = itertools.pairwise(marks)
        return [one.elapsed_time(two) * 1e-3 if self._is_cuda else two - one for one, two in pairs]


def median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None
