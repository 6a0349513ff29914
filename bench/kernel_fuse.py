"""A FUSE file system with one file, without libfuse: `kernel_fuse.py MOUNT SLOW`. A request that the file SLOW names
(`read` or `open`) is answered 0.4 s late. For `kernel_causes.py`; needs root."""

import ctypes
import errno
import os
import struct
import sys
import time
from pathlib import Path

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT, OPENDIR, INTERRUPT = 1, 2, 3, 14, 15, 18, 25, 26, 27, 36
LATE_S = 0.4
SIZE = 1 << 20


def attributes(node: int, mode: int, size: int) -> bytes:
    return struct.pack("<QQQQQQIIIIIIIIII", node, size, 1, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def answer(operation: int, node: int, request: bytes) -> bytes | int:
    """The body, or an error number."""
    if operation == INIT:
        return struct.pack("<IIIIHHIIHHI7I", 7, 31, 65536, 0, 12, 10, 65536, 1, 0, 0, 0, *[0] * 7)
    if operation == LOOKUP:
        return struct.pack("<QQQQII", 2, 0, 60, 60, 0, 0) + attributes(2, 0o100644, SIZE)
    if operation == GETATTR:
        return struct.pack("<QII", 60, 0, 0) + (
            attributes(1, 0o040755, 0) if node == 1 else attributes(2, 0o100644, SIZE)
        )
    if operation in (OPEN, OPENDIR):
        return struct.pack("<QII", 1, 1, 0)  # FOPEN_DIRECT_IO: each read is a request
    if operation == READ:
        return b"x" * struct.unpack_from("<I", request, 56)[0]
    return b"" if operation in (RELEASE, FLUSH) else errno.ENOSYS


def serve(device: int, slow: Path) -> None:
    names = {READ: "read", OPEN: "open"}
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError:  # unmounted
            return
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation in (FORGET, INTERRUPT):
            continue
        if operation in names and slow.exists() and slow.read_text() == names[operation]:
            time.sleep(LATE_S)
        body = answer(operation, node, request)
        data, error = (b"", -body) if isinstance(body, int) else (body, 0)
        os.write(device, struct.pack("<IiQ", 16 + len(data), error, unique) + data)


def main() -> None:
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"everstep", sys.argv[1].encode(), b"fuse.everstep", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    serve(device, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
