"""Memory: size, what is free, swap, huge pages, /dev/shm, ECC counts, what the kernel has counted against it."""

import os
from collections.abc import Iterator

from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import (
    Place,
    chosen,
    keyed,
    names_in,
    parts,
    read_place,
    read_places,
    text_of,
    under,
    whole,
)

_MEMINFO = (
    ("total_bytes", "MemTotal", Better.HIGHER, 0.02), ("free_bytes", "MemFree", Better.ANY, 0.2),
    ("available_bytes", "MemAvailable", Better.ANY, 0.2), ("cached_bytes", "Cached", Better.ANY, 0.2),
    ("dirty_bytes", "Dirty", Better.ANY, 0.2), ("writeback_bytes", "Writeback", Better.ANY, 0.2),
    ("slab_unreclaimable_bytes", "SUnreclaim", Better.ANY, 0.2), ("page_tables_bytes", "PageTables", Better.ANY, 0.2),
    ("mlocked_bytes", "Mlocked", Better.ANY, 0.2), ("shared_bytes", "Shmem", Better.ANY, 0.2),
    ("swap_total_bytes", "SwapTotal", Better.SAME, 0.2), ("swap_free_bytes", "SwapFree", Better.ANY, 0.2),
    ("commit_limit_bytes", "CommitLimit", Better.ANY, 0.2), ("committed_bytes", "Committed_AS", Better.ANY, 0.2),
    ("hardware_corrupted_bytes", "HardwareCorrupted", Better.LOWER, 0.0),
    ("anonymous_huge_bytes", "AnonHugePages", Better.ANY, 0.2), ("hugetlb_bytes", "Hugetlb", Better.ANY, 0.2),
)  # fmt: skip
_VMSTAT = (
    "oom_kill", "allocstall_normal", "compact_stall", "compact_fail", "thp_fault_fallback", "pgmajfault", "numa_miss",
    "numa_foreign", "zone_reclaim_failed", "pswpin", "pswpout", "workingset_refault_anon", "drop_pagecache",
)  # fmt: skip
_THP = "/sys/kernel/mm/transparent_hugepage"
_PLACES = (
    Place(name="memory.thp_enabled", path=f"{_THP}/enabled", parse=chosen),
    Place(name="memory.thp_defrag", path=f"{_THP}/defrag", parse=chosen),
    Place(name="memory.thp_shmem", path=f"{_THP}/shmem_enabled", parse=chosen),
    Place(name="memory.thp_khugepaged_defrag", path=f"{_THP}/khugepaged/defrag"),
    Place(name="memory.ksm_run", path="/sys/kernel/mm/ksm/run"),
    Place(name="memory.lru_gen", path="/sys/kernel/mm/lru_gen/enabled", parse=whole),
)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    yield from read_places(root, _PLACES)
    yield from parts("memory", *(read(root) for read in (sizes, _huge_pages, _numa, counted, shared, errors)))


def sizes(root: str) -> Iterator[Result]:
    """Also for `light`."""
    found = keyed(text_of(root, "/proc/meminfo") or "")
    how = "read /proc/meminfo"
    numbers = {key: int(text.split()[0]) * 1024 for key, text in found.items() if text.endswith("kB")}
    for name, key, better, tolerance in _MEMINFO:
        if key in numbers:
            yield measured(f"memory.{name}", numbers[key], "bytes", how=how, better=better, tolerance=tolerance)
        else:
            yield unsupported(f"memory.{name}", f"/proc/meminfo has no {key}", "bytes", how=how)
    if {"MemAvailable", "MemTotal"} <= numbers.keys() and numbers["MemTotal"]:
        yield measured("memory.available_ratio", numbers["MemAvailable"] / numbers["MemTotal"], "ratio", how=how)
    if {"SwapTotal", "SwapFree"} <= numbers.keys():
        yield measured("memory.swap_used_bytes", numbers["SwapTotal"] - numbers["SwapFree"], "bytes", how=how)


def _huge_pages(root: str) -> Iterator[Result]:
    base = "/sys/kernel/mm/hugepages"
    names = names_in(root, base)
    if not names:
        yield unsupported("memory.huge_pages", f"{base} is not there", "pages")
    for name in names:
        size = name.removeprefix("hugepages-")
        for what, better in (("nr_hugepages", Better.SAME), ("free_hugepages", Better.ANY)):
            place = Place(name=f"memory.{what}_{size}", path=f"{base}/{name}/{what}", unit="pages", better=better)
            yield read_place(root, place)


def _numa(root: str) -> Iterator[Result]:
    base = "/sys/devices/system/node"
    for node in (name for name in names_in(root, base) if name[:4] == "node" and name[4:].isdigit()):
        found = {}
        for line in (text_of(root, f"{base}/{node}/meminfo") or "").splitlines():
            cells = line.split()
            if len(cells) == 5 and cells[3].isdigit():
                found[cells[2].rstrip(":")] = int(cells[3]) * 1024
        how = f"read {base}/{node}/meminfo"
        for name, key, better in (("total_bytes", "MemTotal", Better.HIGHER), ("free_bytes", "MemFree", Better.ANY)):
            full = f"memory.{node}.{name}"
            if key in found:
                yield measured(full, found[key], "bytes", how=how, better=better, tolerance=0.02, device=node)
            else:
                yield unsupported(full, f"{base}/{node}/meminfo has no {key}", "bytes", how=how, device=node)


def counted(root: str) -> Iterator[Result]:
    """Counters of the kernel since the machine started. Also for `light`."""
    found = dict(line.split() for line in (text_of(root, "/proc/vmstat") or "").splitlines() if len(line.split()) == 2)
    how = "read /proc/vmstat, since the machine started"
    for name in _VMSTAT:
        if found.get(name, "").isdigit():
            yield measured(f"memory.vmstat.{name}", int(found[name]), "times", how=how)
        else:
            yield unsupported(f"memory.vmstat.{name}", f"/proc/vmstat has no {name}", "times", how=how)


def shared(root: str) -> Iterator[Result]:
    """Also for `light`."""
    try:
        stat = os.statvfs(under(root, "/dev/shm"))
    except OSError as error:
        yield unsupported("memory.shm_size_bytes", f"/dev/shm: {error.strerror or error}", "bytes")
        return
    how = "statvfs /dev/shm"
    yield measured("memory.shm_size_bytes", stat.f_blocks * stat.f_frsize, "bytes", how=how, better=Better.HIGHER)
    yield measured("memory.shm_available_bytes", stat.f_bavail * stat.f_frsize, "bytes", how=how)


def errors(root: str) -> Iterator[Result]:
    """Corrected and uncorrected errors of each memory controller. Also for `light`."""
    base = "/sys/devices/system/edac/mc"
    controllers = [name for name in names_in(root, base) if name.startswith("mc")]
    if not controllers:
        yield unsupported("memory.edac.corrected", "no EDAC driver is loaded (usual in a virtual machine)", "errors")
        yield unsupported("memory.edac.uncorrected", "no EDAC driver is loaded (usual in a virtual machine)", "errors")
    for mc in controllers:
        yield from read_places(
            root,
            [
                Place(name="corrected", path=f"{base}/{mc}/ce_count", unit="errors", better=Better.LOWER),
                Place(name="uncorrected", path=f"{base}/{mc}/ue_count", unit="errors", better=Better.LOWER),
                Place(
                    name="corrected_nowhere", path=f"{base}/{mc}/ce_noinfo_count", unit="errors", better=Better.LOWER
                ),
                Place(name="size_mb", path=f"{base}/{mc}/size_mb", unit="MB", better=Better.HIGHER, tolerance=0.02),
                Place(name="type", path=f"{base}/{mc}/mc_name", parse=whole),
            ],
            prefix=f"memory.edac.{mc}.",
            device=mc,
        )
