"""Whether ranks get our profiler plug-in for NCCL: if it is asked for, there are NVIDIA GPUs, and nothing else profiles
NCCL. Off by default: it is native code in the training, and one version of NCCL has called it so far.

RCCL, AMD's, loads it by the same variable. That has a value of its own: no RCCL has called it, and with that of ROCm
7.1.0 a process may crash in an all-to-all, whatever profiler it has (ROCm/ROCm issue 5653).

NCCL loads one profiler only. A profiler that the user has named, by variable, in a configuration file or by the name
that NCCL looks for by itself, is kept.
"""

from collections.abc import Mapping
from pathlib import Path

from everstep.probes.nccl import plugin

SWITCH = "EVERSTEP_NCCL_PROFILER"
"""`on`: ranks on NVIDIA's GPUs get the plug-in. `rccl`: ranks on AMD's."""

VARIABLE = "NCCL_PROFILER_PLUGIN"
_BY_ITSELF = ("libnccl-profiler.so", "librccl-profiler.so")
_LIBRARIES = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64")


def profiler_for(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """The library's path; empty: ranks get none."""
    has_gpu = {"on": _has_nvidia, "rccl": _has_amd}.get(environ.get(SWITCH, ""))
    if has_gpu is None or VARIABLE in environ or environ.get("NCCL_INSPECTOR_ENABLE", "0") != "0":
        return ""
    library = plugin.library()
    if library is None or not has_gpu(root) or _has_other(environ, root):
        return ""
    return str(library)


def _has_amd(root: Path) -> bool:
    return (root / "dev/kfd").exists()


def _has_nvidia(root: Path) -> bool:
    try:
        return any(path.name.removeprefix("nvidia").isdigit() for path in (root / "dev").glob("nvidia*"))
    except OSError:
        return False


def _has_other(environ: Mapping[str, str], root: Path) -> bool:
    configured = environ.get("NCCL_CONF_FILE") or f"{environ.get('HOME', '')}/.nccl.conf"
    for path in (Path(configured), root / "etc/nccl.conf"):
        try:
            if VARIABLE in path.read_text(errors="replace"):
                return True
        except OSError:
            continue
    named = [Path(each) for each in environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    system = [root / each for each in _LIBRARIES]
    below = [path for each in system for path in _folders(each)]
    return any((each / name).exists() for each in (*named, *system, *below) for name in _BY_ITSELF)


def _folders(folder: Path) -> list[Path]:
    """Debian's directory per architecture."""
    try:
        return list(folder.glob("*-linux-gnu"))
    except OSError:
        return []
