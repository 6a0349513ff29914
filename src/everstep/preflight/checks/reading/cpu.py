"""Processors: model, count, what is offline, clocks, caches, NUMA, throttling, time stolen by a hypervisor."""

import hashlib
import os
from collections.abc import Iterator

from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, keyed, names_in, parts, read_place, read_places, text_of, whole

_CPU = "/sys/devices/system/cpu"
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "fma", "sve", "bf16", "hypervisor")

_PLACES = (
    Place(name="cpu.online", path=f"{_CPU}/online", parse=whole),
    Place(name="cpu.possible", path=f"{_CPU}/possible", parse=whole),
    Place(name="cpu.isolated", path=f"{_CPU}/isolated", parse=lambda t: whole(t) or "none"),
    Place(name="cpu.smt", path=f"{_CPU}/smt/control", parse=whole),
    Place(name="cpu.idle_driver", path=f"{_CPU}/cpuidle/current_driver", parse=whole),
    Place(name="cpu.numa_nodes", path="/sys/devices/system/node/online", parse=whole),
    Place(name="cpu.boost", path=f"{_CPU}/cpufreq/boost"),
    Place(name="cpu.no_turbo", path=f"{_CPU}/intel_pstate/no_turbo"),
)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    yield from read_places(root, _PLACES)
    reads = (_model, _offline, _caches, _clocks, _throttling, _numa, _stolen, loads)
    yield from parts("cpu", *(read(root) for read in reads))


def _model(root: str) -> Iterator[Result]:
    text = text_of(root, "/proc/cpuinfo")
    if not text:
        yield unsupported("cpu.model", "/proc/cpuinfo cannot be read")
        return
    how = "read /proc/cpuinfo"
    first = keyed(text)
    for name, key in (
        ("model", "model name"), ("vendor", "vendor_id"), ("family", "cpu family"), ("model_number", "model"),
        ("stepping", "stepping"), ("microcode", "microcode"), ("cores_per_socket", "cpu cores"), ("bugs", "bugs"),
    ):  # fmt: skip
        if key in first:
            yield measured(f"cpu.{name}", first[key], how=how, better=Better.SAME)
        else:
            yield unsupported(f"cpu.{name}", f"/proc/cpuinfo has no {key!r}", how=how)
    flags = sorted((first.get("flags") or first.get("Features") or "").split())
    digest = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:16]
    yield measured("cpu.num_flags", len(flags), how=how, better=Better.SAME, tolerance=0.0)
    yield measured("cpu.flags_digest", digest, how=how, better=Better.SAME)
    for flag in _FLAGS:
        yield measured(f"cpu.flag.{flag}", flag in flags, how=how, better=Better.SAME)
    num = sum(line.startswith("processor") for line in text.splitlines())
    yield measured("cpu.count", num, how=how, better=Better.SAME)
    sockets = {line for line in text.splitlines() if line.startswith("physical id")}
    if sockets:
        yield measured("cpu.sockets", len(sockets), how=how, better=Better.SAME)
    else:
        yield unsupported("cpu.sockets", "/proc/cpuinfo has no 'physical id'", how=how)


def _offline(root: str) -> Iterator[Result]:
    """Processors that are there and switched off: a fault or a setting, never something to train with."""
    place = Place(name="cpu.offline", path=f"{_CPU}/offline", parse=lambda t: whole(t) or "none")
    yield read_place(root, place)
    if root == "/":
        usable = len(os.sched_getaffinity(0))
        yield measured("cpu.usable", usable, how="sched_getaffinity of this process", better=Better.SAME)


def _caches(root: str) -> Iterator[Result]:
    base = f"{_CPU}/cpu0/cache"
    indices = [name for name in names_in(root, base) if name.startswith("index")]
    if not indices:
        yield unsupported("cpu.cache_bytes", f"{base} is not there", "bytes")
    for index in indices:
        level = text_of(root, f"{base}/{index}/level") or index
        kind = (text_of(root, f"{base}/{index}/type") or "").lower()[:4]
        yield read_place(
            root, Place(name=f"cpu.cache_l{level}_{kind}_bytes", path=f"{base}/{index}/size", unit="bytes", parse=_size)
        )


def _size(text: str) -> int:
    units = {"K": 1 << 10, "M": 1 << 20}
    return int(text[:-1]) * units[text[-1]] if text[-1] in units else int(text)


def _clocks(root: str) -> Iterator[Result]:
    policies = [name for name in names_in(root, f"{_CPU}/cpufreq") if name.startswith("policy")]
    if not policies:
        why = "no frequency driver (usual in a virtual machine)"
        for name in ("governor", "driver", "max_hertz", "min_hertz", "slowest_now_hertz", "energy_preference"):
            yield unsupported(f"cpu.{name}", why, "hertz" if name.endswith("hertz") else "")
        return
    for name, file in (
        ("governor", "scaling_governor"), ("driver", "scaling_driver"),
        ("energy_preference", "energy_performance_preference"),
    ):  # fmt: skip
        found = {text_of(root, f"{_CPU}/cpufreq/{policy}/{file}") for policy in policies} - {None}
        how = f"read {file} of {len(policies)} frequency policies"
        if found:
            yield measured(f"cpu.{name}", ",".join(sorted(str(f) for f in found)), how=how, better=Better.SAME)
        else:
            yield unsupported(f"cpu.{name}", f"no policy has {file}", how=how)
    for name, file, better, take in (
        ("max_hertz", "scaling_max_freq", Better.HIGHER, min), ("min_hertz", "scaling_min_freq", Better.HIGHER, min),
        ("slowest_now_hertz", "scaling_cur_freq", Better.ANY, min),
    ):  # fmt: skip
        numbers = [
            int(t) * 1000 for p in policies if (t := text_of(root, f"{_CPU}/cpufreq/{p}/{file}") or "").isdigit()
        ]
        how = f"lowest {file} of {len(policies)} frequency policies"
        if numbers:
            yield measured(f"cpu.{name}", take(numbers), "hertz", how=how, better=better)
        else:
            yield unsupported(f"cpu.{name}", f"no policy has {file}", "hertz", how=how)


def _throttling(root: str) -> Iterator[Result]:
    """Sum over processors of the times that the clock was lowered because of heat."""
    for name, file in (("core_throttled", "core_throttle_count"), ("package_throttled", "package_throttle_count")):
        cpus = [cpu for cpu in names_in(root, _CPU) if cpu[:3] == "cpu" and cpu[3:].isdigit()]
        texts = [text_of(root, f"{_CPU}/{cpu}/thermal_throttle/{file}") for cpu in cpus]
        counts = [int(text) for text in texts if text is not None and text.isdigit()]
        if counts:
            yield measured(
                f"cpu.{name}", sum(counts), "times", how=f"sum of thermal_throttle/{file}", better=Better.LOWER
            )
        else:
            yield unsupported(f"cpu.{name}", "the kernel counts no thermal throttling here", "times")


def _numa(root: str) -> Iterator[Result]:
    base = "/sys/devices/system/node"
    for node in (name for name in names_in(root, base) if name[:4] == "node" and name[4:].isdigit()):
        yield read_place(root, Place(name=f"cpu.{node}_cpus", path=f"{base}/{node}/cpulist", parse=whole))
        yield read_place(root, Place(name=f"cpu.{node}_distances", path=f"{base}/{node}/distance", parse=whole))


def _stolen(root: str) -> Iterator[Result]:
    text = text_of(root, "/proc/stat")
    cells = text.split("\n", 1)[0].split()[1:] if text else []
    if len(cells) < 8:
        yield unsupported("cpu.stolen_ratio", "/proc/stat cannot be read", "ratio")
        return
    ticks = [int(cell) for cell in cells[:8]]
    how = "read /proc/stat, since the machine started"
    for name, index in (("stolen_ratio", 7), ("iowait_ratio", 4), ("interrupt_ratio", 5)):
        yield measured(f"cpu.{name}", ticks[index] / max(1, sum(ticks)), "ratio", how=how, better=Better.ANY)


def loads(root: str) -> Iterator[Result]:
    """Also for `light`: how busy the node is."""
    parts = (text_of(root, "/proc/loadavg") or "").split()
    if len(parts) < 4:
        yield unsupported("cpu.load_1m", "/proc/loadavg cannot be read", "processes")
        return
    for name, part in zip(("load_1m", "load_5m", "load_15m"), parts, strict=False):
        yield measured(f"cpu.{name}", float(part), "processes", how="read /proc/loadavg")
    running, _, total = parts[3].partition("/")
    yield measured("cpu.tasks_running", int(running), "tasks", how="read /proc/loadavg")
    yield measured("cpu.tasks", int(total), "tasks", how="read /proc/loadavg")
