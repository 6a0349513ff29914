"""The checks, as one table: name, where it is, how long it may take, what it costs the node.

Checks of one node run one after another in the order of the table: measurements must not disturb each other.
"""

import enum
from collections.abc import Callable, Iterable
from importlib import import_module

import msgspec

from everstep.preflight.result import Yielded
from everstep.preflight.settings import Level, Settings

Measure = Callable[[Settings], Iterable[Yielded]]


class Load(enum.StrEnum):
    """A check's effect on the node."""

    READS = "reads"  # reads files of the kernel: may run beside a job
    WORKS = "works"  # computes, writes, sends: disturbs a job


class Check(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    module: str  # below everstep.preflight.checks.reading or .working
    function: str
    says: str  # for the progress line
    load: Load = Load.READS
    quick_limit_s: float = 10.0  # killed after this; reading takes milliseconds, unless something is wrong
    full_limit_s: float = 30.0

    def limit_s(self, settings: Settings) -> float:
        """Peers and paths are measured one after another, so each adds its share."""
        base = self.quick_limit_s if settings.level is Level.QUICK else self.full_limit_s
        if self.name == "network":
            return base * (1 + len(settings.peers))
        return base * max(1, len(settings.disk_paths)) if self.name == "disk" else base

    def load_measure(self) -> Measure:
        folder = "reading" if self.load is Load.READS else "working"
        measure: Measure = getattr(import_module(f"everstep.preflight.checks.{folder}.{self.module}"), self.function)
        return measure


CHECKS = (
    Check(name="cpu", module="cpu", function="measure", says="CPUs, clocks, caches"),
    Check(name="memory", module="memory", function="measure", says="memory, swap, huge pages, ECC counts"),
    Check(name="kernel", module="kernel", function="measure", says="kernel, its parameters, time"),
    Check(name="software", module="software", function="measure", says="drivers, libraries, environment"),
    Check(name="ebpf", module="ebpf", function="measure", says="eBPF: what could observe a run"),
    Check(name="container", module="container", function="measure", says="limits of processes and cgroups"),
    Check(name="devices", module="devices", function="measure", says="device files"),
    Check(name="pci", module="pci", function="measure", says="PCI devices and their links"),
    Check(name="gpu", module="gpu", function="measure", says="GPUs", quick_limit_s=20.0, full_limit_s=60.0),
    Check(name="nic", module="nic", function="measure", says="network interfaces"),
    Check(name="infiniband", module="infiniband", function="measure", says="InfiniBand and RoCE ports"),
    Check(name="storage", module="storage", function="measure", says="disks and filesystems"),
    Check(name="sensors", module="sensors", function="measure", says="temperatures, fans, power"),
    Check(
        name="compute", module="compute", function="measure", says="matrix products, bit by bit", load=Load.WORKS,
        quick_limit_s=60.0, full_limit_s=600.0,
    ),
    Check(
        name="gpu_compute", module="gpu_compute", function="measure", says="products and copies on the GPUs",
        load=Load.WORKS, quick_limit_s=120.0, full_limit_s=900.0,
    ),
    Check(
        name="bandwidth", module="bandwidth", function="measure", says="memory bandwidth", load=Load.WORKS,
        quick_limit_s=30.0, full_limit_s=300.0,
    ),
    Check(
        name="disk", module="disk", function="measure", says="disk: write, read, fsync", load=Load.WORKS,
        quick_limit_s=20.0, full_limit_s=300.0,
    ),
    Check(
        name="network", module="network", function="measure", says="network: latency and bandwidth", load=Load.WORKS,
        quick_limit_s=15.0, full_limit_s=60.0,
    ),
    Check(
        name="collective", module="collective", function="measure", says="collectives inside the node",
        load=Load.WORKS, quick_limit_s=40.0, full_limit_s=300.0,
    ),
    Check(
        name="endtoend", module="endtoend", function="measure", says="a training step and an inference, bit by bit",
        load=Load.WORKS, quick_limit_s=40.0, full_limit_s=300.0,
    ),
)  # fmt: skip

BY_NAME = {check.name: check for check in CHECKS}
