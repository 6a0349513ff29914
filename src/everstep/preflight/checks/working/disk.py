"""Disk under a directory: bandwidth of writing with fsync and of reading, and how long one small durable write takes.

Writes one bounded file without a name (O_TMPFILE; unlinked at once where the filesystem has no such thing), so nothing
is left, however the check ends. Reading avoids the page cache with O_DIRECT, or by dropping this file's pages.
"""

import errno
import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import msgspec

from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings, Sizes

_SMALL_BYTES = 4096
_WRITE_LIMIT_S = 6.0  # a slow disk is measured with less data, not waited for
_SYNC_BYTES = 16 << 20
_HEADROOM = 4  # free space must be this many times what is written


class _Opened(msgspec.Struct):
    fd: int
    direct: bool


def measure(settings: Settings) -> Iterator[Yielded]:
    if not settings.disk_paths:
        yield unsupported("disk.write_bandwidth", "no directory was given", "bytes/s")
    for path in settings.disk_paths:
        yield Doing(what=f"opening a file in {path}")
        yield from _of_path(path, settings.sizes)


def _of_path(path: str, sizes: Sizes) -> Iterator[Yielded]:
    prefix = f"disk.{path}"
    try:
        free = os.statvfs(path)
        available = free.f_bavail * free.f_frsize
        if available < _HEADROOM * sizes.disk_bytes:
            yield unsupported(
                f"{prefix}.write_bandwidth",
                f"only {available >> 20} MiB free in {path}: nothing was written",
                "bytes/s",
            )
            return
        opened = _open(path)
    except OSError as error:
        yield Result(
            name=f"{prefix}.writable", value=False, verdict=Judgement.BAD, device=path,
            why=f"no file can be made in {path}: {error.strerror or error}", how="open for writing",
        )  # fmt: skip
        return
    try:
        yield Doing(what=f"writing to {path}")
        yield from _write(prefix, path, opened, sizes)
        yield Doing(what=f"reading from {path}")
        yield _read(prefix, path, opened, sizes)
        yield Doing(what=f"fsync in {path}")
        yield from _fsyncs(prefix, path, opened, sizes.fsyncs)
    except OSError as error:
        why = f"input/output on {path} failed: {error.strerror or error}"
        yield Result(
            name=f"{prefix}.io", value=errno.errorcode.get(error.errno or 0, "error"), verdict=Judgement.BAD, why=why,
            device=path, how="write, read, fsync",
        )  # fmt: skip
    finally:
        os.close(opened.fd)


def _open(path: str) -> _Opened:
    """Raises OSError."""
    for flags, direct in ((os.O_TMPFILE | os.O_DIRECT, True), (os.O_TMPFILE, False)):
        try:
            return _Opened(os.open(path, flags | os.O_RDWR | os.O_CLOEXEC, 0o600), direct)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT):
                raise
    fd, name = tempfile.mkstemp(dir=path, prefix=".everstep-check-")
    os.unlink(name)  # noqa: PTH108
    return _Opened(fd, direct=False)


def _write(prefix: str, path: str, opened: _Opened, sizes: Sizes) -> Iterator[Result]:
    """Random bytes: a disk that compresses or knows zeros would look faster than it is."""
    with mmap.mmap(-1, sizes.disk_block_bytes) as block:
        block.write(os.urandom(sizes.disk_block_bytes))
        written, slowest_s = 0, 0.0
        begun = time.perf_counter()
        while written < sizes.disk_bytes and time.perf_counter() - begun < _WRITE_LIMIT_S:
            last = time.perf_counter()
            written += os.pwrite(opened.fd, block, written)
            slowest_s = max(slowest_s, time.perf_counter() - last)
            if not opened.direct and written % _SYNC_BYTES < sizes.disk_block_bytes:
                os.fdatasync(opened.fd)  # or a slow disk would be noticed only at the end, with all of it to wait for
        os.fsync(opened.fd)
        took_s = time.perf_counter() - begun
    way = "O_DIRECT" if opened.direct else "through the page cache"
    how = f"{written >> 20} MiB in {sizes.disk_block_bytes >> 20} MiB blocks, {way}, then fsync"
    yield measured(
        f"{prefix}.write_bandwidth", written / took_s, "bytes/s", how=how, better=Better.HIGHER, tolerance=0.3,
        device=path,
    )  # fmt: skip
    yield measured(
        f"{prefix}.write_slowest_s", slowest_s, "s", how=f"slowest block: {how}", better=Better.LOWER, tolerance=3.0,
        device=path,
    )  # fmt: skip


def _read(prefix: str, path: str, opened: _Opened, sizes: Sizes) -> Result:
    if not opened.direct:
        os.posix_fadvise(opened.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(-1, sizes.disk_block_bytes) as block:
        total = 0
        begun = time.perf_counter()
        while time.perf_counter() - begun < _WRITE_LIMIT_S:
            got = os.preadv(opened.fd, [block], total)
            if not got:
                break
            total += got
        took_s = time.perf_counter() - begun
    way = "O_DIRECT" if opened.direct else "after its pages were dropped from the cache"
    return measured(
        f"{prefix}.read_bandwidth", total / took_s, "bytes/s", how=f"{total >> 20} MiB, {way}", better=Better.HIGHER,
        tolerance=0.3, device=path,
    )  # fmt: skip


def _fsyncs(prefix: str, path: str, opened: _Opened, count: int) -> Iterator[Result]:
    times: list[float] = []
    begun = time.perf_counter()
    with mmap.mmap(-1, _SMALL_BYTES) as block:
        while len(times) < count and time.perf_counter() - begun < _WRITE_LIMIT_S:
            last = time.perf_counter()
            os.pwrite(opened.fd, block, len(times) * _SMALL_BYTES)
            os.fsync(opened.fd)
            times.append(time.perf_counter() - last)
    times.sort()
    how = f"{len(times)} times 4 KiB and fsync"
    for name, value, tolerance in (
        ("fsync_p50_s", statistics.median(times), 1.0), ("fsync_p99_s", times[int(0.99 * (len(times) - 1))], 3.0),
        ("fsync_slowest_s", times[-1], 5.0),
    ):  # fmt: skip
        yield measured(
            f"{prefix}.{name}", value, "s", how=how, better=Better.LOWER, tolerance=tolerance, device=path
        )  # fmt: skip
