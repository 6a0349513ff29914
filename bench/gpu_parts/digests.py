"""Digests of parameters on the device: that one flipped bit changes them, and what they cost beside a step."""

import statistics
import time
from typing import Any

import torch
from torch import nn

from everstep.core.state.policy import Policy
from everstep.wire.frames import RankTells
from everstep.worker.digests.digest import Digests, weigh
from everstep.worker.digests.replicas import Target
from gpu_programs.gpu_model import Work, model_of, synchronize
from gpu_running.part import Report, Request, run

_FLIPS = 40
_GB = 2.0
_STEP_S = 0.3


class _Teller:
    rank = 0

    def __init__(self) -> None:
        self.frames: list[Any] = []

    def tell(self, frame: RankTells) -> None:
        self.frames.append(frame)


def main(request: Request, report: Report) -> None:
    if not request.is_rehearsal:
        torch.cuda.set_device(request.device)
    report.attempt("flipped bits", lambda: _flips(request, report))
    report.attempt("cost", lambda: _cost(request, report))


def _flips(request: Request, report: Report) -> None:
    torch.manual_seed(1)
    found = wrong = 0
    for number in range(_FLIPS):
        dtype = (torch.float32, torch.bfloat16)[number % 2]
        tensor = torch.randn(1_000_003).to(dtype).to(request.device)
        before = weigh(tensor).item()
        wrong += before != weigh(tensor.cpu()).item()
        words = tensor.view(torch.int16 if dtype is torch.bfloat16 else torch.int32)
        place, bit = torch.randint(0, len(words), (1,)).item(), number % (words.element_size() * 8)
        words[place] ^= (1 << bit) if bit < words.element_size() * 8 - 1 else -(1 << bit)
        found += weigh(tensor).item() != before
    report.figure("flipped bits that a digest shows", found / _FLIPS, "share", ">= 1.0", f"of {_FLIPS}")
    report.figure("digests as on the CPU", wrong == 0, goal="is true")


def _cost(request: Request, report: Report) -> None:
    size = request.sizes_gb[0] if request.is_rehearsal else _GB
    model = model_of(3 * size, request.device)  # without moments
    target = Target(parameters=list(model.named_parameters()))
    every = Policy().digest_every
    work = Work(request.device, _STEP_S if not request.is_rehearsal else 0.02)
    digests, teller = _digests()
    host, whole, steps = [], [], []
    for number in range(12):
        synchronize(request.device)
        began = time.perf_counter()
        work()
        synchronize(request.device)
        steps.append(time.perf_counter() - began)
        began = time.perf_counter()
        digests.after_step(number, target)
        host.append(time.perf_counter() - began)
        synchronize(request.device)
        whole.append(time.perf_counter() - began)
        digests.poll()
    step_s, took_s = statistics.median(steps), statistics.median(whole)
    num_bytes = sum(p.nbytes for p in model.parameters())
    report.figure("a digest is told", len(teller.frames) >= 12, goal="is true")
    report.figure("a digest of all parameters", took_s * 1e3, "ms", note=f"{num_bytes / 1e9:.2f} GB")
    report.figure("the program's thread is held", statistics.median(host) * 1e3, "ms")
    goal = "" if request.is_rehearsal else "<= 0.003"
    note = f"one of {every} steps is digested, a step of {step_s * 1e3:.0f} ms"
    report.figure("digests, of a step", took_s / every / step_s, "share", goal, note)
    _many_small(request, report)


def _many_small(request: Request, report: Report) -> None:
    """As many parameters as a large model has: what is launched for each counts then."""
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(200)).to(request.device)
    target = Target(parameters=list(layers.named_parameters()))
    digests, _ = _digests()
    took = []
    for number in range(5):
        synchronize(request.device)
        began = time.perf_counter()
        digests.after_step(number, target)
        took.append(time.perf_counter() - began)
        synchronize(request.device)
        digests.poll()
    report.figure("400 small parameters hold the program's thread", statistics.median(took) * 1e3, "ms")


def _digests() -> tuple[Digests, _Teller]:
    teller = _Teller()
    return Digests(teller, 1), teller


if __name__ == "__main__":
    run(main)
