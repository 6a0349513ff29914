"""What the programs' maps have in common: sums that only grow, and the processes that are watched."""

import struct
from collections.abc import Collection, Iterator
from typing import Any

from everstep.probes.ebpf.libbpf import Loaded, Map

MAX_WATCHED = 4000
"""Processes of the run on a node; the maps hold a few more."""

_PID = struct.Struct("=I")


class Watched:
    """The map of the processes that a program notes."""

    def __init__(self, loaded: Loaded) -> None:
        self._map = loaded.map("watched", _PID.size, _PID.size)
        self.pids: frozenset[int] = frozenset()

    def set(self, pids: Collection[int]) -> None:
        """From now on these and no others."""
        wanted = frozenset(sorted(pids)[:MAX_WATCHED])
        for pid in self.pids - wanted:
            self._map.remove(_PID.pack(pid))
        for pid in wanted - self.pids:
            self._map.put(_PID.pack(pid), _PID.pack(1))
        self.pids = wanted


class Growing:
    """A map whose values begin with nanoseconds and a count."""

    def __init__(self, entries: Map, value: struct.Struct, most: int) -> None:
        self._entries, self._value, self._most = entries, value, most
        self._before: dict[bytes, tuple[int, int]] = {}

    def look(self) -> Iterator[tuple[bytes, float, int, list[Any]]]:
        """Key, seconds and times since the look before, and the rest of the value. To be read to its end."""
        now: dict[bytes, tuple[int, int]] = {}
        for key, data in self._entries.items(self._most):
            ns, count, *rest = self._value.unpack(data)
            now[key] = ns, count
            before_ns, before_count = self._before.get(key, (0, 0))
            if ns < before_ns:  # evicted meanwhile, and begun anew
                before_ns = before_count = 0
            yield key, (ns - before_ns) / 1e9, count - before_count, rest
        self._before = now
