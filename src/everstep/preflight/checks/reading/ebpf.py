"""eBPF: which probes of the kernel could observe a run here, and what is missing for those that could not.

Where nothing is known to be missing, the programs are loaded for a moment: only the kernel's verifier knows the rest.
"""

from collections.abc import Iterator
from pathlib import Path

from everstep.preflight.result import Better, Doing, Yielded, measured, unsupported
from everstep.preflight.settings import Settings
from everstep.probes.ebpf import support
from everstep.probes.ebpf.libbpf import BpfError, Library
from everstep.probes.ebpf.sched import Sched

_USABLE = f"usable; `{support.SWITCH}=on everstep run ...` switches it on"


def measure(settings: Settings) -> Iterator[Yielded]:
    why = support.why_not(Path(settings.root))
    how = "BTF, capabilities, PID namespace, libbpf"
    if not why and settings.root == "/":
        yield Doing(what="loading the eBPF programs")
        why, how = _trial(), "loaded, attached and detached"
    for name in support.CLASSES:
        if why:
            yield unsupported(f"ebpf.{name}", why, how=how)
        else:
            yield measured(f"ebpf.{name}", _USABLE, how=how, better=Better.SAME)


def _trial() -> str:
    """Why not; empty: it works. They end with this check's process at the latest."""
    try:
        Sched(Library()).close()
    except (BpfError, OSError) as error:
        return f"the kernel refuses: {error}"
    return ""
