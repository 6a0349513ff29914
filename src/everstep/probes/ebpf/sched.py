"""What programs/sched.bpf.c noted of the run's threads, between two looks. The layouts are those of its structs."""

import struct
from collections.abc import Collection
from pathlib import Path

from everstep.analyzer.slowness.off_cpu import UNKNOWN, Taker, ThreadView
from everstep.probes.ebpf.libbpf import Library, Loaded
from everstep.probes.ebpf.programs import path_of

MAX_WATCHED = 4000
"""Processes of the run on a node; the map holds a few more."""

MAX_WAITS, MAX_BLOCKS = 8192, 2048
_PID = struct.Struct("=I")
_WAIT_KEY, _WAIT = struct.Struct("=III"), struct.Struct("=QQ16s")
MIN_WAIT_S = 1e-4
MAX_TAKERS = 12
"""Of a thread, those that took most; what the others took is added up without a name."""


class Sched:
    """Loaded and attached while this object lives."""

    def __init__(self, library: Library, path: Path | None = None) -> None:
        """Raises BpfError."""
        self._loaded = Loaded(library, path or path_of("sched"))
        self._watched = self._loaded.map("watched", _PID.size, 4)
        self._waits = self._loaded.map("waits", _WAIT_KEY.size, _WAIT.size)
        self._pids: set[int] = set()
        self._waits_before: dict[bytes, tuple[int, int]] = {}

    def close(self) -> None:
        """Detach. Not to be used afterwards."""
        self._loaded.close()

    def watch(self, pids: Collection[int]) -> None:
        """From now on these processes and no others."""
        wanted = set(sorted(pids)[:MAX_WATCHED])
        for pid in self._pids - wanted:
            self._watched.remove(_PID.pack(pid))
        for pid in wanted - self._pids:
            self._watched.put(_PID.pack(pid), b"\1\0\0\0")
        self._pids = wanted

    def look(self) -> tuple[ThreadView, ...]:
        """Since the look before. Of processes that are not watched any more nothing is answered."""
        return tuple(
            ThreadView(pid=pid, tid=tid, takers=_most(takers))
            for (pid, tid), takers in self._new_waits().items()
            if pid in self._pids
        )

    def _new_waits(self) -> dict[tuple[int, int], list[Taker]]:
        found: dict[tuple[int, int], list[Taker]] = {}
        now: dict[bytes, tuple[int, int]] = {}
        for key, value in self._waits.items(MAX_WAITS):
            ns, count, name = _WAIT.unpack(value)
            now[key] = ns, count
            before_ns, before_count = self._waits_before.get(key, (0, 0))
            if ns < before_ns:  # evicted meanwhile, and begun anew
                before_ns = before_count = 0
            wait_s = (ns - before_ns) / 1e9
            if wait_s < MIN_WAIT_S:
                continue
            tgid, tid, taker = _WAIT_KEY.unpack(key)
            found.setdefault((tgid, tid), []).append(Taker(taker, text_of(name), wait_s, count - before_count))
        self._waits_before = now
        return found


def _most(takers: list[Taker]) -> tuple[Taker, ...]:
    takers.sort(key=lambda taker: -taker.wait_s)
    named, rest = takers[:MAX_TAKERS], takers[MAX_TAKERS:]
    if rest:
        named.append(Taker(UNKNOWN, "", sum(t.wait_s for t in rest), sum(t.count for t in rest)))
    return tuple(named)


def text_of(name: bytes) -> str:
    """A process chooses its own name, and a user those of files."""
    text = name.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
