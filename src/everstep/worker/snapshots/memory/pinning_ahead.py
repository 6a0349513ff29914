"""Page-locks the snapshot that a rank resumes from, while the program still builds its model.

A restore to a device would otherwise wait for that first: four gigabytes take as long to lock as to copy. A thread
looks every few milliseconds whether the program has begun to use the device, because to lock memory needs its context
and nothing of ours may make one. Used by `worker.snapshots.restoring`.
"""

import atexit
import threading

import torch

from everstep.checkpoint.arena import Arena
from everstep.worker.process.naming import name_thread
from everstep.worker.snapshots.memory import pinning

_LOOK_S = 0.005
_LIMIT_S = 600.0
"""A program that has not used the device by then is not looked at any more: its restore locks what it needs."""


class PinningAhead:
    """Locks one snapshot's buffer, for one device. The thread ends with the lock, with `end`, or after a while."""

    def __init__(self, arena: Arena, device: torch.device, buffer: int) -> None:
        self._arena, self._device, self._buffer = arena, device, buffer
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="everstep-pin-ahead", daemon=True)
        self._thread.start()
        atexit.register(self.end)  # in torch while the interpreter is taken down, it would abort the process

    def end(self) -> None:
        """Stop: the memory is not needed any more."""
        self._is_over.set()
        self._thread.join()
        atexit.unregister(self.end)

    def _run(self) -> None:
        name_thread("everstep-pin-ahead")
        for _ in range(int(_LIMIT_S / _LOOK_S)):
            if self._is_over.is_set():
                return
            if _is_in_use(self._device):
                pinning.begin_with(self._arena, self._device, self._buffer)
                return
            self._is_over.wait(_LOOK_S)


def begin(arena: Arena, device: torch.device, buffer: int) -> PinningAhead | None:
    """None where no thread is to be had: the restore locks what it needs, and is only slower."""
    try:
        return PinningAhead(arena, device, buffer)
    except RuntimeError:
        return None


def _is_in_use(device: torch.device) -> bool:
    """Whether this process has a context on the device. Asking makes none."""
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", None)  # a build without CUDA lacks it
    return bool(has_context is not None and torch.cuda.is_initialized() and has_context(device.index or 0))
