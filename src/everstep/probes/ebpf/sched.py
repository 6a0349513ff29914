"""Data of programs/sched.bpf.c about the run's threads, between two looks. The layouts are those of its structs."""

import struct
from collections.abc import Collection
from typing import Any

from everstep.analyzer.slowness.off_cpu import TIMER, UNKNOWN, Sleep, Taker
from everstep.probes.ebpf.libbpf import Library, Loaded
from everstep.probes.ebpf.noted import Noted, Watched
from everstep.probes.ebpf.places import Places, full_path
from everstep.probes.ebpf.programs import path_of

MIN_WAIT_S = 1e-3
"""Wait of a thread for one taker; a taker of less is not named, and a thread that waited less is not reported."""

MIN_SLEEP_S = 0.005
"""The program records no shorter sleep."""

MAX_SLEEPS = 12
MAX_TAKERS = 12
"""Takers per thread, the largest first; the rest is summed up without a name."""

_WAIT_KEY, _WAIT = struct.Struct("=III"), struct.Struct("=QQ16s")
_FRAMES, _PARTS, _PART = 12, 4, 48
_BLOCK_KEY = struct.Struct("=IIQ")
_BLOCK = struct.Struct(f"=3Q{_FRAMES}QQiIIiII16s{_PARTS * _PART}s")
_ZERO, CALLS = b"\0" * 4, 1024


class Sched:
    """Loaded and attached while this object lives."""

    def __init__(self, library: Library) -> None:
        """Raises BpfError."""
        self._loaded = Loaded(library, path_of("sched"))
        self._watched = Watched(self._loaded)
        self._waits = Noted(self._loaded.map("waits", _WAIT_KEY.size, _WAIT.size), _WAIT)
        self._blocks = Noted(self._loaded.map("blocks", _BLOCK_KEY.size, _BLOCK.size), _BLOCK)
        self._places = Places()
        self._loaded.map("calls", len(_ZERO), CALLS).put(_ZERO, self._places.told(CALLS))

    def close(self) -> None:
        """Detach. Do not use the object afterwards."""
        self._loaded.close()

    def watch(self, pids: Collection[int]) -> None:
        """Watch these processes from now on, and no others."""
        self._watched.set(pids)

    def waits(self) -> dict[tuple[int, int], tuple[Taker, ...]]:
        """Processes that had the CPU while a thread was ready, by process and thread, since the last look."""
        found: dict[tuple[int, int], list[Taker]] = {}
        for key, wait_s, count, (name,) in self._waits.look():
            tgid, tid, taker = _WAIT_KEY.unpack(key)
            if tgid in self._watched.pids:
                found.setdefault((tgid, tid), []).append(Taker(taker, text_of(name), wait_s, count))
        return {
            thread: _most(takers) for thread, takers in found.items() if sum(t.wait_s for t in takers) >= MIN_WAIT_S
        }

    def sleeps(self) -> dict[tuple[int, int], list[Sleep]]:
        """Long sleeps of threads by process and thread, since the last look; longest first."""
        found: dict[tuple[int, int], list[Sleep]] = {}
        for key, total_s, count, rest in self._blocks.look():
            tgid, tid, _ = _BLOCK_KEY.unpack(key)
            if total_s < MIN_SLEEP_S or tgid not in self._watched.pids:
                continue
            sleep = self._sleep(tgid, total_s, count, rest)
            if sleep is not None:
                found.setdefault((tgid, tid), []).append(sleep)
        return {thread: _longest(listed) for thread, listed in found.items()}

    def _sleep(self, pid: int, total_s: float, count: int, rest: list[Any]) -> Sleep | None:
        most_ns, *frames = rest[: 1 + _FRAMES]
        _, syscall, device, waker, waker_syscall, mode, num_parts, name, path = rest[1 + _FRAMES :]
        kind = self._places.kind(frames, syscall, mode)
        if not kind:
            return None
        parts = [text_of(path[i * _PART : (i + 1) * _PART]) for i in range(min(num_parts, _PARTS))]
        where = full_path(pid, device, parts, is_whole=num_parts < _PARTS) if kind in self._places.on_a_file else ""
        is_known = self._places.releases(waker_syscall)
        most_s = min(most_ns / 1e9, total_s)
        return Sleep(kind, total_s, count, most_s, where, waker if is_known else 0, text_of(name) if is_known else "")


def _longest(sleeps: list[Sleep]) -> list[Sleep]:
    """The longest sleeps. All timers are joined to one: a timer fires in any process that runs just then, and the
    program keeps these apart."""
    timers = [each for each in sleeps if each.kind == TIMER]
    sleeps = sorted((each for each in sleeps if each.kind != TIMER), key=lambda each: -each.total_s)[:MAX_SLEEPS]
    if timers:
        total_s, count = sum(each.total_s for each in timers), sum(each.count for each in timers)
        sleeps.append(Sleep(TIMER, total_s, count, max(each.most_s for each in timers)))
    return sleeps


def _most(takers: list[Taker]) -> tuple[Taker, ...]:
    takers.sort(key=lambda taker: -taker.wait_s)
    num_named = sum(taker.wait_s >= MIN_WAIT_S for taker in takers[:MAX_TAKERS])
    named, rest = takers[:num_named], takers[num_named:]
    if rest:
        named.append(Taker(UNKNOWN, "", sum(t.wait_s for t in rest), sum(t.count for t in rest)))
    return tuple(named)


def text_of(name: bytes) -> str:
    """A name as printable text: a process chooses its own name, and a user those of files."""
    text = name.partition(b"\0")[0].decode("utf-8", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)
