"""Limits of processes and of the control group that this process is in, and what a container took away."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from everstep.preflight.result import Better, Result, Value, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import keyed, parts, text_of, whole

_LIMITS = (
    ("nofile", resource.RLIMIT_NOFILE, "files"), ("nproc", resource.RLIMIT_NPROC, "processes"),
    ("memlock_bytes", resource.RLIMIT_MEMLOCK, "bytes"), ("stack_bytes", resource.RLIMIT_STACK, "bytes"),
    ("core_bytes", resource.RLIMIT_CORE, "bytes"), ("address_space_bytes", resource.RLIMIT_AS, "bytes"),
    ("data_bytes", resource.RLIMIT_DATA, "bytes"), ("file_bytes", resource.RLIMIT_FSIZE, "bytes"),
    ("cpu_s", resource.RLIMIT_CPU, "s"), ("nice", resource.RLIMIT_NICE, ""), ("rtprio", resource.RLIMIT_RTPRIO, ""),
    ("sigpending", resource.RLIMIT_SIGPENDING, "signals"), ("msgqueue_bytes", resource.RLIMIT_MSGQUEUE, "bytes"),
)  # fmt: skip
_UNLIMITED = 1 << 62  # the kernel writes "no limit" as a number near 2^63


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    yield from parts("container", _limits(), _status(root), _runtime(root), groups(root))


def _limits() -> Iterator[Result]:
    for name, which, unit in _LIMITS:
        for kind, number in zip(("", "_hard"), resource.getrlimit(which), strict=True):
            value: Value = float("inf") if number == resource.RLIM_INFINITY else number
            how = f"getrlimit, {'hard' if kind else 'soft'} limit"
            full = f"container.limit.{name}{kind}"
            # JSON has no infinity: an unlimited limit is the word, which no lower bound can be above.
            if value == float("inf"):
                yield measured(full, "unlimited", unit, how=how, better=Better.SAME)
            else:
                yield measured(full, value, unit, how=how, better=Better.SAME)


def _status(root: str) -> Iterator[Result]:
    found = keyed(text_of(root, "/proc/self/status") or "")
    for name, key in (
        ("capabilities", "CapEff"), ("no_new_privileges", "NoNewPrivs"), ("seccomp", "Seccomp"),
        ("allowed_cpus", "Cpus_allowed_list"), ("allowed_memory_nodes", "Mems_allowed_list"),
    ):  # fmt: skip
        if key in found:
            yield measured(f"container.{name}", found[key], how="read /proc/self/status", better=Better.SAME)
        else:
            yield unsupported(f"container.{name}", f"/proc/self/status has no {key}")
    yield measured("container.user_id", os.geteuid(), how="geteuid", better=Better.SAME)


def _runtime(root: str) -> Iterator[Result]:
    signs = (("docker", "/.dockerenv"), ("podman", "/run/.containerenv"))
    found = next((name for name, path in signs if text_of(root, path) is not None), "")
    if not found and os.environ.get("KUBERNETES_SERVICE_HOST"):
        found = "kubernetes"
    yield measured("container.runtime", found or "none seen", how="marker files, environment", better=Better.SAME)
    for space in ("net", "pid", "ipc", "mnt", "user", "cgroup"):
        try:
            link = str(Path(f"/proc/self/ns/{space}").readlink())
        except OSError as error:
            yield unsupported(f"container.namespace.{space}", str(error.strerror or error))
        else:
            yield measured(f"container.namespace.{space}", link, how=f"readlink /proc/self/ns/{space}")


def groups(root: str) -> Iterator[Result]:
    """Also for `light`: limits and use of the control group, both versions."""
    paths = _group_paths(text_of(root, "/proc/self/cgroup") or "")
    for name, unit, files in (
        ("memory_limit_bytes", "bytes", ("memory.max", "memory.limit_in_bytes")),
        ("memory_used_bytes", "bytes", ("memory.current", "memory.usage_in_bytes")),
        ("swap_limit_bytes", "bytes", ("memory.swap.max", "memory.memsw.limit_in_bytes")),
        ("cpu_quota", "", ("cpu.max", "cpu.cfs_quota_us")),
        ("cpu_statistics", "", ("cpu.stat", "cpu.stat")),
        ("pids_limit", "processes", ("pids.max", "pids.max")),
        ("pids_used", "processes", ("pids.current", "pids.current")),
    ):  # fmt: skip
        found = _first(root, paths, files)
        full = f"container.{name}"
        if found is None:
            yield unsupported(full, f"no cgroup of this process has {files[0]} or {files[1]}", unit)
            continue
        path, text = found
        if name == "cpu_statistics":
            yield from _throttled(path, text)
            continue
        better = Better.ANY if name.endswith(("used_bytes", "used")) else Better.SAME
        yield measured(full, _limit(text), unit, how=f"read {path}", better=better)
    yield from _ratios(root, paths)


def _group_paths(text: str) -> dict[str, str]:
    """Controller to the folders where its files may be; "" is the unified hierarchy."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        for controller in controllers.split(","):
            found[controller] = path
    return found


def _first(root: str, paths: dict[str, str], files: tuple[str, str]) -> tuple[str, str] | None:
    """Within a container the folder of the group is mounted as the root, so both places are tried."""
    controller = files[0].partition(".")[0]
    places = [f"/sys/fs/cgroup{paths.get('', '')}/{files[0]}", f"/sys/fs/cgroup/{files[0]}"]
    places += [f"/sys/fs/cgroup/{controller}{paths.get(controller, '')}/{files[1]}"]
    places += [f"/sys/fs/cgroup/{controller}/{files[1]}"]
    for place in places:
        text = text_of(root, place)
        if text is not None:
            return place, text
    return None


def _limit(text: str) -> Value:
    text = whole(text)
    if text.isdigit():
        return "unlimited" if int(text) > _UNLIMITED else int(text)
    return "unlimited" if text in ("max", "-1") or text.startswith("max ") else text


def _throttled(path: str, text: str) -> Iterator[Result]:
    found = dict(line.split() for line in text.splitlines() if len(line.split()) == 2)
    for name in ("nr_periods", "nr_throttled"):
        if found.get(name, "").isdigit():
            yield measured(f"container.cpu_{name}", int(found[name]), "times", how=f"read {path}")
        else:
            yield unsupported(f"container.cpu_{name}", f"{path} has no {name}: no quota is set", "times")


def _ratios(root: str, paths: dict[str, str]) -> Iterator[Result]:
    for name, used, limit in (
        ("memory_used_ratio", ("memory.current", "memory.usage_in_bytes"), ("memory.max", "memory.limit_in_bytes")),
        ("pids_used_ratio", ("pids.current", "pids.current"), ("pids.max", "pids.max")),
    ):
        have, top = _first(root, paths, used), _first(root, paths, limit)
        most = _limit(top[1]) if top else None
        if have and have[1].isdigit() and isinstance(most, int) and most:
            yield measured(f"container.{name}", int(have[1]) / most, "ratio", how=f"{have[0]} by its limit")
        else:
            yield unsupported(f"container.{name}", "the cgroup has no such limit", "ratio")
    events = _first(root, paths, ("memory.events", "memory.oom_control"))
    counts = dict(line.split() for line in events[1].splitlines() if len(line.split()) == 2) if events else {}
    if events and counts.get("oom_kill", "").isdigit():
        yield measured("container.memory_oom_kills", int(counts["oom_kill"]), "times", how=f"read {events[0]}")
    else:
        yield unsupported("container.memory_oom_kills", "the cgroup counts no out-of-memory kills", "times")
