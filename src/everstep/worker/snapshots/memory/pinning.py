"""Page-locks the memory of snapshots, so that a device reads and writes it by itself, at the speed of the link.

CUDA copies other memory in pieces through a buffer of its own, and keeps the calling thread until all is done. To lock
a gigabyte takes a twentieth of a second or more, so a thread of ours does it; copies made meanwhile take the usual way.
Where it cannot be done, all of them do. Only memory of a process that uses CUDA already is locked: this never begins to
use a device. Called by `worker.snapshots.snapshots` and `worker.snapshots.restoring`.

Each buffer is locked in one call. CUDA refuses a copy that begins in one locked range and ends in another ("invalid
argument", seen on an H200), and the places where a program's tensors begin and end are unknown; a program's own
`load_state_dict` copies them as well. Other requests to the driver for memory wait for that call, once in the life of a
process: some 50 ms for each gigabyte.
"""

import atexit
import ctypes
import os
import threading
import time
from typing import Any

import torch

from everstep.checkpoint.arena import Arena
from everstep.worker.process.capturing import relax
from everstep.worker.process.naming import name_thread

END_LIMIT_S = 5.0

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of this process


class Pinned:
    """One arena's memory, being locked by a thread: first the buffer `first`, then, once all is wanted, the rest."""

    def __init__(self, arena: Arena, device: torch.device, first: int) -> None:
        self.arena = arena
        self.why = ""
        """Why not all of it is locked; empty while it may still be."""
        self.took_s = 0.0
        self._device = device
        self._buffers = _buffers(arena, first)
        self._locked: list[int] = []  # addresses of buffers
        self._changed = threading.Condition()
        self._is_all_wanted = False
        self._is_over = False
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="everstep-pin", daemon=True)
        atexit.register(self._end)
        self._thread.start()

    @property
    def num_bytes(self) -> int:
        """Locked so far."""
        sizes = dict(self._buffers)
        return sum(sizes[address] for address in self._locked)

    @property
    def is_under_way(self) -> bool:
        """More of it will be locked soon: what copies take now says nothing about later ones."""
        return not self._is_over

    def want_all(self) -> None:
        """Lock the other buffers as well: the first one is locked, and its reader is no longer delayed."""
        with self._changed:
            self._is_all_wanted = True
            self._changed.notify_all()

    def wait(self, until: int | None = None) -> bool:
        """Until the buffer that this address is in is locked, or all of it; False: it will not be."""
        if until is not None and not any(begin <= until < begin + size for begin, size in self._buffers):
            return False
        with self._changed:
            while not (self._is_over or (until is not None and self._has(until))):
                self._changed.wait(1.0)
                if not self._thread.is_alive():
                    break
            return self._has(until) if until is not None else not self.why

    def release(self) -> None:
        """Unlock all of it: no copy may be under way. Takes a while, so on a thread of its own."""
        threading.Thread(target=self._release, name="everstep-unpin", daemon=True).start()

    def _has(self, address: int) -> bool:
        return any(begin <= address < begin + size for begin, size in self._buffers[: len(self._locked)])

    def _run(self) -> None:
        name_thread("everstep-pin")
        began = time.monotonic()
        why = ""
        try:
            relax()
            torch.cuda.set_device(self._device)
            for address, size in self._buffers:
                with self._changed:
                    while self._locked and not (self._is_all_wanted or self._is_over):
                        self._changed.wait()
                if self._is_over:
                    return
                if why := _failure(_cudart().cudaHostRegister(address, size, _PORTABLE)):
                    break
                with self._changed:
                    self._locked.append(address)
                    self._changed.notify_all()
        except Exception as error:  # no CUDA, or one without these calls
            why = f"{type(error).__name__}: {error}"
        with self._changed:
            self.took_s = time.monotonic() - began
            self.why = why
            self._is_over = True
            self._changed.notify_all()
        atexit.unregister(self._end)

    def _release(self) -> None:
        self._end()
        try:
            torch.cuda.set_device(self._device)
            while self._locked:
                _cudart().cudaHostUnregister(self._locked.pop())
        except Exception:  # it is unlocked with the process
            return

    def _end(self) -> None:
        """In torch while the interpreter is taken down, the thread would abort the process: it ends before."""
        if os.getpid() == self._pid:
            with self._changed:
                self._is_over = True
                self._changed.notify_all()
            self._thread.join(END_LIMIT_S)


def begin(arena: Arena, device: torch.device) -> Pinned | None:
    """All of it. The same `Pinned` for an arena that is being locked; None where there is nothing to lock for."""
    pinned = begin_with(arena, device, 0)
    if pinned is not None:
        pinned.want_all()
    return pinned


def begin_with(arena: Arena, device: torch.device, buffer: int) -> Pinned | None:
    """This buffer, and no other one until `begin`: what asks the driver for memory waits for each."""
    with _beginning:
        known = _of.get(arena)
        if known is None and device.type == "cuda" and torch.cuda.is_initialized():
            known = _of[arena] = Pinned(arena, device, buffer)
        return known


def keep_only(arena: Arena) -> None:
    """Other arenas are not used any more."""
    for other in [each for each in _of if each is not arena]:
        _of.pop(other).release()


_of: dict[Arena, Pinned] = {}
_beginning = threading.Lock()  # the program's thread, or one that is ahead of it (`pinning_ahead`)


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _buffers(arena: Arena, first: int) -> list[tuple[int, int]]:
    """Address and size, beginning with the one that is needed first."""
    turns = [(first + index) % arena.num_buffers for index in range(arena.num_buffers)]
    return [(address_of(arena.buffer(buffer)), arena.capacity_bytes) for buffer in turns]


def _cudart() -> Any:  # noqa: ANN401 - a module that builds without CUDA do not have
    return torch.cuda.cudart()


def _failure(code: Any) -> str:  # noqa: ANN401 - torch's enum
    return "" if int(code) == 0 else f"cudaHostRegister: {_cudart().cudaGetErrorString(code)}"
