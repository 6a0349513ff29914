"""Memory bandwidth: large copies by one thread and by all cores, and per NUMA node."""

import os
from collections.abc import Iterator
from functools import partial
from typing import Any

from everstep.preflight.checks.working.arithmetic import copies, torch_problem
from everstep.preflight.result import Better, Doing, Judgement, Result, Yielded, measured, unsupported
from everstep.preflight.running.processes import Failed, run_forked
from everstep.preflight.settings import Level, Settings
from everstep.preflight.sources import keyed, names_in, text_of

_NODES = "/sys/devices/system/node"
_LIMIT_S = 60.0
_MOST_AT_ONCE = 16
_SHARE_OF_FREE = 0.25  # of the free memory that the buffers may take


def measure(settings: Settings) -> Iterator[Yielded]:
    yield Doing(what="import torch")
    problem = torch_problem()
    usable = sorted(os.sched_getaffinity(0))
    if problem:
        yield unsupported("bandwidth.one_core_copy", problem, "bytes/s")
        return
    yield Doing(what="copies by one core")
    yield from _together("bandwidth.one_core_copy", usable[:1], settings, "")
    nodes = [name for name in names_in(settings.root, _NODES) if name[:4] == "node" and name[4:].isdigit()]
    for node in nodes:
        cores = [core for core in cores_of(text_of(settings.root, f"{_NODES}/{node}/cpulist") or "") if core in usable]
        if not cores:
            yield unsupported(
                f"bandwidth.{node}.copy", f"this process may not use a core of {node}", "bytes/s", device=node
            )
            continue
        yield Doing(what=f"copies by the cores of {node}")
        yield from _together(f"bandwidth.{node}.copy", _spread(cores, settings.level), settings, node)
    if not nodes:
        yield from _together("bandwidth.all_cores_copy", _spread(usable, settings.level), settings, "")


def _spread(cores: list[int], level: Level) -> list[int]:
    most = _MOST_AT_ONCE if level is not Level.QUICK else _MOST_AT_ONCE // 2
    return cores if len(cores) <= most else cores[:: len(cores) // most][:most]


def cores_of(text: str) -> list[int]:
    """ "0-3,8" as numbers. Pure."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit():
            found += range(int(first), int(last if dash else first) + 1)
    return found


def _together(name: str, cores: list[int], settings: Settings, device: str) -> Iterator[Result]:
    """All these cores copy at the same time; memory of a process is on the node of its core (first touch)."""
    free = _free_bytes(settings.root)
    size = settings.sizes.copy_bytes
    if free is not None:
        size = min(size, int(free * _SHARE_OF_FREE / (2 * len(cores))))
    works = [partial(copies, size, settings.sizes.copies) for _ in cores]
    answers = run_forked(works, limit_s=_LIMIT_S, cores=cores)
    good: list[dict[str, Any]] = [answer for answer in answers if not isinstance(answer, Failed)]
    failed = [answer.why for answer in answers if isinstance(answer, Failed)]
    if failed:
        yield Result(
            name=name, value=None, unit="bytes/s", verdict=Judgement.BAD, device=device, how="forked processes",
            why=f"{len(failed)} of {len(cores)} copying processes failed: {failed[0]}",
        )  # fmt: skip
        return
    how = f"{len(cores)} processes copy {size >> 20} MiB {settings.sizes.copies} times; bytes read and written"
    # Only the time in which all copied counts as together; begin and end differ little and the sum says so.
    rate = sum(answer["median_rate"] for answer in good)
    yield measured(name, rate, "bytes/s", how=how, better=Better.HIGHER, tolerance=0.2, device=device)
    if not all(answer["is_equal"] for answer in good):
        yield Result(
            name=f"{name}.is_equal", value=False, verdict=Judgement.BAD, device=device, how=how,
            why="a copy in memory differs from its original",
        )  # fmt: skip
    else:
        yield Result(name=f"{name}.is_equal", value=True, verdict=Judgement.OK, device=device, how=how)


def _free_bytes(root: str) -> int | None:
    text = keyed(text_of(root, "/proc/meminfo") or "").get("MemAvailable", "")
    return int(text.split()[0]) * 1024 if text else None
