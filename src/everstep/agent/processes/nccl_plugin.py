"""Whether ranks get our profiler plug-in for NCCL: if it is asked for, there are NVIDIA GPUs, and nothing else profiles
NCCL. Off by default: it is native code in the training, and one version of NCCL has called it so far.

NCCL loads one profiler only. A profiler that the user has named, by variable, in a configuration file or by the name
that NCCL looks for by itself, is kept.
"""

from collections.abc import Mapping
from pathlib import Path

from everstep.probes.nccl import plugin

SWITCH = "EVERSTEP_NCCL_PROFILER"
"""`on`: ranks get the plug-in."""

VARIABLE = "NCCL_PROFILER_PLUGIN"
_BY_ITSELF = "libnccl-profiler.so"
_LIBRARIES = ("lib", "lib64", "usr/lib", "usr/lib64", "usr/local/lib", "usr/local/lib64")


def profiler_for(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """The library's path; empty: ranks get none."""
    if environ.get(SWITCH) != "on" or VARIABLE in environ or environ.get("NCCL_INSPECTOR_ENABLE", "0") != "0":
        return ""
    library = plugin.library()
    if library is None or not _has_gpu(root) or _has_other(environ, root):
        return ""
    return str(library)


def _has_gpu(root: Path) -> bool:
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
    return any((each / _BY_ITSELF).exists() for each in (*named, *system, *below))


def _folders(folder: Path) -> list[Path]:
    """Debian's directory per architecture."""
    try:
        return list(folder.glob("*-linux-gnu"))
    except OSError:
        return []
