"""Software: Python, torch and its libraries, drivers, kernel modules, environment variables that change a job."""

import hashlib
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from everstep.preflight.result import Better, Result, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.preflight.sources import Place, parts, read_places, text_of, whole

_PACKAGES = (
    "torch", "numpy", "triton", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12", "nvidia-cublas-cu12",
    "nvidia-ml-py", "flash-attn", "transformer-engine", "deepspeed", "accelerate", "transformers", "lightning",
    "torchtitan", "datasets", "msgspec", "aiohttp", "py-spy",
)  # fmt: skip
_MODULES = (
    "nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "amdgpu", "mlx5_core", "mlx5_ib", "ib_core",
    "ib_uverbs", "rdma_ucm", "efa", "irdma", "nvme", "lustre", "nfs", "fuse", "edac_core",
)  # fmt: skip
_PREFIXES = ("NCCL_", "TORCH_", "CUDA_", "OMP_", "MKL_", "KMP_", "GLOO_", "UCX_", "FI_", "NVIDIA_", "ROCR_", "HIP_")
_NAMES = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "PYTHONPATH",
    "MASTER_ADDR",
    "MALLOC_CONF",
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
)
_PLACES = (
    Place(
        name="software.nvidia_driver", path="/proc/driver/nvidia/version", parse=lambda text: whole(text.split("\n")[0])
    ),
    Place(name="software.nvidia_module", path="/sys/module/nvidia/version", parse=whole),
    Place(name="software.mlx5_module", path="/sys/module/mlx5_core/version", parse=whole),
    Place(name="software.amdgpu_module", path="/sys/module/amdgpu/version", parse=whole),
    Place(name="software.fabric_manager_pid", path="/run/nvidia-fabricmanager/nv-fabricmanager.pid", better=Better.ANY),
)


def measure(settings: Settings) -> Iterator[Yielded]:
    root = settings.root
    yield from read_places(root, _PLACES)
    yield from parts("software", _interpreter(), _packages(), _modules(root), _system(root), _environment())


def _interpreter() -> Iterator[Result]:
    yield measured("software.python", platform.python_version(), how="sys.version", better=Better.SAME)
    yield measured("software.machine", platform.machine(), how="uname", better=Better.SAME)
    yield measured("software.libc", " ".join(platform.libc_ver()), how="platform.libc_ver", better=Better.SAME)
    yield measured("software.executable", sys.executable, how="sys.executable")


def _packages() -> Iterator[Result]:
    for name in _PACKAGES:
        try:
            yield measured(f"software.{name}", version(name), how="package metadata", better=Better.SAME)
        except PackageNotFoundError:
            yield unsupported(f"software.{name}", "not installed in this Python", how="package metadata")


def _system(root: str) -> Iterator[Result]:
    lines = (text_of(root, "/etc/os-release") or "").splitlines()
    release = dict(line.split("=", 1) for line in lines if "=" in line)
    if "PRETTY_NAME" in release:
        title = release["PRETTY_NAME"].strip('"')
        yield measured("software.system", title, how="read /etc/os-release", better=Better.SAME)
    else:
        yield unsupported("software.system", "/etc/os-release has no PRETTY_NAME")


def _modules(root: str) -> Iterator[Result]:
    text = text_of(root, "/proc/modules")
    if text is None:
        yield unsupported("software.modules", "/proc/modules cannot be read (no loadable modules?)")
        return
    loaded = {line.split()[0] for line in text.splitlines() if line}
    how = "read /proc/modules"
    yield measured("software.num_modules", len(loaded), "modules", how=how)
    for name in _MODULES:
        yield measured(f"software.module.{name}", name in loaded, how=how, better=Better.SAME)


def _environment() -> Iterator[Result]:
    """Names and values are the user's own; a digest of all of them makes nodes comparable at a glance."""
    found = {k: v for k, v in sorted(os.environ.items()) if k.startswith(_PREFIXES) or k in _NAMES}
    for name, value in found.items():
        if not any(word in name for word in ("TOKEN", "SECRET", "PASSWORD", "KEY")):
            yield measured(f"software.env.{name}", value, how="environment", better=Better.SAME)
    text = "\n".join(f"{k}={v}" for k, v in found.items())
    digest = hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]
    how = "SHA-256 of the environment variables that change a job"
    yield measured("software.env_checksum", digest, how=how, better=Better.SAME)
