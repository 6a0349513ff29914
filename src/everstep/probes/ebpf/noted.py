"""What the programs' maps have in common: sums since the look before, and the processes that are watched."""

import struct
from collections.abc import Collection, Iterator
from typing import Any

from everstep.probes.ebpf.libbpf import Loaded, Map

MAX_WATCHED = 4000
"""Processes of the run on a node. Of more pids than that too many others would share the bits."""

_BITS = 1 << 16
_PID = struct.Struct("=I")


class Watched:
    """The processes that a program notes: `programs/watched.h`."""

    def __init__(self, loaded: Loaded) -> None:
        self._map = loaded.map("watched", _PID.size, _BITS // 8)
        self.pids: frozenset[int] = frozenset()

    def set(self, pids: Collection[int]) -> None:
        """From now on these and no others."""
        wanted = frozenset(sorted(pids)[:MAX_WATCHED])
        if wanted == self.pids:
            return
        bits = bytearray(_BITS // 8)
        for pid in wanted:
            bits[pid % _BITS // 8] |= 1 << pid % 8
        self._map.put(_PID.pack(0), bytes(bits))
        self.pids = wanted


class Noted:
    """A map whose values begin with nanoseconds and a count."""

    def __init__(self, entries: Map, value: struct.Struct) -> None:
        self._entries, self._value = entries, value

    def look(self) -> Iterator[tuple[bytes, float, int, list[Any]]]:
        """Key, seconds and times since the look before, and the rest of the value. To be read to its end."""
        for key, data in self._entries.drain():
            ns, count, *rest = self._value.unpack(data)
            yield key, ns / 1e9, count, rest
