"""Readers in uninterruptible sleep: what a dead disk or NFS server does to a data loader.

A process that has made another with CLONE_VFORK sleeps in the kernel, in state D, until that one ends; here that one
waits for a signal with all signals blocked. The kernel ends both by SIGKILL, as it does with a reader on a server that
died ("killable"), and both are in the rank's session, so they go with it.

The signal's handler is set in the rank before its program begins; loader processes that are forked inherit it.
"""

import ctypes
import mmap
import os
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

from everstep.linux import proc
from everstep.worker.drills import DrillRefusal, Happened, instances_of, loaded
from everstep.worker.link.runtime import Runtime

LOADER_SIGNAL = signal.SIGRTMIN + 10
_CLONE_VM, _CLONE_VFORK = 0x100, 0x4000
_STACK_BYTES = 64 << 10


def install() -> None:
    signal.signal(LOADER_SIGNAL, _on_signal)


def arm(runtime: Runtime, request: Mapping[str, Any]) -> None:
    """Every loader process of this rank; without any the rank itself, which then is the reader. Raises DrillRefusal."""
    pids = _loader_pids()
    deaf = [pid for pid in pids if not _hears(pid)]
    if deaf:
        raise DrillRefusal(
            f"loader process {deaf[0]} was not forked from the rank (spawn, forkserver), so it cannot be reached"
        )
    happened = Happened(runtime, request)
    if not pids:
        happened("has no loader processes: it sleeps uninterruptibly itself")
        sleep_uninterruptibly()
    for pid in pids:
        os.kill(pid, LOADER_SIGNAL)
    happened(f"loader processes {', '.join(map(str, pids))} sleep uninterruptibly from now on")


def sleep_uninterruptibly() -> None:
    """Until the process that is made here is ended by SIGKILL, or this one is."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.clone.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    stack = mmap.mmap(-1, _STACK_BYTES)
    bottom = ctypes.addressof(ctypes.c_char.from_buffer(stack))
    top = (bottom + _STACK_BYTES - 64) & ~15
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        flags = _CLONE_VM | _CLONE_VFORK | signal.SIGCHLD
        if libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, flags, None) < 0:
            raise DrillRefusal(f"clone failed: {os.strerror(ctypes.get_errno())}")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _on_signal(_signum: int, _frame: FrameType | None) -> None:
    sleep_uninterruptibly()


def _loader_pids() -> list[int]:
    try:
        module = loaded("torch.utils.data.dataloader")
    except DrillRefusal:
        return []
    workers = [w for each in instances_of(module._MultiProcessingDataLoaderIter) for w in getattr(each, "_workers", [])]
    return sorted({worker.pid for worker in workers if worker.is_alive()})


def _hears(pid: int) -> bool:
    """Whether it has a handler for our signal: without one it would be ended by it."""
    return bool(proc.catches(pid, LOADER_SIGNAL))
