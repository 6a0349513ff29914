"""Fixed limits: what is wrong on any training node, whatever its kind. One literal table, each line with its reason.

Kept few and wide on purpose: a limit that fits every machine cannot be narrow. What is usual for a kind of machine
comes from a baseline and from the other nodes (`judge`). Patterns are those of `fnmatch`; the first that fits a name
counts.
"""

import msgspec

from everstep.preflight.result import Better, Value

GBIT = 125e6  # bytes per second


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """Beyond `warn` or `bad` on the worse side. Better.SAME: another value than `warn` warns, than `bad` is bad."""

    pattern: str
    better: Better
    because: str
    warn: Value = None
    bad: Value = None


def _least(pattern: str, warn: float | None, bad: float | None, because: str) -> Limit:
    return Limit(pattern=pattern, better=Better.HIGHER, warn=warn, bad=bad, because=because)


def _most(pattern: str, warn: float | None, bad: float | None, because: str) -> Limit:
    return Limit(pattern=pattern, better=Better.LOWER, warn=warn, bad=bad, because=because)


def _should_be(pattern: str, value: Value, because: str) -> Limit:
    return Limit(pattern=pattern, better=Better.SAME, warn=value, because=because)


def _must_be(pattern: str, value: Value, because: str) -> Limit:
    return Limit(pattern=pattern, better=Better.SAME, bad=value, because=because)


LIMITS = (
    _should_be("cpu.offline", "none", "CPUs are switched off"),
    _should_be("cpu.governor", "performance", "clocks follow the load, and all ranks wait for the slowest"),
    _most("cpu.stolen_ratio", 0.02, 0.20, "the hypervisor gives this node's time to others"),
    _most("cpu.package_throttled", 0, None, "clocks were lowered because of heat"),
    _most("cpu.core_throttled", 0, None, "clocks were lowered because of heat"),
    _least("memory.available_ratio", 0.10, 0.03, "the next allocation may end in the out-of-memory killer"),
    _most("memory.swap_used_bytes", 1 << 30, None, "swapped memory makes ranks slow in turns"),
    _most("memory.hardware_corrupted_bytes", None, 0, "the kernel has taken broken memory out of use"),
    _most("memory.edac.*.uncorrected", None, 0, "uncorrected memory errors"),
    _most("memory.edac.*.corrected", 0, 10_000, "corrected memory errors: a module wears out"),
    _least("memory.shm_size_bytes", 1 << 30, 64 << 20, "data loaders and NCCL pass buffers through /dev/shm"),
    _least("memory.shm_available_bytes", 512 << 20, 32 << 20, "data loaders and NCCL pass buffers through /dev/shm"),
    _most("memory.vmstat.oom_kill", 0, None, "the out-of-memory killer was here since the machine started"),
    _should_be("kernel.vm.zone_reclaim_mode", 0, "allocations stall to free local memory while other nodes have some"),
    _should_be("kernel.kernel.numa_balancing", 0, "page migration stalls ranks that are pinned anyway"),
    _least("kernel.net.core.somaxconn", 1024, 128, "many ranks connect to one store at once"),
    _least("kernel.net.core.rmem_max", 4 << 20, None, "one TCP stream cannot fill a fast link with small windows"),
    _least("kernel.net.core.wmem_max", 4 << 20, None, "one TCP stream cannot fill a fast link with small windows"),
    _least("kernel.kernel.pid_max", 32768, 4096, "ranks, data loaders and their threads each need a number"),
    _least("kernel.vm.max_map_count", 65530, 10_000, "large processes run out of mappings"),
    _should_be("kernel.taint.hardware", False, "the kernel has seen a machine check"),
    _should_be("kernel.taint.bad_page", False, "the kernel has found a broken page"),
    _should_be("kernel.taint.oops", False, "the kernel has crashed in part and runs on"),
    _should_be("kernel.taint.lockup", False, "a CPU has been locked up"),
    _should_be("kernel.clock.synchronised", True, "no time service: times of different nodes cannot be compared"),
    _most("kernel.clock.offset_s", 0.010, 1.0, "times of different nodes cannot be compared"),
    _most("kernel.clock.max_error_s", 0.5, None, "times of different nodes cannot be compared"),
    _should_be("kernel.hostname_is_local_only", False, "other nodes get 127.x as this node's address"),
    _most("kernel.pressure.cpu.*.avg60", 50.0, None, "work waits for a CPU half of the time"),
    _most("kernel.pressure.*.full.avg60", 20.0, 60.0, "everything waits for this resource a large part of the time"),
    _most("kernel.pressure.*.some.avg60", 50.0, None, "work waits for this resource half of the time"),
    _least("container.limit.nofile", 4096, 256, "each rank opens sockets to many others, and data files"),
    _least("container.limit.nproc", 4096, 256, "ranks, data loaders and their threads each count"),
    _least("container.limit.memlock_bytes", 64 << 10, None, "RDMA and pinned memory need locked pages"),
    _most("container.memory_oom_kills", 0, None, "this cgroup has lost processes to its memory limit"),
    _most("container.pids_used_ratio", 0.8, 0.97, "no further processes or threads can be made"),
    _most("container.memory_used_ratio", 0.9, 0.98, "the cgroup's memory limit is near"),
    _must_be("devices.dev.null", True, "every program needs it"),
    _must_be("devices.dev.shm", True, "data loaders need it"),
    _must_be("devices.dev.urandom", True, "every program needs it"),
    _should_be("devices.gpus_have_files", True, "a GPU on the PCI bus has no file: no driver, or not this container's"),
    _should_be("gpu.all_answer", True, "a GPU on the PCI bus is not shown by NVML: lost, or not this container's"),
    _should_be("pci.*.link_at_full_width", True, "the link has lost lanes"),
    _should_be("pci.*.link_at_full_speed", True, "the link has been trained down (some devices do so when idle)"),
    _most("pci.*.aer_fatal", None, 0, "fatal PCIe errors"),
    _most("pci.*.aer_nonfatal", 0, None, "uncorrected PCIe errors"),
    _most("pci.*.aer_correctable", 1000, None, "corrected PCIe errors: signal quality"),
    _most("gpu.*.ecc_uncorrected*", 0, None, "uncorrected memory errors"),
    _most("gpu.*.remapped_uncorrectable", 0, 512, "rows replaced after uncorrectable errors"),
    _must_be("gpu.*.remap_failure", False, "no spare rows left: replace the GPU"),
    _should_be("gpu.*.remap_pending", False, "a reset of the GPU is needed to replace rows"),
    _most("gpu.*.retired_pages_*", 0, 60, "memory pages taken out of use"),
    _should_be("gpu.*.retired_pending", False, "a restart is needed to take pages out of use"),
    _must_be("gpu.*.throttled_hardware", False, "clocks lowered by hardware: heat, power brake"),
    _should_be("gpu.*.throttled_thermal", False, "clocks lowered because of heat"),
    _should_be("gpu.*.link_at_full_width", True, "the PCIe link has lost lanes"),
    _should_be("gpu.*.persistence_mode", True, "the driver unloads between jobs, and start-up takes seconds longer"),
    _should_be("gpu.*.ecc_enabled", True, "memory errors go unnoticed"),
    _must_be("gpu.*.nvlink.*.active", True, "an NVLink is down: collectives take slower ways"),
    _most("gpu.*.nvlink.*.*_errors", 0, None, "errors on an NVLink"),
    _most("gpu.*.margin_celsius_used", 0.95, 1.0, "near the temperature at which clocks are lowered"),
    _most("nic.*.carrier_changes_per_day", 10.0, 100.0, "the link goes up and down"),
    _most("nic.*.error_ratio", 1e-6, 1e-3, "packets are damaged"),
    _most("nic.*.drop_ratio", 1e-3, 0.05, "packets are dropped on this interface"),
    _should_be("nic.*.duplex", "full", "half duplex"),
    _should_be("nic.*.is_shaped", False, "a traffic shaper is set on this interface"),
    _most("nic.tcp.retransmitted_ratio", 0.01, 0.10, "packets get lost on the way"),
    _should_be("nic.*.usable", True, "the interface is enabled and has no link"),
    _should_be("infiniband.*.active", True, "the port is not active (as unused ones are)"),
    _most("infiniband.*.link_downed", 0, None, "the link was lost since the counters were cleared"),
    _most("infiniband.*.excessive_buffer_overrun_errors", None, 0, "flow control has failed"),
    _most("infiniband.*.local_link_integrity_errors", None, 0, "the physical link is bad"),
    _most("infiniband.*.symbol_error", 120, None, "signal quality of the link"),
    _most("infiniband.*.link_error_recovery", 5, None, "the link was retrained"),
    _most("infiniband.*.port_rcv_errors", 10, None, "damaged packets came in"),
    _most("storage.*.used_ratio", 0.95, 0.99, "checkpoints and logs will not fit"),
    _most("storage.*.inodes_used_ratio", 0.95, 0.99, "no further files can be made"),
    _must_be("storage.*.reachable", True, "the filesystem does not answer"),
    _should_be("storage.*.remounted_read_only", False, "the kernel has stopped writing to it after errors"),
    _must_be("storage.*.state_is_live", True, "the disk is offline or dead"),
    _most("storage.*.io_errors", 0, None, "the disk has returned errors"),
    _most("sensors.*.margin_used", 0.95, 1.0, "near the critical temperature"),
    _least("compute.*.core_balance", 0.6, None, "one core is much slower than the others, or busy with something"),
    _least("gpu_compute.*_balance", 0.9, 0.7, "one GPU is slower than the others: every step waits for it"),
    _least("bandwidth.*copy", 2e9, 0.5e9, "slower than one memory channel of any recent machine"),
    _least("disk.*.write_bandwidth", 100e6, 20e6, "slower than a single rotating disk"),
    _least("disk.*.read_bandwidth", 100e6, 20e6, "slower than a single rotating disk"),
    _most("disk.*.fsync_p50_s", 0.050, 0.5, "every durable small write waits this long"),
    _most("disk.*.fsync_slowest_s", 2.0, None, "one durable small write took this long"),
    _most("network.loopback.rtt_p50_s", 1e-3, 20e-3, "even messages inside the node are slow"),
    _least("network.loopback.*bandwidth", 4 * GBIT, 0.4 * GBIT, "even messages inside the node are slow"),
    _must_be("network.peer.*.reachable", True, "the peer cannot be reached"),
    _most("network.peer.*.rtt_p50_s", 2e-3, 20e-3, "slow for nodes of one cluster"),
    _least("network.peer.*bandwidth", 1 * GBIT, 0.1 * GBIT, "slow for nodes of one cluster"),
    _least("network.peer.*share_of_link", 0.3, 0.1, "one TCP stream gets a small part of what the link promises"),
    _most("collective.*.latency_s", 10e-3, 0.5, "a collective of a few bytes takes this long inside the node"),
)  # fmt: skip
