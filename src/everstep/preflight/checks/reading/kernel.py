"""Kernel: release, taint, parameters, clock and its synchronisation, pressure, host name."""

import ctypes
import os
import platform
import socket
from collections.abc import Iterator

from everstep.preflight.result import Better, Doing, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, parts, read_place, read_places, text_of, whole

_SYSCTLS = (
    "kernel.numa_balancing", "kernel.pid_max", "kernel.threads-max", "kernel.core_pattern", "kernel.panic",
    "kernel.panic_on_oops", "kernel.hung_task_timeout_secs", "kernel.softlockup_panic", "kernel.watchdog",
    "kernel.watchdog_thresh", "kernel.nmi_watchdog", "kernel.perf_event_paranoid", "kernel.yama.ptrace_scope",
    "kernel.sched_rt_runtime_us", "kernel.shmmax", "kernel.shmall", "kernel.sem", "kernel.randomize_va_space",
    "kernel.dmesg_restrict", "kernel.unprivileged_bpf_disabled", "kernel.io_uring_disabled", "vm.swappiness",
    "vm.overcommit_memory", "vm.overcommit_ratio", "vm.zone_reclaim_mode", "vm.min_free_kbytes", "vm.max_map_count",
    "vm.dirty_ratio", "vm.dirty_background_ratio", "vm.dirty_bytes", "vm.dirty_expire_centisecs", "vm.nr_hugepages",
    "vm.nr_overcommit_hugepages", "vm.vfs_cache_pressure", "vm.compaction_proactiveness", "vm.watermark_scale_factor",
    "vm.panic_on_oom", "vm.oom_kill_allocating_task", "vm.memory_failure_recovery", "vm.stat_interval",
    "fs.file-max", "fs.nr_open", "fs.aio-max-nr", "fs.inotify.max_user_watches", "fs.inotify.max_user_instances",
    "fs.pipe-max-size", "net.core.somaxconn", "net.core.netdev_max_backlog", "net.core.netdev_budget",
    "net.core.rmem_max", "net.core.wmem_max", "net.core.rmem_default", "net.core.wmem_default", "net.core.optmem_max",
    "net.core.busy_poll", "net.core.busy_read", "net.core.default_qdisc", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem", "net.ipv4.tcp_congestion_control", "net.ipv4.tcp_max_syn_backlog", "net.ipv4.tcp_syn_retries",
    "net.ipv4.tcp_retries2", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_tw_reuse", "net.ipv4.tcp_timestamps", "net.ipv4.tcp_sack", "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_mtu_probing", "net.ipv4.tcp_slow_start_after_idle", "net.ipv4.tcp_ecn",
    "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv4.conf.all.rp_filter", "net.ipv4.conf.all.arp_ignore", "net.ipv4.conf.all.arp_announce",
    "net.ipv6.conf.all.disable_ipv6", "net.netfilter.nf_conntrack_max",
)  # fmt: skip
_TAINTS = (
    ("proprietary_module", 0), ("forced_module", 1), ("hardware", 4), ("bad_page", 5), ("oops", 7), ("warning", 9),
    ("firmware_workaround", 11), ("out_of_tree_module", 12), ("unsigned_module", 13), ("lockup", 14),
    ("live_patched", 15),
)  # fmt: skip
_CLOCK = "/sys/devices/system/clocksource/clocksource0"
_PLACES = (
    Place(name="kernel.clock.source", path=f"{_CLOCK}/current_clocksource", parse=whole),
    Place(name="kernel.clock.available", path=f"{_CLOCK}/available_clocksource", parse=whole),
    Place(name="kernel.command_line", path="/proc/cmdline", parse=whole),
    Place(
        name="kernel.uptime_s", path="/proc/uptime", unit="s", parse=lambda t: float(t.split()[0]), better=Better.ANY
    ),
    Place(name="kernel.open_files", path="/proc/sys/fs/file-nr", parse=lambda t: int(t.split()[0]), better=Better.ANY),
    Place(name="kernel.entropy_bits", path="/proc/sys/kernel/random/entropy_avail", better=Better.ANY),
    Place(name="kernel.aslr", path="/proc/sys/kernel/randomize_va_space"),
    Place(name="kernel.lockdown", path="/sys/kernel/security/lockdown", parse=whole),
    Place(name="kernel.security_modules", path="/sys/kernel/security/lsm", parse=whole),
    Place(name="kernel.conntrack_used", path="/proc/sys/net/netfilter/nf_conntrack_count", better=Better.ANY),
)
_STA_UNSYNC = 0x40
_STA_NANO = 0x2000
_TIME_ERROR = 5


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    yield from read_places(root, _PLACES)
    for name in _SYSCTLS:
        # Between the dots of a parameter's name are folders; none of these has a dot of its own.
        yield read_place(root, Place(name=f"kernel.{name}", path="/proc/sys/" + name.replace(".", "/"), parse=_either))
    yield from parts("kernel", _release(), taints(root), clock(), pressures(root))
    yield Doing(what="looking up this host's own name")  # a dead name server answers after many seconds
    yield from parts("kernel", _host())


def _release() -> Iterator[Result]:
    yield measured("kernel.release", platform.release(), how="uname", better=Better.SAME)
    yield measured("kernel.version", platform.version(), how="uname", better=Better.SAME)


def _either(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return whole(text)


def taints(root: str) -> Iterator[Result]:
    """Yield what the kernel holds against itself. Also for `light`."""
    text = text_of(root, "/proc/sys/kernel/tainted") or ""
    if not text.isdigit():
        yield unsupported("kernel.taint", "/proc/sys/kernel/tainted cannot be read")
        return
    how = "read /proc/sys/kernel/tainted"
    yield measured("kernel.taint", int(text), how=how)
    for name, bit in _TAINTS:
        yield measured(f"kernel.taint.{name}", bool(int(text) >> bit & 1), how=f"{how}, bit {bit}", better=Better.SAME)


class _Timex(ctypes.Structure):
    """struct timex of adjtimex(2), 64-bit Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("constant", ctypes.c_long),
        ("precision", ctypes.c_long), ("tolerance", ctypes.c_long), ("time_s", ctypes.c_long),
        ("time_us", ctypes.c_long), ("tick", ctypes.c_long), ("ppsfreq", ctypes.c_long), ("jitter", ctypes.c_long),
        ("shift", ctypes.c_int), ("stabil", ctypes.c_long), ("jitcnt", ctypes.c_long), ("calcnt", ctypes.c_long),
        ("errcnt", ctypes.c_long), ("stbcnt", ctypes.c_long), ("tai", ctypes.c_int), ("spare", ctypes.c_int * 11),
    )  # fmt: skip


def clock() -> Iterator[Result]:
    """Yield what the kernel believes of its own time. Also for `light`."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        why = f"adjtimex: {os.strerror(ctypes.get_errno())}"
        for name, unit in (("synchronised", ""), ("offset_s", "s"), ("max_error_s", "s")):
            yield unsupported(f"kernel.clock.{name}", why, unit)
        return
    how = "adjtimex"
    is_synchronised = state != _TIME_ERROR and not timex.status & _STA_UNSYNC
    yield measured("kernel.clock.synchronised", is_synchronised, how=how, better=Better.SAME)
    divisor = 1e9 if timex.status & _STA_NANO else 1e6
    if is_synchronised:
        yield measured("kernel.clock.offset_s", abs(timex.offset) / divisor, "s", how=how)
        yield measured("kernel.clock.max_error_s", timex.maxerror / 1e6, "s", how=how)
        yield measured("kernel.clock.estimated_error_s", timex.esterror / 1e6, "s", how=how)
    else:
        why = "the clock is not synchronised, so it is not known how far it is off"
        for name in ("offset_s", "max_error_s", "estimated_error_s"):
            yield unsupported(f"kernel.clock.{name}", why, "s", how=how)
    yield measured("kernel.clock.frequency_ppm", timex.freq / 65536, "ppm", how=how)
    yield measured("kernel.clock.tai_offset_s", timex.tai, "s", how=how, better=Better.SAME)


def pressures(root: str) -> Iterator[Result]:
    """Share of time in which work waited for a resource (PSI). Also for `light`."""
    for resource in ("cpu", "memory", "io"):
        path = f"/proc/pressure/{resource}"
        text = text_of(root, path)
        if text is None:
            yield unsupported(f"kernel.pressure.{resource}.some.avg60", f"{path}: PSI is not compiled in or off", "%")
            continue
        for line in text.splitlines():
            kind, *cells = line.split()
            for cell in cells:
                key, _, number = cell.partition("=")
                if key in ("avg10", "avg60"):
                    yield measured(f"kernel.pressure.{resource}.{kind}.{key}", float(number), "%", how=f"read {path}")


def _host() -> Iterator[Result]:
    name = socket.gethostname()
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        yield unsupported("kernel.hostname_is_local_only", f"{name} cannot be looked up: {error}", how="getaddrinfo")
        return
    is_local = all(address.startswith("127.") or address == "::1" for address in found)
    yield measured("kernel.hostname_is_local_only", is_local, how=f"getaddrinfo({name!r})", better=Better.SAME)
