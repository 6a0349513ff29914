"""Device files that a job may need: there or not, and whether each GPU on the PCI bus has one."""

import os
from collections.abc import Iterator

from everstep.preflight.checks.reading.pci import gpus_on_bus
from everstep.preflight.result import Better, Result, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import names_in, under

_FILES = (
    "null", "zero", "urandom", "shm", "ptmx", "kmsg", "fuse", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools",
    "nvidia-modeset", "nvidia-nvswitchctl", "nvidia-caps", "nvidia-caps-imex-channels", "gdrdrv", "kfd", "dri",
    "davinci_manager", "hisi_hdc", "infiniband/rdma_cm", "mst", "vfio/vfio", "knem", "xpmem", "watchdog", "ptp0", "kvm",
)  # fmt: skip
_SERIES = (
    ("nvidia", "nvidia", ""), ("davinci", "davinci", ""), ("infiniband", "uverbs", "infiniband"),
    ("infiniband_mad", "umad", "infiniband"), ("nvme", "nvme", ""), ("efa", "efa_", ""),
)  # fmt: skip


def measure(settings: Settings) -> Iterator[Result]:
    root = settings.root
    for name in _FILES:
        there = under(root, f"/dev/{name}").exists()
        yield measured(f"devices.dev.{name}", there, how=f"look for /dev/{name}", better=Better.SAME, tolerance=0.0)
    for title, prefix, folder in _SERIES:
        found = [n for n in names_in(root, f"/dev/{folder}") if n.startswith(prefix) and n[len(prefix) :].isdigit()]
        how = f"count /dev/{folder + '/' if folder else ''}{prefix}N"
        yield measured(f"devices.{title}.count", len(found), how=how, better=Better.SAME, tolerance=0.0)
        for name in found:
            yield measured(
                f"devices.{name}.present", True, how=how, better=Better.SAME, tolerance=0.0, device=name
            )  # fmt: skip
            yield from _usable(root, f"/dev/{folder}/{name}".replace("//", "/"), name)
    yield _gpus_have_files(root)


def _usable(root: str, path: str, name: str) -> Iterator[Result]:
    how = f"access({path}, read and write)"
    yield measured(f"devices.{name}.accessible", os.access(under(root, path), os.R_OK | os.W_OK), how=how, device=name)


def _gpus_have_files(root: str) -> Result:
    on_bus = gpus_on_bus(root)
    name = "devices.gpus_have_files"
    if not on_bus:
        return unsupported(name, "no GPU is on the PCI bus")
    files = [n for n in names_in(root, "/dev") if n.startswith("nvidia") and n[6:].isdigit()]
    how = f"{len(on_bus)} NVIDIA GPUs on the PCI bus, {len(files)} files /dev/nvidiaN"
    return measured(name, len(files) >= len(on_bus), how=how, better=Better.SAME, tolerance=0.0)
