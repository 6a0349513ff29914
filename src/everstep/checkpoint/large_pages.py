"""Memory of a memfd in pages of 2 MiB, where the kernel has them at hand.

A process that maps memory anew pays for each page that it touches first. A rank that was killed does that with its
whole state, before it can check or copy a byte of it; with 2 MiB pages that is 20 to 40 times cheaper, and a device
page-locks them in no time. The kernel gives them to shared memory only if it is asked to collapse small ones (Linux
6.1, MADV_COLLAPSE), and may have to move half the machine's memory about for it: then it is left at what there is by
then. Called by `checkpoint.arena`.
"""

import ctypes
import mmap
import os
import time

PAGE_BYTES = 2 << 20

_PIECE_BYTES = 32 << 20
_LEAST_BYTES = 16 << 20
"""Below that the difference is not noticeable."""

_PATIENCE_S_PER_BYTE = 1.0 / (1 << 30)
"""About what ordinary pages take. Where large ones are at hand it is a fifth to a third of a second for 1 GiB."""

_GRACE_S = 0.2
_MADV_COLLAPSE = 25
_PROT_READ_WRITE, _MAP_SHARED, _MAP_FIXED, _MAP_NORESERVE = 0x3, 0x01, 0x10, 0x4000
_MAP_FAILED = ctypes.c_void_p(-1).value


def allocate(fd: int, end: int) -> None:
    """Memory for the first `end` bytes of a file that is as long at least; large pages as far as they come quickly.
    Raises OSError where there is not enough memory."""
    if end >= _LEAST_BYTES:
        _collapse(fd, end)
    os.posix_fallocate(fd, 0, end)  # what is there already costs nothing


def map_whole(fd: int, size: int) -> tuple[mmap.mmap, int]:
    """All of the file, to read and to write, at an address that suits large pages: what keeps it mapped, and where in
    it the file begins. Raises OSError."""
    mapped = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
    if size < _LEAST_BYTES or _address(mapped) % PAGE_BYTES == 0:  # late kernels see to it themselves
        return mapped, 0
    mapped.close()
    room = mmap.mmap(-1, size + PAGE_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    begin = -_address(room) % PAGE_BYTES
    _map_into(_address(room) + begin, fd, size)
    return room, begin


def _collapse(fd: int, end: int) -> None:
    """Collapse all 2 MiB that lie before `end`, until it takes too long, or the kernel does not do it."""
    memory, begin = map_whole(fd, end)
    try:
        address = _address(memory) + begin
        madvise = ctypes.CDLL(None).madvise
        whole = end // PAGE_BYTES * PAGE_BYTES
        began = time.monotonic()
        for at in range(0, whole, _PIECE_BYTES):
            size = min(_PIECE_BYTES, whole - at)
            for page in range(at, at + size, PAGE_BYTES):
                os.posix_fallocate(fd, page, 1)  # of a hole it makes nothing
            code = madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(size), _MADV_COLLAPSE)
            if code or time.monotonic() - began > _GRACE_S + (at + size) * _PATIENCE_S_PER_BYTE:
                return
    finally:
        memory.close()


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _map_into(address: int, fd: int, size: int) -> None:
    """In the place of what is mapped there."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    if call(address, size, _PROT_READ_WRITE, _MAP_SHARED | _MAP_FIXED, fd, 0) == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
