"""Steps with a snapshot of each, without one, and with a stager of torch.distributed.checkpoint, in turns.

    everstep run ... snapshots_program.py DEVICE STATE_GB OUT [HOST_GB]

Writes figures to OUT. `HOST_GB`: memory that the machine has; stagers that do not fit beside the snapshots are skipped.
"""

import inspect
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import everstep
from everstep.worker.snapshots.memory import device_copies, pinning
from gpu_programs.gpu_model import Clock, Work, bytes_of, median, model_of, optimizer_of, synchronize
from gpu_running.part import Report, SkipError

STEPS, _FEW_STEPS = 6, 4
_WARM, _SHORT_WARM = 10, 4
_REHEARSED_STEPS = 2
_LARGE_GB = 8.0
"""From here on a step takes two seconds: fewer of them are looked at."""
_SETTLE_S = 60.0


class Copies:
    """When each copy of the product ran on the device, seen from beside: nothing of the copy waits for this."""

    def __init__(self) -> None:
        self.rates: list[float] = []
        self._queue = device_copies.DeviceCopies.queue
        device_copies.DeviceCopies.queue = self._watched()  # type: ignore[method-assign]

    def _watched(self) -> Any:  # noqa: ANN401
        original, rates = self._queue, self.rates

        def queue(copies: Any, marked: Any, places: Any, tensors: Any) -> Any:  # noqa: ANN401
            num_bytes = sum(tensor.nbytes for tensor in tensors)
            copied = original(copies, marked, places, tensors)

            def watch() -> None:
                marked[1].synchronize()
                began = time.perf_counter()
                copied[1].synchronize()
                rates.append(num_bytes / max(time.perf_counter() - began, 1e-9))

            threading.Thread(target=watch, daemon=True).start()
            return copied

        return queue


class Trial:
    """One size of state."""

    def __init__(self, device: str, state_gb: float, report: Report) -> None:
        self.device, self.report, self.name = device, report, f"{state_gb:g} GB"
        self.num_steps, self.num_warm = (STEPS, _WARM) if state_gb < _LARGE_GB else (_FEW_STEPS, _SHORT_WARM)
        if device == "cpu":  # a rehearsal: its figures mean nothing
            self.num_steps, self.num_warm = _REHEARSED_STEPS, _REHEARSED_STEPS
        self.copies = Copies()
        self.model = model_of(state_gb, device)
        self.optimizer = optimizer_of(self.model)
        self.optimizer.step()
        self.state = everstep.State(model=self.model, optimizer=self.optimizer)
        self.size = bytes_of(self.model, self.optimizer)
        self.step_s = 0.05 if device == "cpu" else max(0.15, 0.1 * state_gb)
        self.work = Work(device, self.step_s)
        self.clock = Clock(device)
        self.host_s: list[float] = []

    def slice(self, after: Callable[[], None], before: Callable[[], None] = lambda: None) -> list[float]:
        """Lengths of steps. `after` each step, `before` each change of the state."""
        time.sleep(0.3 * self.step_s)
        for _ in range(self.num_steps + 1):
            self.clock.mark()
            self.work()
            began = time.perf_counter()
            before()
            self.optimizer.step()
            after()
            self.host_s.append(time.perf_counter() - began)
        self.clock.mark()
        return self.clock.lengths_s()[1:]  # the first one meets what was before

    def warm_up(self) -> None:
        """Until memory is there and locked."""
        self.state.begin()
        until = time.monotonic() + _SETTLE_S
        for _ in range(self.num_warm):
            self.work()
            self.optimizer.step()
            self.state.complete_step()
        while self.device != "cpu" and not pinning._of and time.monotonic() < until:
            self.work()
            self.optimizer.step()
            self.state.complete_step()
            synchronize(self.device)
        for pinned in list(pinning._of.values()):
            is_whole = pinned.wait()
            self.report.figure(f"{self.name}: memory is page-locked", is_whole, goal="is true", note=pinned.why)
            rate = pinned.num_bytes / pinned.took_s / 1e9 if pinned.took_s else None
            self.report.figure(f"{self.name}: page-locking, on a thread", rate, "GB/s")

    def beside(self, name: str, after: Callable[[], None], before: Callable[[], None] = lambda: None) -> float | None:
        """What it adds to a step, by turns with steps that save nothing; its share of a step."""
        plain: list[float] = []
        saved: list[float] = []
        self.host_s.clear()
        for is_saving in (False, True, True, False):
            if is_saving:
                saved += self.slice(after, before)
            else:
                kept = list(self.host_s)
                plain += self.slice(lambda: None)
                self.host_s[:] = kept
            synchronize(self.device)
        base = statistics.median(plain)
        spread = (max(plain) - min(plain)) / base
        share = statistics.median(saved) / base - 1
        note = f"step {base * 1e3:.1f} ms, plain steps spread over {spread:.2%}"
        goal = "<= 0.01" if name == "everstep" and self.device != "cpu" else ""
        self.report.figure(f"{self.name}: {name}, added to a step", share, "share", goal, note)
        held = median(self.host_s)
        self.report.figure(f"{self.name}: {name}, the program's thread is held", held and held * 1e3, "ms")
        return share

    def ours(self) -> None:
        self.copies.rates.clear()
        self.beside("everstep", self.state.complete_step)
        snapshots = self.state._snapshots
        pace = snapshots._cadence.every if snapshots is not None and snapshots._cadence is not None else None
        self.report.figure(f"{self.name}: one snapshot in", pace, "steps", "<= 1" if self.device != "cpu" else "")
        if self.device != "cpu":
            rate = median(self.copies.rates)
            self.report.figure(f"{self.name}: copy to page-locked memory", rate and rate / 1e9, "GB/s")
            self._share_of_link(rate)
            self._without_synchronising()

    def _share_of_link(self, rate: float | None) -> None:
        """Beside one plain copy of the largest tensor to memory that torch has page-locked."""
        source = max(self.model.parameters(), key=lambda each: each.nbytes).detach()
        target = torch.empty_like(source, device="cpu", pin_memory=True)
        took = []
        for _ in range(8):
            synchronize(self.device)
            began = time.perf_counter()
            target.copy_(source, non_blocking=True)
            synchronize(self.device)
            took.append(time.perf_counter() - began)
        link = source.nbytes / min(took[1:])
        share = None if rate is None else rate / link
        note = f"the link gives {link / 1e9:.1f} GB/s"
        self.report.figure(f"{self.name}: copy, of the link", share, "share", ">= 0.8", note)

    def _without_synchronising(self) -> None:
        """`complete_step` returns while the device has most of the step before it."""
        synchronize(self.device)
        self.work()
        self.optimizer.step()
        began = time.perf_counter()
        self.state.complete_step()
        took_s = time.perf_counter() - began
        share = took_s / self.step_s
        self.report.figure(f"{self.name}: complete_step returns after", share, "share", "<= 0.2", "of a step's length")
        synchronize(self.device)

    def stager(self, name: str, make: Callable[[], Any]) -> None:
        staged: list[Any] = []
        stager = make()

        def save() -> None:
            state = {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
            staged.append(stager.stage(state))

        def wait() -> None:
            """As its documentation wants it: before the state changes."""
            while staged:
                one = staged.pop()
                if hasattr(one, "result"):
                    one.result()
                elif hasattr(stager, "synchronize_staging"):
                    stager.synchronize_staging()

        save()
        wait()
        try:
            self.beside(name, save, wait)
        finally:
            if hasattr(stager, "close"):
                stager.close()


def stagers() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Those of this torch, as it makes them by itself and with page-locked memory of their own."""
    from torch.distributed.checkpoint import staging

    if hasattr(staging, "DefaultStager"):
        names = inspect.signature(staging.StagingOptions).parameters
        fast = {
            name: True for name in ("use_pinned_memory", "use_async_staging", "use_non_blocking_copy") if name in names
        }
        fast |= {"use_shared_memory": False} if "use_shared_memory" in names else {}
        if not torch.cuda.is_available():
            fast = dict.fromkeys(fast, False)
        yield "DCP DefaultStager", lambda: staging.DefaultStager(staging.StagingOptions(**fast))
    if hasattr(staging, "BlockingAsyncStager") and torch.cuda.is_available():  # it page-locks memory
        yield "DCP BlockingAsyncStager", lambda: staging.BlockingAsyncStager(cache_staged_state_dict=True)


def main() -> None:
    device, state_gb, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    report = Report(out)
    if device != "cpu":
        torch.cuda.set_device(device)
    trial = Trial(device, state_gb, report)
    trial.warm_up()
    report.attempt(f"{trial.name}: everstep", trial.ours)
    for name, make in stagers():
        report.attempt(f"{trial.name}: {name}", lambda name=name, make=make: _stager(trial, name, make, state_gb))  # type: ignore[misc]
    trial.state.finish()
    sys.stdout.flush()
    os._exit(0)  # stagers keep threads that would hold up the end


def _stager(trial: Trial, name: str, make: Callable[[], Any], state_gb: float) -> None:
    with Path("/proc/meminfo").open() as file:
        free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    if free < 1.3e9 * state_gb + 2e9:
        raise SkipError(f"{free / 1e9:.0f} GB of memory are left beside the snapshots")
    trial.stager(name, make)


if __name__ == "__main__":
    main()
