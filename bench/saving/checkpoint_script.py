"""One rank of the training that bench/checkpoint.py measures: steps without saves, with copies, with saves, in turns.

    torchrun ... checkpoint_script.py CONTENDER STATE_MB device|host NUM_BLOCKS STEPS_PER_SLICE FOLDER

Answers in FOLDER/rank-<r>.jsonl: for every step how long it took, how long the training waited in the save and before
the update; for every save when it was whole; at the end how long the restore took. All slices are of the same processes
and seconds apart. Imports everstep only for everstep's own run.

"device": what a GPU job looks like to its host, which mostly waits: 0.25 s of sleep, a small all-reduce, an update of a
few parameters. "host": matrix products on this CPU for the whole step, and AdamW over all parameters.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))  # started by its path: the rooms beside its own
from saving.checkpoint_savers import Job, PlainCopy, Saver, make

STEP_S = 0.25
_POLL_S = 0.004
_NUM_LAYERS = 40
_SETTLE_S = 120.0
_SKIPPED_S = 3.0
_MAX_WARM_UP = 20  # slices
SLICES = ("plain", "copy", "save")


class Steps:
    """The work of a step. It calls `poll` now and then, as nothing else runs beside it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, *, on_host: bool) -> None:
        self.optimizer = optimizer
        self._on_host = on_host
        self._small = torch.zeros(1000)
        self._a = torch.randn(1024, 1024)
        self._products = self._calibrated() if on_host else 0
        self._entered_at = 0.0
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        optimizer.step()  # from here on its state exists
        if not on_host:
            for parameter in list(model.parameters())[:-1]:
                parameter.grad = None
        optimizer.register_step_pre_hook(self._update_begins)

    def work(self, poll: Any) -> None:  # noqa: ANN401
        if self._on_host:
            for _ in range(self._products):
                torch.mm(self._a, self._a)
                poll()
        else:
            until = time.perf_counter() + STEP_S
            while (left := until - time.perf_counter()) > 0:
                time.sleep(min(_POLL_S, left))
                poll()
        dist.all_reduce(self._small)

    def update(self) -> float:
        """Seconds until it really began: hooks of others wait in there."""
        began = time.perf_counter()
        self.optimizer.step()
        return self._entered_at - began

    def _update_begins(self, *_: Any) -> None:  # noqa: ANN401
        self._entered_at = time.perf_counter()  # the optimizer's own hooks come after the global ones

    def _calibrated(self) -> int:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(5):
            torch.mm(self._a, self._a)
        number = torch.tensor([math.ceil(STEP_S / ((time.perf_counter() - began) / 5))])
        dist.all_reduce(number, op=dist.ReduceOp.MIN)
        return max(1, int(number.item()))


class Meter:
    """Runs the slices and writes what they took."""

    def __init__(self, steps: Steps, out: Path) -> None:
        self._steps = steps
        self._out = out.open("a", buffering=1)
        self._pending: tuple[float, dict[str, Any]] | None = None
        self._number = 0

    def write(self, **values: object) -> None:
        self._out.write(json.dumps(values) + "\n")

    def slice(self, block: int, name: str, saver: Saver | None, num_steps: int) -> None:
        for index in range(num_steps):
            began = time.perf_counter()
            self._steps.work(lambda: self._poll(saver))
            waited_at = time.perf_counter()
            if saver is not None:
                saver.before_update()
            wait_s = time.perf_counter() - waited_at + self._steps.update()
            save_s = None
            if saver is not None and (index == 0 or saver.saves_each_step):
                save_s = self._save(saver, block, name)
            step_s = time.perf_counter() - began
            self.write(kind="step", block=block, slice=name, index=index, step_s=step_s, wait_s=wait_s, save_s=save_s)
        self._settle(saver)

    def _save(self, saver: Saver, block: int, name: str) -> float:
        self._poll(saver)
        dist.all_reduce(torch.zeros(1))  # all ranks save at the same time: nobody's save is charged for a slow peer
        began = time.perf_counter()
        saver.save(self._number)
        took_s = time.perf_counter() - began
        self._pending = began, {"block": block, "slice": name, "save": self._number, "blocked_s": took_s}
        self._number += 1
        self._poll(saver)
        return took_s

    def _poll(self, saver: Saver | None) -> None:
        if saver is None or self._pending is None:
            return
        done_at = saver.done_at()
        if done_at is not None:
            began, values = self._pending
            self._pending = None
            self.write(kind="save", done_s=done_at - began, **values)

    def _settle(self, saver: Saver | None) -> None:
        """Until what is under way is through: it must not burden the next slice."""
        if saver is not None:
            saver.before_update()
            saver.settle()
            deadline = time.perf_counter() + (_SKIPPED_S if saver.saves_each_step else _SETTLE_S)
            while self._pending is not None:
                if time.perf_counter() > deadline:
                    if saver.saves_each_step:  # it may leave out a step
                        self._pending = None
                        break
                    raise TimeoutError(f"a save was not through after {_SETTLE_S:g} s")
                self._poll(saver)
                time.sleep(_POLL_S)
        dist.barrier()


def main() -> None:
    contender, state_mb, kind, num_blocks, per_slice, folder = sys.argv[1:7]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    width = math.isqrt(int(float(state_mb) * 1e6 / 12 / _NUM_LAYERS))
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_NUM_LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    job = Job(model=model, optimizer=optimizer, rank=rank, folder=Path(folder) / "saved")
    out = Path(folder) / f"rank-{rank}.jsonl"
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")):
        return _restored_by_restart(contender, job, out)
    meter = Meter(Steps(model, optimizer, on_host=kind == "host"), out)
    meter.write(kind="state", state_bytes=sum(one.nbytes for one in job.tensors()), tensors=len(job.tensors()))
    copier, saver = PlainCopy(job), make(contender, job)
    savers: dict[str, Saver | None] = {"plain": None, "copy": copier, "save": saver}
    _warm_up(meter, savers)
    for block, name in _turns(int(num_blocks)):
        meter.slice(block, name, savers[name], int(per_slice))
    _restore(meter, saver, rank)
    return None


def _warm_up(meter: Meter, savers: Mapping[str, Saver | None]) -> None:
    """Every buffer is filled once; memory for many of them may be some seconds in coming."""
    for name, saver in savers.items():
        for _ in range(_MAX_WARM_UP):
            meter.slice(-1, name, saver, 10 if name == "save" else 2)
            is_whole = torch.tensor([int(saver is None or saver.done_at() is not None)])
            dist.all_reduce(is_whole, op=dist.ReduceOp.MIN)
            if is_whole.item():
                break
        if saver is not None and saver.saves_each_step:
            meter.slice(-1, name, saver, 10)


def _turns(num_blocks: int) -> Iterator[tuple[int, str]]:
    """Every order comes as often as the others."""
    for block in range(num_blocks):
        shift = block % len(SLICES)
        for name in (*SLICES[shift:], *SLICES[:shift])[:: 1 if block % 2 else -1]:
            yield block, name


def _restore(meter: Meter, saver: Saver, rank: int) -> None:
    if saver.saves_each_step:  # everstep restores when ranks start
        dist.barrier()
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    dist.barrier()
    began = time.perf_counter()
    saver.restore()
    meter.write(kind="restore", took_s=time.perf_counter() - began)
    dist.barrier()
    saver.close()
    dist.destroy_process_group()


def _restored_by_restart(contender: str, job: Job, out: Path) -> None:
    for parameter in job.model.parameters():
        parameter.grad = torch.full_like(parameter, 1e-3)
    dist.barrier()
    began = time.perf_counter()
    saver: Any = make(contender, job)
    took_s = time.perf_counter() - began
    with out.open("a") as stream:
        stream.write(json.dumps({"kind": "restore", "took_s": took_s, "resumed": saver.is_resumed}) + "\n")
    dist.barrier()


if __name__ == "__main__":
    main()
