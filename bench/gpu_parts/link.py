"""Speed of the link between host and device, by the kind of host memory: what all else is measured against.

Kinds: memory as it comes, memory that torch page-locked, and an arena's memory that the product page-locked. Also how
fast one thread and several lock it in pieces, and whether a copy may cross from one locked piece into another.
"""

import concurrent.futures
import time
from collections.abc import Callable

import torch

from everstep.checkpoint import arena as arenas
from everstep.worker.snapshots.memory import pinning
from gpu_running.part import Report, Request, run

_BYTES = 1 << 30
_PIECE_BYTES = 64 << 20
_REPEATS = 6


def main(request: Request, report: Report) -> None:
    torch.cuda.set_device(request.device)
    there = torch.randint(0, 255, (_BYTES,), dtype=torch.uint8, device=request.device)
    plain = torch.zeros(_BYTES, dtype=torch.uint8)
    locked = torch.zeros(_BYTES, dtype=torch.uint8, pin_memory=True)
    report.figure("device to device", 2 * _rate(lambda: there.clone()), "GB/s", note="read and written")
    for name, here in (("memory as it comes", plain), ("memory that torch page-locked", locked)):
        report.figure(f"to {name}", _rate(lambda here=here: here.copy_(there, non_blocking=True)), "GB/s")  # type: ignore[misc]
        report.figure(f"from {name}", _rate(lambda here=here: there.copy_(here, non_blocking=True)), "GB/s")  # type: ignore[misc]
    del plain, locked
    report.attempt("an arena", lambda: _arena(request, report, there))
    report.attempt("page-locking by threads", lambda: _threads(report, there))
    report.attempt("many tensors", lambda: _calls(request, report))


def _rate(act: Callable[[], object], num_bytes: int = _BYTES) -> float:
    act()
    took = []
    for _ in range(_REPEATS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        act()
        torch.cuda.synchronize()
        took.append(time.perf_counter() - began)
    return num_bytes / min(took) / 1e9


def _arena(request: Request, report: Report, there: torch.Tensor) -> None:
    arena = _new_arena()
    here = torch.frombuffer(arena.buffer(0), dtype=torch.uint8)[:_BYTES]
    report.figure("to an arena as it comes", _rate(lambda: here.copy_(there, non_blocking=True)), "GB/s")
    pinned = pinning.begin(arena, torch.device(request.device))
    is_whole = pinned is not None and pinned.wait()
    report.figure("an arena is page-locked", is_whole, goal="is true", note=pinned.why if pinned else "not begun")
    if pinned is None or not is_whole:
        return
    report.figure("page-locking an arena", pinned.num_bytes / pinned.took_s / 1e9, "GB/s")
    report.figure("to an arena that is page-locked", _rate(lambda: here.copy_(there, non_blocking=True)), "GB/s")
    report.figure("from an arena that is page-locked", _rate(lambda: there.copy_(here, non_blocking=True)), "GB/s")
    report.figure("the bytes are the same", bool(torch.equal(here, there.cpu())), goal="is true")
    began = time.perf_counter()
    there.copy_(here, non_blocking=True)
    returned_s = time.perf_counter() - began
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began
    report.figure("such a copy returns before it is done", returned_s < 0.2 * took_s, goal="is true")


def _new_arena() -> arenas.Arena:
    fd = arenas.create(arenas.arena_bytes(_BYTES, 2), rank=0, world_size=1, num_buffers=2)
    arena = arenas.Arena(fd)
    arena.populate()
    return arena


def _threads(report: Report, there: torch.Tensor) -> None:
    """Whether more threads lock faster, and what the pieces are good for."""
    cudart = torch.cuda.cudart()
    for number in (1, 2, 4):
        arena = _new_arena()
        start = pinning.address_of(arena.buffer(0))
        pieces = range(start, start + _BYTES, _PIECE_BYTES)
        began = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(number) as pool:
            codes = list(pool.map(lambda at: int(cudart.cudaHostRegister(at, _PIECE_BYTES, 1)), pieces))
        rate = _BYTES / (time.perf_counter() - began) / 1e9
        report.figure(f"page-locking in pieces with {number} threads", rate if not any(codes) else None, "GB/s")
        if number == 1:
            report.figure(
                "a copy from one locked piece into the next", _crossing(arena, there), note="why buffers are whole"
            )
        began = time.perf_counter()
        for at in pieces:
            cudart.cudaHostUnregister(at)
        report.figure(f"unlocking after {number}", _BYTES / (time.perf_counter() - began) / 1e9, "GB/s")


def _crossing(arena: arenas.Arena, there: torch.Tensor) -> str:
    """What CUDA says of it."""
    here = torch.frombuffer(arena.buffer(0), dtype=torch.uint8)[: 2 * _PIECE_BYTES]
    try:
        here.copy_(there[: here.numel()], non_blocking=True)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return "is done"


def _calls(request: Request, report: Report) -> None:
    """One call for many tensors beside a loop over them: what the product's copying thread would do."""
    there = [torch.ones(1 << 14, device=request.device) for _ in range(1000)]
    here = list(torch.zeros(1000 << 14, pin_memory=True).split(1 << 14))

    def loop() -> None:
        for place, tensor in zip(here, there, strict=True):
            place.copy_(tensor, non_blocking=True)

    size = 1000 * (4 << 14)
    report.figure("1,000 tensors of 64 KiB, a loop", _rate(loop, size), "GB/s")
    together = _rate(lambda: torch._foreach_copy_(here, there, non_blocking=True), size)
    report.figure("1,000 tensors of 64 KiB, one call", together, "GB/s")
    report.figure("one call copies right", all(bool((each == 1).all()) for each in here), goal="is true")


if __name__ == "__main__":
    run(main)
