"""Data of programs/memory.bpf.c: how long threads had to free memory themselves, between two looks."""

import struct
from collections.abc import Collection

from everstep.analyzer.slowness.off_cpu import GROUP_RECLAIM, RECLAIM, Sleep
from everstep.probes.ebpf.libbpf import Library, Loaded
from everstep.probes.ebpf.noted import Noted, Watched
from everstep.probes.ebpf.programs import path_of

MIN_S = 0.005
_KEY, _VALUE = struct.Struct("=III"), struct.Struct("=QQQ")
_OF_GROUP = 1


class Memory:
    """Loaded and attached while this object lives."""

    def __init__(self, library: Library) -> None:
        """Raises BpfError."""
        self._loaded = Loaded(library, path_of("memory"))
        self._watched = Watched(self._loaded)
        self._reclaims = Noted(self._loaded.map("reclaims", _KEY.size, _VALUE.size), _VALUE)

    def close(self) -> None:
        """Detach. Do not use the object afterwards."""
        self._loaded.close()

    def watch(self, pids: Collection[int]) -> None:
        """Watch these processes from now on, and no others."""
        self._watched.set(pids)

    def look(self) -> dict[tuple[int, int], list[Sleep]]:
        """Sleeps by process and thread, since the last look."""
        found: dict[tuple[int, int], list[Sleep]] = {}
        for key, total_s, count, (most_ns,) in self._reclaims.look():
            tgid, tid, whose = _KEY.unpack(key)
            if total_s >= MIN_S and tgid in self._watched.pids:
                kind = GROUP_RECLAIM if whose == _OF_GROUP else RECLAIM
                found.setdefault((tgid, tid), []).append(Sleep(kind, total_s, count, min(most_ns / 1e9, total_s)))
        return found
