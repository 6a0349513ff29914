"""The ways to save a training's state that bench/checkpoint.py compares, each behind the same four calls.

Answers: how is this library called, as its own documentation says, with the waits that it needs to be right. Runs in a
rank of checkpoint_script.py. Must not measure anything itself, and must not help or hinder any of them: where a
library needs something (a process group of its own, a class for CPU tensors), the comment says why.
"""

import multiprocessing
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is saved, and where to."""

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    rank: int
    folder: Path

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def tensors(self) -> list[torch.Tensor]:
        moments = [value for slot in self.optimizer.state.values() for value in slot.values()]
        return [*self.model.parameters(), *(value for value in moments if isinstance(value, torch.Tensor))]


class Saver(Protocol):
    """One way to save. `saves_each_step`: it is made for that; the others save once per slice."""

    saves_each_step: bool

    def save(self, step: int) -> None:
        """Returns when the training may go on; the steps ascend."""

    def before_update(self) -> None:
        """Returns when the parameters may change."""

    def done_at(self) -> float | None:
        """When (time.perf_counter) the last save was whole where it goes to; None: not yet."""

    def settle(self) -> None:
        """Called by all ranks at the same moment when nothing else is left to do: waits, if it has to be waited for."""

    def restore(self) -> None:
        """Reads the last save into the live objects. Called once, at the end, on all ranks."""

    def close(self) -> None:
        """Ends what it has started."""


class _Plain:
    """What most need not do."""

    saves_each_step = False

    def before_update(self) -> None:
        """Nothing is read any more when `save` has returned."""

    def settle(self) -> None:
        """It goes on by itself."""

    def close(self) -> None:
        """It has started nothing that does not end by itself."""


class _Blocking(_Plain):
    """Whatever is whole when the call returns."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._done_at: float | None = None

    def save(self, step: int) -> None:
        self._save(step)
        self._done_at = time.perf_counter()

    def done_at(self) -> float | None:
        return self._done_at

    def _save(self, step: int) -> None:
        raise NotImplementedError


class PlainCopy(_Blocking):
    """copy_ of every tensor into memory that is there already and warm: the yardstick."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._copies = [torch.zeros_like(tensor) for tensor in job.tensors()]

    def _save(self, _step: int) -> None:
        self._copy(self.job.tensors(), self._copies)

    def restore(self) -> None:
        self._copy(self._copies, self.job.tensors())

    @staticmethod
    @torch.no_grad()
    def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
        for source, target in zip(sources, targets, strict=True):
            target.copy_(source)


class _Dcp(_Plain):
    """What the ways of torch.distributed.checkpoint share: one folder per step, the newest two stay."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._folders: list[Path] = []

    def _folder(self, step: int) -> Path:
        self._folders.append(self.job.folder / f"step-{step}")
        for old in self._folders[:-2] if self.job.rank == 0 else ():
            shutil.rmtree(old, ignore_errors=True)
        self._folders = self._folders[-2:]
        return self._folders[-1]

    def restore(self) -> None:
        import torch.distributed.checkpoint as dcp

        state = self.job.state()
        dcp.load(state, checkpoint_id=str(self._folders[-1]))
        self.job.load(state)


class DcpSave(_Dcp, _Blocking):
    """dcp.save."""

    def __init__(self, job: Job) -> None:
        _Blocking.__init__(self, job)
        _Dcp.__init__(self, job)

    def _save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        dcp.save(self.job.state(), checkpoint_id=str(self._folder(step)))


class DcpAsync(_Dcp):
    """dcp.async_save: `how` is "thread" (its default), "process", or "stager" (staged by a thread as well)."""

    def __init__(self, job: Job, how: str) -> None:
        super().__init__(job)
        # On the default group of gloo its background thread and the training would mix up their collectives.
        self._group = dist.new_group(backend="gloo")
        self._options = self._options_for(how)
        self._staging: Any = None
        self._upload: Any = None
        self._done_at: float | None = None

    @staticmethod
    def _options_for(how: str) -> dict[str, Any]:
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

        if how == "process":
            return {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}
        if how == "stager":  # pinned memory and copies that do not block need CUDA
            staging = StagingOptions(
                use_pinned_memory=False, use_shared_memory=False, use_async_staging=True, use_non_blocking_copy=False
            )
            return {"async_stager": DefaultStager(staging)}
        return {}

    def save(self, step: int) -> None:
        import torch.distributed.checkpoint as dcp

        if self._upload is not None:
            self._upload.result()  # one at a time, as it demands
        self._done_at = None
        where = str(self._folder(step))
        answer = dcp.async_save(self.job.state(), checkpoint_id=where, process_group=self._group, **self._options)
        self._staging = getattr(answer, "staging_completion", None)
        self._upload = getattr(answer, "upload_completion", answer)
        self._upload.add_done_callback(self._is_up)

    def _is_up(self, _future: object) -> None:
        self._done_at = time.perf_counter()

    def before_update(self) -> None:
        if self._staging is not None:
            self._staging.result()
            self._staging = None

    def done_at(self) -> float | None:
        if self._done_at is not None:
            self._upload.result()  # what went wrong is said here
        return self._done_at


class DlroverFlash(_Plain):
    """DLRover's flash checkpoint of a DDP job: local rank 0 copies to shared memory, a saver may write it to disk."""

    def __init__(self, job: Job, *, to_disk: bool) -> None:
        from dlrover.trainer.torch.flash_checkpoint import engine
        from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
        from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

        # Its own saver is forked from a process with gloo's threads, and hung in one of three launches; dlrover-run,
        # which would bring one, does not start with this torch. So the same function runs in a spawned process.
        if job.rank == 0:
            saver = multiprocessing.get_context("spawn").Process(target=engine.start_async_save, daemon=True)
            saver.start()
            engine.CheckpointEngine.saver_proc = saver
        self.job = job
        self._kind = StorageType.DISK if to_disk else StorageType.MEMORY
        self._tracker = job.folder / "dlrover_latest.txt" if to_disk else None
        self._checkpointer = DdpCheckpointer(str(job.folder))
        self._step = -1
        self._done_at: float | None = None

    def save(self, step: int) -> None:
        self._step, self._done_at = step + 1, None  # it takes no step 0
        self._checkpointer.save_checkpoint(self._step, self.job.state(), storage_type=self._kind)
        if self._tracker is None:
            self._done_at = time.perf_counter()

    def done_at(self) -> float | None:
        tracker = self._tracker
        if self._done_at is None and tracker is not None and tracker.exists():
            self._done_at = time.perf_counter() if tracker.read_text().strip() == str(self._step) else None
            self._tidy()
        return self._done_at

    def _tidy(self) -> None:
        for folder in self.job.folder.iterdir() if self.job.rank == 0 else ():
            if folder.name.isdecimal() and int(folder.name) < self._step:
                shutil.rmtree(folder, ignore_errors=True)

    def restore(self) -> None:
        self.job.load(self._checkpointer.load_checkpoint())


class NvidiaLocal(_Plain):
    """NVIDIA's local checkpoint, written by a process of its own, without replication.

    It is made for CUDA: its state dict class asserts CUDA tensors, and its queue synchronises the device. Here it gets
    a class that copies tensors of the CPU, as its own copies those of the device, and the calls to CUDA do nothing.
    """

    def __init__(self, job: Job) -> None:
        from nvidia_resiliency_ext.checkpointing.async_ckpt.core import AsyncCallsQueue
        from nvidia_resiliency_ext.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager

        from saving.checkpoint_nvidia import CpuState

        torch.cuda.synchronize = lambda *_: None
        torch.cuda.current_device = lambda: "cpu"  # where its collectives have their tensors
        self.job = job
        self._manager = LocalCheckpointManager(str(job.folder))
        self._queue = AsyncCallsQueue()
        self._wrap = CpuState
        self._pending = False
        self._done_at: float | None = None

    def save(self, step: int) -> None:
        self._queue.maybe_finalize_async_calls(blocking=True)
        self._done_at, self._pending = None, True
        request = self._manager.save(self._wrap(self.job.state()), step, is_async=True)
        self._queue.schedule_async_request(request)

    def before_update(self) -> None:
        """It has copied when `save` returns; it wants to be asked once per step whether it is through."""
        if self._pending:
            self._look()

    def _look(self) -> None:
        if self._queue.maybe_finalize_async_calls(blocking=False):
            self._pending, self._done_at = False, time.perf_counter()

    def done_at(self) -> float | None:
        return self._done_at

    def settle(self) -> None:
        """Its answer is a collective."""
        if self._pending:
            self._queue.maybe_finalize_async_calls(blocking=True)
            self._pending, self._done_at = False, time.perf_counter()

    def restore(self) -> None:
        if self._manager.find_latest() < 0:
            raise RuntimeError("NVIDIA's local checkpoint manager finds no checkpoint of its own")
        wrapped, _ = self._manager.load()
        self.job.load(wrapped.state_dict)

    def close(self) -> None:
        self._queue.close()


class Everstep(_Plain):
    """everstep.State: a snapshot after every step. Asking its loop for the next step is the whole call; it
    waits before the update by itself, in a hook of the optimizer, which the script times."""

    saves_each_step = True

    def __init__(self, job: Job) -> None:
        import everstep
        from everstep.worker.link.runtime import current

        runtime = current()
        if runtime is None:
            raise RuntimeError("not under everstep run")
        self._published: dict[int, float] = {}
        self._tell = runtime.board.set_published_step
        runtime.board.set_published_step = self._on_published  # type: ignore[method-assign]
        self._state = everstep.State(model=job.model, optimizer=job.optimizer)
        self.is_resumed = self._state.resumed
        self._steps = iter(self._state.steps(1_000_000_000))
        self._step = next(self._steps)

    def _on_published(self, step: int) -> None:
        self._tell(step)
        self._published[step] = time.perf_counter()

    def save(self, _step: int) -> None:
        self._step = next(self._steps)

    def done_at(self) -> float | None:
        """None for ever if it leaves out this step, as it may; the next one counts then."""
        return self._published.get(self._step - 1)

    def restore(self) -> None:
        raise RuntimeError("restores when a rank starts: the script is killed for that")


MAKERS: dict[str, Callable[[Job], Any]] = {
    "dcp.save": DcpSave,
    "dcp.async": lambda job: DcpAsync(job, "thread"),
    "dcp.process": lambda job: DcpAsync(job, "process"),
    "dcp.stager": lambda job: DcpAsync(job, "stager"),
    "dlrover-memory": lambda job: DlroverFlash(job, to_disk=False),
    "dlrover-disk": lambda job: DlroverFlash(job, to_disk=True),
    "nvidia-local": NvidiaLocal,
    "everstep": Everstep,
    "everstep-disk": Everstep,
}


def make(name: str, job: Job) -> Saver:
    job.folder.mkdir(parents=True, exist_ok=True)
    saver: Saver = MAKERS[name](job)
    return saver
