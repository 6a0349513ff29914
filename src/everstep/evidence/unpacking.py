"""Compressed files (gzip, bzip2, xz), unpacked as far as they are read: in bounded memory, whatever they promise."""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO

import msgspec

from everstep.analyzer.reading.pickled import UnreadableError
from everstep.evidence.logs import HEAD_BYTES, TAIL_BYTES, WHOLE_BYTES

MAX_UNPACKED_BYTES = 2 << 30
"""Of one log. A file of a megabyte may promise a terabyte; the reading process has a limit of CPU time besides."""

_CHUNK_BYTES = 1 << 20
_OPENERS: dict[bytes, Callable[[BinaryIO], io.BufferedIOBase]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ": lzma.LZMAFile,
}
_DAMAGES = (EOFError, OSError, lzma.LZMAError, zlib.error)


class Unpacked(msgspec.Struct, kw_only=True):
    """`data`: all of it, or head and tail of whole lines with what is between them left out."""

    data: bytes
    num_left_out: int = 0
    why_ends: str = ""  # it goes on behind that, and could not be read


def is_known(head: bytes) -> bool:
    return any(head.startswith(magic) for magic in _OPENERS)


def first_bytes(file: BinaryIO, num: int) -> bytes:
    """The begin of what is in it, as far as it can be read. Raises UnreadableError where nothing can."""
    with _opened(file) as stream:
        data, why = _next(stream, num)
    if why and not data:
        raise UnreadableError(f"compressed file: {why}")
    return data


def whole(file: BinaryIO, max_bytes: int) -> bytes:
    """All of it. Raises UnreadableError: damaged, or larger."""
    with _opened(file) as stream:
        data, why = _next(stream, max_bytes + 1)
    if why:
        raise UnreadableError(f"compressed file: {why}")
    if len(data) > max_bytes:
        raise UnreadableError(f"more than {max_bytes >> 20} MiB when unpacked; a dump of one rank has less")
    return data


def ends(file: BinaryIO) -> Unpacked:
    """Head and tail of a log. What comes before a damaged place counts: a node that dies leaves its log cut off."""
    tail = b""
    with _opened(file) as stream:
        head, why = _next(stream, HEAD_BYTES)
        total = len(head)
        while not why:
            chunk, why = _next(stream, _CHUNK_BYTES)
            if not chunk:
                break
            tail = (tail + chunk)[-TAIL_BYTES:]
            total += len(chunk)
            if total > MAX_UNPACKED_BYTES:
                why = f"more than {MAX_UNPACKED_BYTES >> 30} GiB when unpacked"
    if total <= WHOLE_BYTES:
        return Unpacked(data=head + tail, why_ends=why)
    # Cut lines at both sides of the hole are dropped.
    data = head.rpartition(b"\n")[0] + b"\n" + tail.partition(b"\n")[2]
    return Unpacked(data=data, num_left_out=total - WHOLE_BYTES, why_ends=why)


def _next(stream: io.BufferedIOBase, num: int) -> tuple[bytes, str]:
    """So many bytes, or those up to the end or a damaged place, and what is wrong there. `read` would lose them."""
    parts, left = list[bytes](), num
    while left:
        try:
            piece = stream.read1(left)
        except _DAMAGES as error:
            return b"".join(parts), _say(error)
        if not piece:
            break
        parts.append(piece)
        left -= len(piece)
    return b"".join(parts), ""


def _opened(file: BinaryIO) -> io.BufferedIOBase:
    file.seek(0)
    magic = file.read(8)
    file.seek(0)
    return next(opener for known, opener in _OPENERS.items() if magic.startswith(known))(file)


def _say(error: BaseException) -> str:
    return "it is cut off" if isinstance(error, EOFError) else f"it is damaged ({error})"
