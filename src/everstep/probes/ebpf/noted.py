"""Common parts of the programs' maps: sums since the last look, and the watched processes."""

import struct
from collections.abc import Collection, Iterator
from typing import Any

from everstep.probes.ebpf.libbpf import Loaded, Map

MAX_WATCHED = 4000
"""Processes of the run on a node. With more, too many other pids would share the bits."""

_BITS = 1 << 16
_PID = struct.Struct("=I")


class Watched:
    """The processes that a program watches: `programs/watched.h`."""

    def __init__(self, loaded: Loaded) -> None:
        self._map = loaded.map("watched", _PID.size, _BITS // 8)
        self.pids: frozenset[int] = frozenset()

    def set(self, pids: Collection[int]) -> None:
        """Watch these from now on, and no others."""
        wanted = frozenset(sorted(pids)[:MAX_WATCHED])
        if wanted == self.pids:
            return
        bits = bytearray(_BITS // 8)
        for pid in wanted:
            bits[pid % _BITS // 8] |= 1 << pid % 8
        self._map.put(_PID.pack(0), bytes(bits))
        self.pids = wanted


class Noted:
    """A map with values that begin with nanoseconds and a count."""

    def __init__(self, entries: Map, value: struct.Struct) -> None:
        self._entries, self._value = entries, value

    def look(self) -> Iterator[tuple[bytes, float, int, list[Any]]]:
        """Key, seconds and count since the last look, and the rest of the value. Read the iterator to its end."""
        for key, data in self._entries.drain():
            ns, count, *rest = self._value.unpack(data)
            yield key, ns / 1e9, count, rest
