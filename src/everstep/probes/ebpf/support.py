"""Whether this process can observe the run with eBPF; if not, what is missing and what would allow it, in one line.

Called by `everstep check`, and before anything is loaded. It loads nothing.
"""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from everstep.linux import proc

SWITCH = "EVERSTEP_EBPF"
"""Environment variable of the agent: `on` observes. Any other value, or none, is off (docs/adr/0026)."""

CLASSES = {"run_queue": "sched", "locks": "sched", "files": "sched", "memory": "memory"}
"""What is observed -> the object that observes it."""

_CAP_SYS_ADMIN, _CAP_PERFMON, _CAP_BPF = 21, 38, 39
_INITIAL_PID_NAMESPACE = f"pid:[{proc.INITIAL_PID_NAMESPACE}]"
_BTF = Path("sys/kernel/btf/vmlinux")


def why_not(root: Path = Path("/")) -> str:
    """The most fundamental obstacle; empty: it should work."""
    return next(_obstacles(root), "")


def _obstacles(root: Path) -> Iterator[str]:
    if not (root / _BTF).exists():
        yield f"{root / _BTF} is missing: the kernel has no BTF; boot one built with CONFIG_DEBUG_INFO_BTF=y"
    lockdown = _text(root / "sys/kernel/security/lockdown")
    if "[confidentiality]" in lockdown:
        yield "the kernel is locked down (confidentiality): eBPF may not read its memory; boot with lockdown=integrity"
    if not _may(_text(root / "proc/self/status")):
        yield (
            "permission is missing: neither CAP_SYS_ADMIN nor CAP_BPF with CAP_PERFMON; "
            "run as root, or grant both to the launcher"
        )
    try:
        namespace = str((root / "proc/self/ns/pid").readlink())
    except OSError as error:
        yield f"/proc/self/ns/pid cannot be read: {error.strerror}"
    else:
        if namespace != _INITIAL_PID_NAMESPACE:
            yield "not in the host's PID namespace, whose pids eBPF sees; start the container with hostPID"
    try:
        ctypes.CDLL("libbpf.so.1")
    except OSError:
        yield "libbpf.so.1 is missing: install the package libbpf1 (or libbpf)"


def _may(status: str) -> bool:
    words = next((line.split() for line in status.splitlines() if line.startswith("CapEff:")), [])
    try:
        held = int(words[1], 16)
    except (IndexError, ValueError):
        return os.geteuid() == 0
    return bool(held >> _CAP_SYS_ADMIN & 1 or (held >> _CAP_BPF & 1 and held >> _CAP_PERFMON & 1))


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
